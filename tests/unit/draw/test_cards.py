"""Rank cards: their layout, their content, and which rank is the outlier."""

from __future__ import annotations

import re

import pytest
from ddptop.charts import braille
from ddptop.draw.ranks import GAP, LEAST_BOX, around, card_lines, grid, known_rows
from ddptop.job.figures.ranks import oddity, severity, verdict, worst_first
from ddptop.job.series import Points, bin_points
from ddptop.style import plain, width
from tests.support.fake_home import GIB, NOW, ago, gpu
from tests.support.own_views import rank

from ddptop_runner.judge.balance.imbalance import RankDeviation, deviations
from ddptop_runner.model.snapshot import Alert, RankSample

NAMED = [
    Alert(id=id_, severity="warning", ranks=[5], message="m", since=ago(60))
    for id_ in ("straggler",)
]


def of_eight(**more: object) -> list[RankSample]:
    """Ranks on devices; rank 5 is slow, and its loss is far from the others'."""
    values = {
        "state": "running",
        "step": 12_340,
        "data_wait_s": 0.012,
        "gpu_util_percent": 98.0,
        "gpu_mem_used_bytes": 61 * GIB,
        "last_progress_at": ago(2),
    }
    return [
        rank(
            number,
            gpu=number,
            loss=3.7 if number == 5 else 2.1,
            step_time_s=0.446 if number == 5 else 0.301,
            **{**values, **more},
        )
        for number in range(8)
    ]


def drawn(number: int, cells: int, rows: int, *, chosen: bool = False, **more: object) -> list[str]:
    ranks = of_eight(**more)
    gpus = [gpu(index) for index in range(8)]
    apart = deviations(ranks, gpus, NAMED)
    others = around(ranks, gpus, NOW, True, {}, 300.0)
    lines = card_lines(ranks[number], apart[number], others, cells, rows, chosen)
    assert all(width(line) == cells for line in lines)
    assert len(lines) == rows
    return [plain(line) for line in lines]


class TestGrid:
    @pytest.mark.parametrize(
        ("number", "cells", "most", "columns", "rows"),
        [
            (8, 80, 10, 4, 2),
            (8, 120, 18, 4, 2),
            (8, 200, 25, 4, 2),
            (2, 120, 18, 2, 1),
            (4, 60, 9, 2, 2),
            (1, 120, 18, 1, 1),
            (3, 80, 10, 3, 1),
            (4, 80, 9, 4, 1),
        ],
    )
    def test_cards_lie_without_holes(
        self, number: int, cells: int, most: int, columns: int, rows: int
    ) -> None:
        found = grid(number, cells, most, 8)
        assert found is not None
        assert (found.columns, found.rows) == (columns, rows)
        assert found.rows * found.height <= most
        assert found.columns * (found.width + GAP) - GAP <= cells

    def test_a_row_is_left_out_rather_than_a_hole(self) -> None:
        found = grid(8, 120, 16, 9)
        assert found is not None
        assert (found.columns, found.height) == (4, 8)

    def test_where_they_do_not_fit_there_are_none(self) -> None:
        assert grid(8, 60, 8, 8) is None
        assert grid(16, 80, 12, 8) is None


