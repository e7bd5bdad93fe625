"""Devices and table rows as strings, and what is omitted if there is little room."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from ddptop.draw import devices, events, panels
from ddptop.job.figures import ranks
from ddptop.job.figures.jobs import columns_for
from ddptop.job.figures.ranks import columns_of, imbalance_note
from ddptop.job.series import DeviceHistory
from ddptop.style import Line, Span, fit_columns, plain, row_line, width
from tests.support.fake_home import GIB, NOW, ago, event, gpu, snapshot_of, spec_of
from tests.support.own_views import rank, row_of_rank

from ddptop_runner.judge.balance.imbalance import STRAGGLER, RankDeviation
from ddptop_runner.model.snapshot import Alert, GpuProcess, GpuSample, Imbalance


def device_text(sample: GpuSample, cells: int) -> str:
    """Its row in a table that wide."""
    layout = fit_columns(devices.device_columns(cells, [sample]), cells - 1)
    widths = {column.key: size for column, size in layout}
    drawn = row_line(devices.device_row(sample, widths, {}, DeviceHistory()), layout, cells)
    assert width(drawn) == cells
    return plain(drawn).rstrip()


class TestDevices:
    def test_a_device_line(self) -> None:
        process = GpuProcess(pid=1, job="llama-ft", rank=3, mem_used_bytes=40 * GIB)
        one = gpu(0, util_percent=50.0, mem_used_bytes=40 * GIB, power_w=612.4, processes=[process])
        assert device_text(one, 80) == (
            "   0 ■■■···   50% ■■■··· 40.0/80.0 GiB  61 °C 612/700 W  llama-ft rank 3"
        )
        assert device_text(one, 60) == "   0   50% 40.0/80.0 GiB  61 °C  llama-ft rank 3"

    @pytest.mark.parametrize("cells", [30, 44, 57, 80, 96, 120, 200])
    def test_every_width_is_kept(self, cells: int) -> None:
        assert "98%" in device_text(gpu(0, util_percent=98.0), cells)

    def test_unknown_figures_are_n_a_without_a_bar(self) -> None:
        blank = gpu(0, util_percent=None, mem_used_bytes=None, temperature_c=None, power_w=None)
        text = device_text(blank, 80)
        assert text.count("n/a") == 4
        assert "■" not in text and "·" not in text
        assert "0%" not in text

    def test_lost_device_is_shown_as_lost(self) -> None:
        lost = plain(devices.holder_text(gpu(3, lost=True)))
        assert lost == "✗ lost: the driver is not responding"

    def test_trouble_in_words(self) -> None:
        ill = gpu(
            0, xid=[79], ecc_uncorrected=2, throttle_reasons=["power cap", "thermal, by hardware"]
        )
        assert plain(devices.device_trouble(ill)) == "XID 79  2 ECC  ▼ thermal, by hardware"
        assert plain(devices.device_trouble(ill, brief=True)) == "XID 79  2 ECC  ▼ hot"
        assert devices.device_trouble(gpu(0, throttle_reasons=["power cap"])) == ()

    def test_imbalance_is_a_number_and_the_worst_comes_first(self) -> None:
        uneven = Imbalance(memory=0.34, utilization=0.02, power=None, step_time=0.41)
        spec = spec_of("idle", 2, 60)
        assert plain(imbalance_note(snapshot_of(spec, imbalance=uneven))) == (
            "imbalance  step time +41%  memory +34%"
        )
        assert imbalance_note(snapshot_of(spec, imbalance=Imbalance())) == ()
        slow = Alert(id=STRAGGLER, severity="warning", message="", ranks=[1], since=NOW)
        note = imbalance_note(snapshot_of(spec, alerts=[slow], imbalance=Imbalance(memory=0.3)))
        assert note[1:] == (("rank 1 slow", "warn"), ("  ", ""), ("memory +30%", "dim"))


class TestRows:
    def test_a_rank_row(self) -> None:
        row = row_of_rank(
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
            apart=RankDeviation(loss=0.43, step_time=0.5, is_slow=True),
        )
        assert row["device"][0] == "GPU 5"
        assert row["state"] == ("▲ slow", "warn"), "odd in a word, and not by color alone"
        assert row["loss_vs"] == ("+43%", "dim")
        assert row["time_vs"] == ("▲+50%", "warn")
        assert row["last"] == ("3s", "dim")
        assert row["wait"][0] == "n/a"

    def test_the_odd_rank_is_told_by_a_word_that_fits_its_column(self) -> None:
        calm = rank(5, gpu=5, state="running", step_time_s=0.4)
        late = RankDeviation(step_time=0.0, own_time=0.38, is_slow=True)
        row = row_of_rank(calm, NOW, True, late)
        assert row["state"] == ("▲ slow", "warn"), "its steps take as long as the others'"
        assert row["time_vs"] == ("0%", "dim")
        assert row_of_rank(calm, NOW, False, late)["state"][0] == "● running"
        nan = row_of_rank(rank(1, state="running", loss_state="nan"), NOW, True)
        assert nan["state"] == ("✕ loss NaN", "bad")

    def test_an_ended_rank_has_no_last_progress(self) -> None:
        row = row_of_rank(rank(0, last_progress_at=ago(3)), NOW, False)
        assert row["last"][0] == ""

    def test_events_are_in_words_and_only_trouble_is_colored(self) -> None:
        def row(kind: str) -> Mapping[str, Span]:
            return events.folded_row(events.FoldedEvents((event(10, kind, "words"),)))

        assert row("group_restart")["type"] == ("group restart", "busy")
        assert row("group_restart")["message"] == ("words", "")
        assert row("alert")["message"] == ("words", "warn")

    @pytest.mark.parametrize("cells", [55, 62, 79, 119, 199])
    def test_columns_fit_and_the_essential_ones_stay(self, cells: int) -> None:
        jobs = columns_for(cells, ["a" * 40], ["● running"], ["ddptop"])
        kept_of_jobs = {"state", "job", "why"}
        for columns, kept in (
            (columns_of([rank(0, gpu=0)], False), {"rank", "state", "loss"}),
            (jobs, kept_of_jobs),
        ):
            layout = fit_columns(columns, cells)
            assert kept <= {column.key for column, _ in layout}
            if cells >= 79:
                assert sum(size + 1 for _, size in layout) <= cells

    def test_processes_of_others_are_named(self) -> None:
        held = gpu(0, processes=[GpuProcess(pid=1, user="bob", command="python eval.py")])
        assert plain(devices.holder_text(held)) == "bob: python eval.py"
        mine = gpu(0, processes=[GpuProcess(pid=1, job="llama-ft", rank=3)])
        assert plain(devices.holder_text(mine)) == "llama-ft rank 3"
        idle = gpu(0, processes=[], util_percent=0.0, mem_used_bytes=GIB // 2)
        assert plain(devices.holder_text(idle)) == "free"
        assert plain(devices.holder_text(gpu(0, processes=[]))) == "busy: unknown process, 61.2 GiB"
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


def texts(lines: list[Line]) -> list[str]:
    return [plain(line).rstrip() for line in lines]


def test_a_figure_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    added = ranks.RankFigure(
        key="threads",
        read=lambda one: 7,
        title="threads",
        width=7,
        own=ranks.Drop(99),
        foreign=ranks.Drop(99),
        filter="threads",
        plain=ranks.Plain(99, "THREADS"),
    )
    monkeypatch.setattr(ranks, "FIGURES", (*ranks.FIGURES, added))
    one = rank(0)
    for foreign in (False, True):
        assert "threads" in {column.key for column in columns_of([one], foreign)}
    assert row_of_rank(one, NOW, True)["threads"] == ("7", "")
    assert ranks.rank_facts(one).figures["threads"] == 7
    headers, rows, _ = ranks.rank_table([one])
    assert (headers[-1], rows[0][-1]) == ("THREADS", "7")
