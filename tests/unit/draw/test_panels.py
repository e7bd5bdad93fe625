"""Text, headers, and paragraphs of the panels, as strings."""

from __future__ import annotations

import msgspec
import pytest
from ddptop.commands import status_watch
from ddptop.commands.status import describe
from ddptop.draw import header as job_header
from ddptop.draw import panels
from ddptop.draw.devices import device_trouble
from ddptop.draw.panels import unreadable_line
from ddptop.job.figures.ranks import columns_of
from ddptop.job.progress import steps_per_s
from ddptop.job.record import Job
from ddptop.job.series import LossTrend
from ddptop.job.status import (
    STALE_S,
    Need,
    age_words,
    attention,
    event_style,
    job_state,
    rank_state,
)
from ddptop.style import plain, width
from msgspec.structs import replace
from tests.support import fake_home
from tests.support.fake_foreign import foreign_job
from tests.support.fake_home import NOW, ago, snapshot_of, spec_of
from tests.support.own_views import rank, row_of_rank, view_of

from ddptop_runner.foreign.types import Unreadable
from ddptop_runner.model.snapshot import Alert, Cause, Checkpoint, Event, NodeSnapshot
from ddptop_runner.model.words import JobState, Phase, RankState


def aged(age_s: float) -> Job:
    return view_of(step=12, ts=ago(age_s))


class TestWords:
    @pytest.mark.parametrize("state", JobState.__args__)
    def test_every_job_state_has_a_symbol_and_its_word(self, state: str) -> None:
        text, style = job_state(state)
        assert text.endswith(f" {state}")
        assert style in ("ok", "busy", "warn", "bad", "dim")

    @pytest.mark.parametrize("state", RankState.__args__)
    def test_every_rank_state_has_a_symbol_and_its_word(self, state: str) -> None:
        assert rank_state(state)[0].endswith(f" {state}")

    @pytest.mark.parametrize("phase", Phase.__args__)
    def test_what_a_rank_does_fits_into_its_column(self, phase: str) -> None:
        (column,) = [column for column in columns_of([], False) if column.key == "state"]
        assert len(rank_state("running", phase=phase)[0]) <= column.width

    def test_failed_rank_shows_how_it_failed(self) -> None:
        assert rank_state("failed", signal="SIGKILL")[0] == "✗ SIGKILL"
        assert rank_state("failed", exit_code=1)[0] == "✗ exit 1"
        assert rank_state("stopped", signal="SIGTERM")[0] == "■ stopped"

    def test_a_state_of_a_newer_ddptop_is_shown_as_it_is(self) -> None:
        assert job_state("frozen") == ("? frozen", "dim")

    def test_stale_values_are_labeled_in_words(self) -> None:
        assert [age_words(aged(s)) for s in (STALE_S, 12.7, 600)] == [
            "",
            "last update 13 s ago",
            "last update 10 min ago",
        ]

    def test_the_list_of_jobs_and_the_verb_agree_on_what_is_old(self) -> None:
        for age_s, old in ((STALE_S - 0.1, False), (STALE_S + 0.1, True)):
            view = aged(age_s)
            assert ("last update" in str(status_watch.job_lines(view, 160))) == old
            assert ("last update" in describe(view)) == old
            assert (attention(view, NOW).need == Need.WARNING) == old
            assert ("last update" in "".join(header(view))) == old


def header(view: Job, cells: int = 120, trend: LossTrend | None = None) -> list[str]:
    lines = job_header.header_lines(view, NOW, cells, trend)
    assert all(width(line) in (0, cells) for line in lines)
    return [plain(line).rstrip() for line in lines]


def running(**more: object) -> Job:
    values = {
        "step": 12339,
        "total_steps": 50_000,
        "eta_s": 12470.0,
        "attempt": 1,
        "restarts_used": 1,
        "restarts_left": 2,
        "ranks": [
            rank(0, loss=2.0, steps_per_s=3.5, last_progress_at=ago(1)),
            rank(1, loss=2.2, steps_per_s=3.0, last_progress_at=ago(2)),
        ],
    }
    return view_of(**{**values, **more})