class TestCard:
    @pytest.mark.parametrize("chosen", [False, True])
    @pytest.mark.parametrize("cells", range(LEAST_BOX, 41))
    def test_its_upper_edge_has_no_hole(self, cells: int, chosen: bool) -> None:
        for number in (1, 5):
            top = drawn(number, cells, 8, chosen=chosen)[0]
            assert "GPU" in top or re.search(r"\S ([─━]+)[╮┓]$", top), top
            assert not re.search(r"[─━] +[─━]", top), top

    def test_all_that_is_known(self) -> None:
        text = drawn(1, 40, 8)
        assert text[0] == "╭─ 1 ● running ──────────────── GPU 1 ─╮"
        assert text[1].startswith("│ step   12,340")
        assert text[2].startswith("│ loss   2.1000     0%")
        assert text[3].startswith("│ time   301 ms     0%")
        assert text[4].startswith("│ data    12 ms     4%")
        assert text[5].startswith("│ util      98%     0% ━━━━")
        assert text[6].startswith("│ mem  61.0 GiB     0% ━━━━━━━")
        assert text[7] == "╰" + "─" * 38 + "╯"

    def test_the_odd_one_is_marked_in_words_and_signs(self) -> None:
        text = drawn(5, 40, 8)
        assert "5 ▲ slow" in text[0]
        assert "3.7000   +76%" in text[2]
        assert "446 ms  ▲+48%" in text[3]

    def test_a_slow_one_shows_how_long_it_is_busy_where_steps_take_equally_long(self) -> None:
        ranks = [
            rank(n, state="running", step_time_s=0.4, sync_s=0.02 if n == 3 else 0.12, loss=2.0)
            for n in range(4)
        ]
        others = around(ranks, [], NOW, True, {}, 300.0)
        alert = Alert(id="straggler", severity="warning", ranks=[3], message="m", since=NOW)
        apart = deviations(ranks, [], [alert])
        slow, usual = (
            [plain(line) for line in card_lines(ranks[n], apart[n], others, 40, 8, False)]
            for n in (3, 0)
        )
        assert any(line.startswith("│ busy   380 ms  ▲+25%") for line in slow), slow
        assert any(line.startswith("│ busy   280 ms     0%") for line in usual), usual

    def test_the_chosen_one_has_a_heavy_edge_and_a_mark(self) -> None:
        text = drawn(1, 40, 8, chosen=True)
        assert text[0].startswith("┏━ ▸1 ● running ━")
        assert text[3].startswith("┃") and text[3].endswith("┃")

    def test_narrow_layout_keeps_the_most_important_parts(self) -> None:
        assert drawn(5, 19, 5) == [
            "▌ 5 ▲ slow    GPU 5",
            "▌ loss 3.7000  +76%",
            "▌ time 446 ms ▲+48%",
            "▌ util    98%    0%",
            "▌ mem   61.0G    0%",
        ]

    def test_unknown_is_said(self) -> None:
        text = drawn(1, 40, 8, gpu_util_percent=None, step=None)
        assert not any("step" in line or "util" in line for line in text), "known of no rank"
        ranks = of_eight()
        ranks[1] = rank(1, gpu=1, state="running")
        others = around(ranks, [], NOW, True, {}, 300.0)
        lines = card_lines(ranks[1], RankDeviation(), others, 40, 8, False)
        text = [plain(line) for line in lines]
        assert text[2].startswith("│ loss      n/a")
        assert text[5].startswith("│ util      n/a        ·····"), "a dotted track is no 0%"

    def test_cpu_is_shown_if_nothing_is_known_about_the_training(self) -> None:
        seen = rank(0, gpu=0, gpu_util_percent=97.0, cpu_percent=101.0, rss_bytes=9 * GIB)
        assert known_rows([seen]) == {"util", "cpu"}
        assert known_rows([*of_eight(), seen]) >= {"loss", "time", "util"}
        assert "cpu" not in known_rows([*of_eight(), seen])

    def test_small_curves_share_one_scale(self) -> None:
        points = {
            number: Points(t=[0, 100, 200], low=[], mean=[value] * 3, high=[])
            for number, value in ((0, 1.0), (1, 4.0))
        }
        assert braille.limits(points) == (1.0, 4.0)
        low, high = (
            braille.spark(braille.bridged(bin_points(points[n], 0, 200, 4).mean, 4), 0.0, 4.0)
            for n in (0, 1)
        )
        assert (low, high) == ("⠤⠤", "⠉⠉")

    def test_curves_of_a_young_job_fill_their_room(self) -> None:
        points = {0: Points(t=[1000.0, 1030.0], low=[], mean=[1.0, 1.0], high=[])}
        assert around([], [], NOW, True, points, 300.0).since == 1000.0
        assert around([], [], NOW, True, points, 20.0).since == 1010.0

    def test_a_gap_in_a_curve_stays_one(self) -> None:
        assert braille.spark([0.0, 0.0, None, None, 1.0, 1.0], 0.0, 1.0) == "⣀ ⠉"


class TestOdd:
    def test_who_holds_up_the_others_is_slow_though_its_steps_take_equally_long(self) -> None:
        ranks = [
            rank(n, state="running", step_time_s=0.4, sync_s=0.02 if n == 3 else 0.12, loss=2.0)
            for n in range(4)
        ]
        alert = Alert(id="straggler", severity="warning", ranks=[3], message="m", since=NOW)
        assert oddity(ranks[3], deviations(ranks, [])[3]) is None
        apart = deviations(ranks, [], [alert])
        assert oddity(ranks[3], apart[3]) == ("▲ slow", "warn")
        assert severity(ranks[3], apart[3], True) == 1
        assert oddity(ranks[2], apart[2]) is None

    def test_no_figure_marks_a_rank_that_no_alert_names(self) -> None:
        far = RankDeviation(memory=9.0, utilization=9.0, power=9.0, step_time=9.0, loss=9.0)
        assert oddity(rank(0), far) is None
        assert severity(rank(0, state="running"), far, True) == 0

    def test_a_state_that_needs_somebody_stands_before_any_figure(self) -> None:
        slow = RankDeviation(step_time=0.5, is_slow=True)
        assert verdict(rank(0, state="hung"), slow, NOW, True) == ("‖ hung", "bad")
        assert verdict(rank(0, state="running"), slow, NOW, True) == ("▲ slow", "warn")
        assert verdict(rank(0, state="running"), slow, NOW, False)[0] == "● running"

    def test_worst_first(self) -> None:
        ranks = of_eight()
        ranks[6] = rank(6, gpu=6, state="hung")
        alert = Alert(id="straggler", severity="warning", ranks=[5], message="m", since=NOW)
        order = worst_first(ranks, deviations(ranks, [], [alert]), True)
        assert [one.rank for one in order[:2]] == [6, 5]
