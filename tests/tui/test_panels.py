"""Headers, panels and rows, as strings."""

from __future__ import annotations

import msgspec
import pytest
from ddptop.tui.render import devices, panels, rows, words
from ddptop.tui.render.columns import fit_columns
from ddptop.tui.render.text import Line, plain, width
from ddptop.tui.render.uneven import imbalance_note, worst_figure
from ddptop.tui.widgets.jobs_table import COLUMNS as JOB_COLUMNS
from ddptop.tui.widgets.rank_table import COLUMNS as RANK_COLUMNS
from tests.tui.fake_home import GIB, HOST, NOW, ago, event, gpu, snapshot_of, spec_of

from ddptop_runner.balance import imbalance
from ddptop_runner.balance.imbalance import RankDeviation
from ddptop_runner.model import (
    Alert,
    Cause,
    Checkpoint,
    GpuProcess,
    Imbalance,
    NodeSnapshot,
    RankSample,
)
from ddptop_runner.model_words import JobState, Phase, RankState
from ddptop_runner.paths import RunFolder
from ddptop_runner.registry import JobView


def view_of(snapshot: object = None, **more: object) -> JobView:
    """A view whose processes are not asked for."""
    spec = spec_of("llama-ft", 2, 4330)
    if snapshot is None:
        snapshot = snapshot_of(spec, guardian=None, **more)
    view = JobView(folder=RunFolder.__new__(RunFolder), spec=spec, snapshot=snapshot, read_at=NOW)
    object.__setattr__(view.folder, "path", None)
    view.__dict__.update(state=snapshot.state, guarded=True, on_other_host=False)
    return view


def rank(number: int = 0, **more: object) -> RankSample:
    return RankSample(rank=number, local_rank=number, host=HOST, **more)


class TestWords:
    @pytest.mark.parametrize("state", JobState.__args__)
    def test_every_job_state_has_a_symbol_and_its_word(self, state: str) -> None:
        text, style = words.job_state(state)
        assert text.endswith(f" {state}")
        assert style in ("ok", "busy", "warn", "bad", "dim")

    @pytest.mark.parametrize("state", RankState.__args__)
    def test_every_rank_state_has_a_symbol_and_its_word(self, state: str) -> None:
        assert words.rank_state(state)[0].endswith(f" {state}")

    @pytest.mark.parametrize("phase", Phase.__args__)
    def test_what_a_rank_does_fits_into_its_column(self, phase: str) -> None:
        (column,) = [column for column in RANK_COLUMNS if column.key == "state"]
        assert len(words.rank_state("running", phase=phase)[0]) <= column.width

    def test_a_failed_rank_says_how(self) -> None:
        assert words.rank_state("failed", signal="SIGKILL")[0] == "✗ SIGKILL"
        assert words.rank_state("failed", exit_code=1)[0] == "✗ exit 1"
        assert words.rank_state("stopped", signal="SIGTERM")[0] == "■ stopped"

    def test_a_state_of_a_newer_ddptop_is_shown_as_it_is(self) -> None:
        assert words.job_state("frozen") == ("? frozen", "dim")

    def test_old_figures_are_said_in_words(self) -> None:
        assert words.age_words(2.9) is None
        assert words.age_words(12.7) == "figures are 12 s old"
        assert words.age_words(600) == "figures are 10 min old"


def header(view: JobView, cells: int = 120) -> list[str]:
    lines = panels.header_lines(view, NOW, cells)
    assert all(width(line) in (0, cells) for line in lines[::2])
    return [plain(line).rstrip() for line in lines]