class TestHeader:
    def test_a_row_for_each_question(self) -> None:
        alive, far, learning = header(running(), 130, LossTrend("falling", 433.0, -0.031))
        assert alive.startswith(" status    ● running   3 steps/s   last step 2s ago   ")
        assert alive.endswith(
            "  attempt 1   restarts 1 used, 2 left   world size 2   guarded   no problems"
        )
        assert far.startswith(" progress  step 12,339 / 50,000  ━━━━━━━")
        assert far.endswith("─  24.7%   ETA 3h 27m   elapsed 1h 12m")
        assert learning == " loss      2.1000   ↘ falling, -3.1% in 7m"

    @pytest.mark.parametrize(
        ("changes", "is_calm"),
        [
            ({}, True),
            ({"alerts": [Alert(id="a", severity="info", message="m", since=NOW)]}, False),
            ({"state": "stopped"}, False),
            ({"step": None}, False),
        ],
    )
    def test_no_problems_are_told_only_of_a_job_that_trains(self, changes, is_calm) -> None:
        shown = "\n".join(header(running(**changes), 200))
        assert ("no problems" in shown) is is_calm
        foreign = replace(running(**changes), foreign=foreign_job("train.py", 2))
        assert ("no problems detected" in "\n".join(header(foreign, 200))) is is_calm

    def test_beside_an_exploding_loss_no_trend_is_told(self) -> None:
        alert = Alert(id="exploding-loss", severity="warning", message="m", since=NOW)
        shown = header(running(alerts=[alert]), 130, LossTrend("falling", 433.0, -0.031))
        assert "falling" not in "".join(shown)

    def test_facts_get_a_row_of_their_own_where_there_is_room_below_only(self) -> None:
        alive, _, _, facts = header(running(), 80)
        assert alive == " ● running   3 steps/s   last step 2s ago"
        assert facts == " attempt 1   restarts 1 used, 2 left   world size 2   guarded"
        lines = job_header.header_lines(running(), NOW, 80, None, 3)
        assert plain(lines[0]).rstrip().endswith("   attempt 1   restarts 1 used, 2 left")
        assert len(lines) == 3

    @pytest.mark.parametrize("cells", [80, 120])
    def test_a_queued_job_has_no_steps_to_tell_of(self, cells: int) -> None:
        alert = Alert(id="queued", severity="info", message="waiting for GPU 0", since=ago(90))
        view = view_of(state="queued", attempt=0, alerts=[alert])
        top, middle, *facts = (
            plain(line).rstrip() for line in job_header.header_lines(view, NOW, cells)
        )
        assert "○ queued   waited 1m 30s" in top
        assert middle.strip() == "not started: waiting for GPU 0"
        assert "attempt 0" in "".join((top, *facts))

    def test_a_narrow_row_gives_up_the_elapsed_time_before_the_bar(self) -> None:
        far = header(running(), 60)[1]
        assert "elapsed" not in far
        assert far.endswith("  24.7%   ETA 3h 27m")
        assert "━━━━──" in far

    def test_unknown_is_said_and_never_zero(self) -> None:
        _, far, learning = header(view_of(step=12, attempt_started_at=ago(400)))
        assert far.startswith(" progress  step 12   total steps unknown  ")
        assert learning == " loss      n/a"

    def test_old_figures_and_a_missing_guard_come_first(self) -> None:
        view = replace(view_of(ts=ago(42)), guarded=False)
        facts = "▲ last update 42 s ago   ▲ unguarded: its guardian is gone   attempt 0"
        assert facts in "".join(header(view))

    def test_another_host_is_named(self) -> None:
        view = replace(view_of(), on_other_host=True, guarded=None)
        assert "on host node-a" in "".join(header(view))
        assert "guardian on another host" in "".join(header(view))

    def test_nan_loss_is_detected_among_finite_ones(self) -> None:
        bad = rank(1, loss_state="nan", loss_bad_since=1203, loss_last_good=2.31)
        view = view_of(ranks=[rank(0, loss=2.0, loss_state="ok"), bad])
        line = job_header.header_lines(view, NOW, 120)[2]
        assert ("NaN", "bad") in line
        assert ("✕ NaN since step 1,203 on rank 1, last finite 2.3100", "bad") in line

    def test_loss_of_several_optimizers_names_its_optimizer(self) -> None:
        gan = rank(0, loss=0.7, losses={"Adam 1": 0.7, "Adam 2": 1.9})
        learning = header(view_of(ranks=[gan]), trend=LossTrend("rising", 60, 0.2))[2]
        assert learning == " loss      Adam 1 0.7000   ↗ rising, +20% in 1m   Adam 2 1.9000"

    def test_ended_job_shows_when_it_ended(self) -> None:
        alive, far, *_ = header(view_of(state="finished", ended_at=ago(60), step=3))
        assert "ended Mar 14 11:59:00" in alive
        assert "ETA" not in far and "ran 1h 11m" in far

    def test_who_is_late_is_named(self) -> None:
        late = [
            rank(0, state="running", last_progress_at=ago(1)),
            rank(1, state="hung", last_progress_at=ago(90)),
        ]
        assert plain(job_header.last_step(late, NOW)) == "last step 1m ago on rank 1"
        assert job_header.last_step([rank(0)], NOW) == ()

    def test_the_pace_is_the_slowest_rank_s(self) -> None:
        assert steps_per_s([rank(steps_per_s=3.0), rank(steps_per_s=2.0), rank()]) == 2.0


class TestWhatHoldsAJobUp:
    def snapshot(self, **more: object) -> NodeSnapshot:
        return snapshot_of(spec_of("llama-ft", 2, 4330), **more)

    def test_when_the_next_attempt_starts_and_why_then(self) -> None:
        why = "2 in a row without a step"
        waiting = self.snapshot(attempt=2, policy=why, restart_at=ago(-9))
        said = plain(job_header.restart_line(waiting, NOW)).rstrip()
        assert said == f"↻ attempt 3 starts in 9s  {why}"
        due = msgspec.structs.replace(waiting, restart_at=None, policy=None)
        assert plain(job_header.restart_line(due, NOW)).rstrip() == "↻ attempt 3 starts now"

    def test_the_last_checkpoint(self) -> None:
        def field(**more: object) -> str:
            saved = Checkpoint(path="/c/last.pt", at=ago(64), **more)
            snapshot = self.snapshot(checkpoint=saved, attempt=1, step=127)
            return plain(job_header.checkpoint_field(snapshot, NOW))

        assert field(step=120, attempt=1, global_step=1120) == "checkpoint step 1,120, 1m ago"
        assert field(step=120, attempt=1) == "checkpoint step 120 of this attempt, 1m ago"
        assert field(step=120, attempt=0) == "checkpoint step 120 of attempt 0, 1m ago"
        assert field(global_step=1120) == "checkpoint step 1,120, 1m ago"
        assert field() == "checkpoint 1m ago"
        assert job_header.checkpoint_field(self.snapshot(), NOW) == ()

    def test_a_gpu_set_aside_is_in_the_header(self) -> None:
        view = view_of(self.snapshot(set_aside=[2]))
        assert "▲ GPU 2 set aside" in plain(job_header.header_lines(view, NOW, 160)[0])

    def test_a_phase_takes_the_state_s_place_once_it_lasts(self) -> None:
        one = rank(state="running", phase="evaluation", phase_since=ago(3))
        assert row_of_rank(one, NOW, live=True)["state"] == ("◍ eval", "busy")
        assert row_of_rank(one, ago(2), live=True)["state"][0] == "● running"
        assert row_of_rank(one, NOW, live=False)["state"][0] == "● running"
        quiet = msgspec.structs.replace(one, state="quiet")
        assert row_of_rank(quiet, NOW, live=True)["state"][0] == "◌ quiet"


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
        assert lines[0].rstrip().endswith("for 3m")
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
            "▌ ✗ rank 3 failed first (exit 1)",
            "▌ RuntimeError: [boom]",
            "▌ │ step 1",
            "▌ │ RuntimeError: [boom]",
            "▌ saved  ev/x   i evidence",
        ]

    def test_little_room_keeps_what_matters(self) -> None:
        assert self.cause(3, ["a", "b", "c"]) == [
            "▌ ✗ rank 3 failed first (exit 1)",
            "▌ RuntimeError: [boom]",
            "▌ saved  ev/x   i evidence",
        ]

    @pytest.mark.parametrize("rows_", range(4, 11))
    def test_the_paragraph_comes_before_last_words(self, rows_: int) -> None:
        cause = Cause(kind="exception", rank=3, exit_code=1, summary="why " * 60, evidence="ev/x")
        lines = [plain(x) for x in panels.cause_lines("failed", cause, ["last"] * 9, 60, rows_)]
        of_why = sum("why" in text for text in lines)
        assert of_why == (rows_ - 2 if rows_ <= 6 else min(5, rows_ // 2))
        assert "i evidence" in lines[-1]

    def test_what_to_do_now_is_its_last_row(self) -> None:
        cause = Cause(kind="exception", rank=3, exit_code=1, summary="why", evidence="ev/x")
        lines = panels.cause_lines("failed", cause, ["last"] * 9, 60, 6, "fix a.py:3; R again")
        assert plain(lines[-1]).rstrip() == "▌ next  fix a.py:3; R again   i evidence"

    def test_hang_is_reported_as_a_hang(self) -> None:
        def first(rank: int | None = None, signal: str | None = None) -> str:
            cause = Cause(kind="hang", rank=rank, signal=signal, summary="The job hung.")
            return plain(panels.cause_lines("failed", cause, [], 60, 6)[0]).rstrip()

        assert first(rank=2) == "▌ ✗ rank 2 hung first"
        assert first(rank=2, signal="SIGKILL") == "▌ ✗ rank 2 hung first", "that only ended it"
        assert first() == "▌ ✗ the job hung"

    @pytest.mark.parametrize("cells", [40, 60, 80, 120])
    @pytest.mark.parametrize("now", ["", "show where each rank stood " * 9])
    def test_the_key_stays_where_the_text_before_it_is_too_long(self, cells: int, now: str) -> None:
        cause = Cause(kind="hang", rank=3, summary="why", evidence="/home/ada/" * 20)
        last = plain(panels.cause_lines("failed", cause, [], cells, 6, now)[-1]).rstrip()
        assert last.endswith("…   i evidence")
        assert len(last) < cells

    def test_what_to_do_now_may_take_two_rows(self) -> None:
        cause = Cause(kind="hang", rank=3, summary="why " * 60, evidence="e")
        now = "read the stacks (press i) to see where each rank was; press R to relaunch"
        lines = [plain(one).rstrip() for one in panels.cause_lines("failed", cause, [], 60, 6, now)]
        assert lines[-2].startswith("▌ next  read the stacks")
        assert lines[-1] == "▌       each rank was; press R to relaunch   i evidence"

    def test_why_an_attempt_of_a_job_that_goes_on_failed(self) -> None:
        cause = Cause(
            kind="signal", rank=1, summary="Rank 1 was killed, " * 3 + "so.", evidence="e"
        )
        lines = panels.setback_lines(0, cause, 60, 2)
        assert all(width(line) == 60 for line in lines)
        assert [plain(line).rstrip() for line in lines] == [
            "▌ attempt 0 failed: Rank 1 was killed, Rank",
            "▌ 1 was killed, Rank 1 was killed, so.   i: evidence",
        ]
        cut = plain(panels.setback_lines(None, cause, 40, 1)[0]).rstrip()
        assert cut == "▌ the last attempt…   i: evidence"


def test_an_exit_with_status_0_is_no_reason_to_look() -> None:
    def style(exit_code: int | None) -> str:
        exited = Event(ts=NOW, type="rank_exited", rank=1, exit_code=exit_code, message="exited")
        return event_style(exited)

    assert [style(0), style(1), style(None)] == ["dim", "warn", "warn"]


def test_amber_is_for_what_somebody_should_act_on() -> None:
    calm = ("queued", "starting", "running", "restarting", "stopping", "finished", "stopped")
    assert {job_state(state)[1] for state in calm} <= {"dim", "busy", "ok"}
    hidden = Unreadable(1, "root", None, (), "its environment belongs to root")
    assert not {"warn", "bad"} & {style for _, style in unreadable_line([hidden], 120)}
    noted = fake_home.gpu(0, note="in MIG mode with no instances")
    assert not {"warn", "bad"} & {style for _, style in device_trouble(noted)}


def test_the_latest_validation_loss_is_a_number_in_the_header() -> None:
    ranks = [rank(n, metrics={"val_loss": 2.5 + n / 10, "lr": 0.1}) for n in range(3)]
    assert "val_loss 2.6000" in header(running(ranks=ranks))[2]
    assert "lr" not in header(running(ranks=ranks))[2]