class TestHeader:
    def test_a_running_job(self) -> None:
        view = view_of(
            step=12339,
            total_steps=50_000,
            eta_s=12470.0,
            attempt=1,
            restarts_used=1,
            restarts_left=2,
            ranks=[rank(0, loss=2.0, steps_per_s=3.5), rank(1, loss=2.2, steps_per_s=3.0)],
        )
        top, bar, facts = header(view)
        assert top == (
            " ● running   step 12,339 / 50,000   pace 3 steps/s   ETA 3h 27m   loss 2.1000"
            "   elapsed 1h 12m"
        )
        assert bar.endswith("24.7 %")
        assert facts == " attempt 1   restarts 1 used, 2 left   world size 2   guarded"

    @pytest.mark.parametrize("cells", [80, 120])
    def test_a_queued_job_has_no_steps_to_tell_of(self, cells: int) -> None:
        alert = Alert(id="queued", severity="info", message="waits for GPU 0", since=ago(90))
        top, middle, facts = header(view_of(state="queued", attempt=0, alerts=[alert]), cells)
        assert top == " ○ queued   waited 1m 30s"
        assert middle == " not started: it waits until its GPUs are free"
        assert facts.startswith(" attempt 0")

    def test_a_narrow_header_moves_the_elapsed_time_down(self) -> None:
        view = view_of(step=12339, total_steps=50_000, eta_s=12470.0, ranks=[rank(0, loss=2.0)])
        top, _, facts = header(view, 80)
        assert "elapsed" not in top
        assert facts.startswith(" elapsed 1h 12m  attempt 0")

    def test_unknown_is_said_and_never_zero(self) -> None:
        top, bar, _ = header(view_of(step=None))
        assert "step n/a" in top
        assert "ETA n/a" in top
        assert "loss n/a" in top
        assert bar == " total steps not known: no bar and no ETA"

    def test_old_figures_and_a_missing_guard_come_first(self) -> None:
        view = view_of(ts=ago(42))
        view.__dict__["guarded"] = False
        assert header(view)[2].startswith(
            " ▲ figures are 42 s old   ▲ unguarded: nothing restarts it   attempt 0"
        )

    def test_another_host_is_named(self) -> None:
        view = view_of()
        view.__dict__.update(on_other_host=True, guarded=None)
        assert "on host node-a" in header(view)[2]
        assert "guardian on another host" in header(view)[2]

    def test_a_nan_loss_is_seen_even_beside_finite_ones(self) -> None:
        view = view_of(ranks=[rank(0, loss=2.0, loss_state="ok"), rank(1, loss_state="nan")])
        line = panels.header_lines(view, NOW, 120)[0]
        assert ("NaN", "bad") in line

    def test_an_ended_job_says_when(self) -> None:
        view = view_of(state="finished", ended_at=ago(60))
        assert "ended" in header(view)[2]
        assert "ETA" not in header(view)[0]

    def test_the_pace_is_the_slowest_rank_s(self) -> None:
        assert panels.steps_per_s([rank(steps_per_s=3.0), rank(steps_per_s=2.0), rank()]) == 2.0


class TestWhatHoldsAJobUp:
    def snapshot(self, **more: object) -> NodeSnapshot:
        return snapshot_of(spec_of("llama-ft", 2, 4330), **more)

    def test_when_the_next_attempt_starts_and_why_then(self) -> None:
        why = "2 in a row without a step"
        waiting = self.snapshot(attempt=2, policy=why, restart_at=ago(-9))
        said = plain(panels.restart_line(waiting, NOW)).rstrip()
        assert said == f" ↻ attempt 3 starts in 9s  {why}"
        due = msgspec.structs.replace(waiting, restart_at=None, policy=None)
        assert plain(panels.restart_line(due, NOW)).rstrip() == " ↻ attempt 3 starts now"

    def test_the_last_checkpoint(self) -> None:
        saved = Checkpoint(path="/c/last.pt", at=ago(64), step=120)
        field = panels.checkpoint_field(self.snapshot(checkpoint=saved), NOW)
        assert plain(field) == "checkpoint step 120, 1m ago"
        of_all = msgspec.structs.replace(saved, global_step=1120)
        field = panels.checkpoint_field(self.snapshot(checkpoint=of_all), NOW)
        assert plain(field) == "checkpoint step 1,120, 1m ago"
        assert panels.checkpoint_field(self.snapshot(), NOW) == ()

    def test_a_gpu_set_aside_is_in_the_header(self) -> None:
        view = view_of(self.snapshot(set_aside=[2]))
        assert "▲ GPU 2 set aside" in plain(panels.header_lines(view, NOW, 160)[2])

    def test_a_phase_takes_the_state_s_place_once_it_lasts(self) -> None:
        one = rank(state="running", phase="evaluation", phase_since=ago(3))
        assert rows.rank_row(one, NOW, live=True)["state"] == ("◍ evals", "busy")
        assert rows.rank_row(one, ago(2), live=True)["state"][0] == "● running"
        assert rows.rank_row(one, NOW, live=False)["state"][0] == "● running"
        quiet = msgspec.structs.replace(one, state="quiet")
        assert rows.rank_row(quiet, NOW, live=True)["state"][0] == "◌ quiet"


class TestAlertsAndCause:
    def alerts(self, number: int) -> list[Alert]:
        return [
            Alert(
                id=str(i),
                severity="error" if i == 2 else "warning",
                message=f"alert {i}",
                since=ago(60 * (i + 1)),
            )
            for i in range(number)
        ]

    def test_the_worst_comes_first_and_the_rest_is_counted(self) -> None:
        lines = [plain(x) for x in panels.alert_lines(self.alerts(5), NOW, 60, 3)]
        assert lines[0].startswith(" ✗ alert 2")
        assert lines[0].rstrip().endswith("since 3m")
        assert lines[2].strip() == "and 3 more: press f"

    def test_alerts_that_fit_are_all_shown(self) -> None:
        assert len(panels.alert_lines(self.alerts(3), NOW, 60, 3)) == 3

    def cause(self, rows_: int, tail: list[str]) -> list[str]:
        cause = Cause(
            kind="exception", rank=3, exit_code=1, summary="RuntimeError: [boom]", evidence="ev/x"
        )
        lines = panels.cause_lines("failed", cause, tail, 60, rows_)
        assert all(width(line) == 60 for line in lines)
        return [plain(line).rstrip() for line in lines]

    def test_a_cause_names_the_rank_and_its_last_words(self) -> None:
        tail = ["step 1", "", "[rank3]:    ^^^~~~^^", "RuntimeError: [boom]"]
        assert self.cause(8, tail) == [
            "▌ ✗ failed  rank 3 failed first (exit 1)",
            "▌ RuntimeError: [boom]",
            "▌ │ step 1",
            "▌ │ RuntimeError: [boom]",
            "▌ evidence ev/x   press i",
        ]

    def test_little_room_keeps_what_matters(self) -> None:
        assert self.cause(3, ["a", "b", "c"]) == [
            "▌ ✗ failed  rank 3 failed first (exit 1)",
            "▌ RuntimeError: [boom]",
            "▌ evidence ev/x   press i",
        ]

    @pytest.mark.parametrize("rows_", range(4, 11))
    def test_the_paragraph_comes_before_last_words(self, rows_: int) -> None:
        cause = Cause(kind="exception", rank=3, exit_code=1, summary="why " * 60, evidence="ev/x")
        lines = [plain(x) for x in panels.cause_lines("failed", cause, ["last"] * 9, 60, rows_)]
        of_why = sum("why" in text for text in lines)
        assert of_why == (rows_ - 2 if rows_ <= 6 else min(5, rows_ // 2))
        assert "press i" in lines[-1]

    def test_why_an_attempt_of_a_job_that_goes_on_failed(self) -> None:
        cause = Cause(
            kind="signal", rank=1, summary="Rank 1 was killed, " * 3 + "so.", evidence="e"
        )
        lines = panels.setback_lines(0, cause, 60, 2)
        assert all(width(line) == 60 for line in lines)
        assert [plain(line).rstrip() for line in lines] == [
            "▌ attempt 0 failed: Rank 1 was killed, Rank 1",
            "▌ was killed, Rank 1 was killed, so.   press i",
        ]
        cut = plain(panels.setback_lines(None, cause, 40, 1)[0]).rstrip()
        assert cut == "▌ the last attempt failed:…   press i"


def texts(lines: list[Line]) -> list[str]:
    return [plain(line).rstrip() for line in lines]


class TestDevices:
    def test_a_device_line(self) -> None:
        one = gpu(0, util_percent=50.0, mem_used_bytes=40 * GIB, temperature_c=88.0, power_w=612.4)
        lines = devices.device_lines([one], 80, lambda _: (("rank 0", "dim"),))
        assert texts(lines) == [
            "   util                  memory                         temp     power  held by",
            " 0 ━━━━━━━╸━━━━━━━  50 % ━━━━━━━╸━━━━━━━ 40.0/80.0 GiB  88 °C 612/700 W  rank 0",
        ]
        assert ("88 °C ".rjust(7), "warn") in lines[1]

    @pytest.mark.parametrize("cells", [30, 44, 57, 80, 96, 120, 200])
    def test_every_width_is_kept(self, cells: int) -> None:
        gpus = [gpu(index) for index in range(12)]
        for line in devices.device_lines(gpus, cells, lambda g: ((f"rank {g.index}", ""),)):
            assert width(line) == cells

    def test_unknown_figures_are_n_a_and_dotted(self) -> None:
        blank = msgspec.structs.replace(
            gpu(0),
            util_percent=None,
            mem_used_bytes=None,
            temperature_c=None,
            power_w=None,
        )
        text = texts(devices.device_lines([blank], 80, lambda _: ()))[1]
        assert text.count("n/a") == 4
        assert "━" not in text
        assert "0 %" not in text

    def test_a_lost_device_says_so(self) -> None:
        text = texts(devices.device_lines([gpu(3, lost=True)], 80, lambda _: ()))[1]
        assert text == " 3 ✗ lost: the driver does not answer for it"

    def test_trouble_in_words(self) -> None:
        ill = gpu(
            0, xid=[79], ecc_uncorrected=2, throttle_reasons=["power cap", "thermal, by hardware"]
        )
        assert plain(devices.device_trouble(ill)) == "XID 79  2 ECC  ▼ thermal, by hardware"
        assert plain(devices.device_trouble(ill, brief=True)) == "XID 79  2 ECC  ▼ hot"
        assert devices.device_trouble(gpu(0, throttle_reasons=["power cap"])) == ()

    def test_no_column_is_named_that_says_nothing(self) -> None:
        lines = devices.device_lines([gpu(0)], 56, lambda _: ())
        assert texts(lines)[0].endswith("power")

    def test_imbalance_is_a_number_and_the_worst_comes_first(self) -> None:
        uneven = Imbalance(memory=0.34, utilization=0.02, power=None, step_time=0.41)
        assert plain(imbalance_note(uneven, (), 80)) == (
            "imbalance  step time +41 %  memory +34 %  util +2 %"
        )
        assert plain(imbalance_note(uneven, (), 30)) == "imbalance  step time +41 %"
        assert imbalance_note(Imbalance(), (), 80) == ()

    def test_a_few_points_of_load_are_no_imbalance(self) -> None:
        spec = spec_of("idle", 2, 60)

        def told(*percent: float) -> tuple[str, str]:
            ranks = [rank(i, cpu_percent=one, rss_bytes=GIB) for i, one in enumerate(percent)]
            snapshot = snapshot_of(spec, ranks=ranks, imbalance=imbalance.of_job(ranks, []))
            return worst_figure(snapshot)

        assert told(0.0, 1.0) == ("mem 0 %", "dim"), "the ratio is +100 %"
        assert told(10.0, 60.0) == ("util +71 %", "warn")
        assert told(100.0, 104.0) == ("util +2 %", "dim")
        note = imbalance_note(Imbalance(memory=0.04, utilization=1.0), (), 80, even_load=True)
        assert plain(note) == "imbalance  memory +4 %  util even"

    def test_cpu_ranks_are_compared_with_the_busiest(self) -> None:
        lines = panels.cpu_rank_lines(
            [rank(0, cpu_percent=400.0, rss_bytes=GIB), rank(1, cpu_percent=200.0)], 70
        )
        filled = [sum(len(t) for t, style in line if style == "busy") for line in lines[1:]]
        assert abs(filled[0] - 2 * filled[1]) <= 1
        assert texts(lines)[2].endswith("200 %       n/a")

    def test_ended_ranks_have_no_figures(self) -> None:
        assert "no figures" in texts(panels.cpu_rank_lines([rank(0), rank(1)], 70))[1]


class TestRows:
    def test_a_rank_row(self) -> None:
        row = rows.rank_row(
            rank(
                5,
                pid=52345,
                gpu=5,
                state="running",
                step=12339,
                loss=3.0724,
                loss_state="ok",
                step_time_s=0.446,
                last_progress_at=ago(3),
            ),
            NOW,
            live=True,
            apart=RankDeviation(
                loss=0.43, step_time=-0.5, outliers=frozenset({"loss", "step_time"})
            ),
        )
        assert row["device"][0] == "GPU 5"
        assert row["loss_vs"] == ("+43 %", "warn")
        assert row["time_vs"] == ("-50 %", "dim")
        assert row["last"] == ("3s", "dim")
        assert row["wait"][0] == "n/a"

    def test_an_ended_rank_has_no_last_progress(self) -> None:
        row = rows.rank_row(rank(0, last_progress_at=ago(3)), NOW, False)
        assert row["last"][0] == ""

    def test_live_jobs_come_first_and_trouble_before_calm(self) -> None:
        def made(job: str, state: str, created: float) -> JobView:
            spec = spec_of(job, 1, created)
            ended = None if state in ("running", "hung") else ago(created - 10)
            view = view_of(snapshot_of(spec, state=state, ended_at=ended, guardian=None))
            object.__setattr__(view, "spec", spec)
            return view

        views = [
            made("done", "finished", 9000),
            made("calm", "running", 5000),
            made("stuck", "hung", 6000),
            made("failed-lately", "failed", 300),
        ]
        assert [v.job for v in rows.sorted_jobs(views)] == [
            "stuck",
            "calm",
            "failed-lately",
            "done",
        ]

    def test_events_are_in_local_time_and_words(self) -> None:
        row = rows.event_row(event(10, "group_restart", "all ranks restart"))
        assert row["type"] == ("group restart", "warn")
        assert row["message"][1] == "warn"

    @pytest.mark.parametrize("cells", [55, 62, 79, 119, 199])
    def test_columns_fit_and_the_essential_ones_stay(self, cells: int) -> None:
        for columns, kept in ((RANK_COLUMNS, {"rank", "state", "loss"}), (JOB_COLUMNS, {"state"})):
            layout = fit_columns(columns, cells)
            assert kept <= {column.key for column, _ in layout}
            if cells >= 79:
                assert sum(size + 1 for _, size in layout) <= cells

    def test_processes_of_others_are_named(self) -> None:
        held = gpu(0, processes=[GpuProcess(pid=1, user="bob", command="python eval.py")])
        assert plain(devices.holder_text(held)) == "bob: python eval.py"
        mine = gpu(0, processes=[GpuProcess(pid=1, job="llama-ft", rank=3)])
        assert plain(devices.holder_text(mine)) == "llama-ft rank 3"
        assert plain(devices.holder_text(gpu(0, processes=[]))) == "free"
        assert plain(devices.holder_text(gpu(0, processes=None))) == "n/a"


class TestRoomForWhatMatters:
    def test_the_worst_alert_is_wrapped_to_its_remedy(self) -> None:
        stray = Alert(
            id="stray",
            severity="error",
            message="ranks 1, 2 hold 514 MiB each (1.0 GiB in all) on GPU 0, where rank 0 works: "
            "missing torch.cuda.set_device(local_rank) before the first CUDA call",
            since=NOW,
        )
        mild = Alert(id="mild", severity="warning", message="mild", since=NOW)
        lines = [plain(one) for one in panels.alert_lines([mild, stray], NOW, 80, 4)]
        assert "CUDA call" in lines[-2]
        assert "mild" in lines[-1]
        many = [plain(one) for one in panels.alert_lines([mild, stray, mild], NOW, 80, 3)]
        assert len(many) == 3
        assert "and 2 more: press f" in many[-1]

    def test_alerts_stay_in_a_narrow_table_of_jobs(self) -> None:
        assert "alerts" in {column.key for column, _ in fit_columns(JOB_COLUMNS, 58)}
