"""Text, units, scales and bars, as strings."""

from __future__ import annotations

import math

import pytest
from ddptop import style
from ddptop.charts.axis import Scale, log_ticks, time_label, time_step_s, value_label, value_ticks
from ddptop.style import bar, plain

from ddptop_runner.base import units


class TestText:
    @pytest.mark.parametrize(
        ("given", "cells", "expected"),
        [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("", 3, ""), ("日本語", 4, "日…"), ("ab", 0, "")],
    )
    def test_clip_cuts_at_cells(self, given: str, cells: int, expected: str) -> None:
        assert style.clip(given, cells) == expected

    def test_pad_fills_on_either_side(self) -> None:
        assert style.pad("7", 3, ">") == "  7"
        assert style.pad("日", 4) == "日  "

    def test_fit_keeps_styles_and_gives_the_exact_width(self) -> None:
        line = style.line(("abc", "ok"), ("defgh", "bad"))
        assert style.fit(line, 5) == (("abc", "ok"), ("d…", "bad"))
        assert style.width(style.fit(line, 20)) == 20

    def test_spread_drops_the_right_side_when_both_do_not_fit(self) -> None:
        assert plain(style.spread((("left", ""),), (("right", ""),), 12)) == "left   right"
        assert plain(style.spread((("left", ""),), (("right", ""),), 10)) == "left      "

    def test_fill_takes_what_fits_in_order(self) -> None:
        parts = [(("aaa", ""),), (), (("bbb", ""),), (("c", ""),)]
        assert plain(style.fill(parts, 9)) == "aaa   bbb"

    def test_rule_gives_up_its_note_before_its_title(self) -> None:
        assert plain(style.rule("ranks", 24, (("note", "dim"),))) == "── ranks ─────  note ──"[
            :24
        ].replace("─────  note", "──────  note")
        assert plain(style.rule("ranks", 12, (("a long note", "dim"),))) == "── ranks ───"

    @pytest.mark.parametrize("cells", [1, 0, -9])
    def test_wrap_needs_no_room(self, cells: int) -> None:
        assert style.wrap("abc d", cells, 2) == ["a", "…"]

    def test_wrap_breaks_at_spaces_and_says_what_it_cut(self) -> None:
        assert style.wrap("one two three", 7, 5) == ["one two", "three"]
        assert style.wrap("one two three four", 7, 2) == ["one two", "three…"]
        assert style.wrap("abcdefgh", 3, 5) == ["abc", "def", "gh"]


class TestUnits:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (None, "n/a"),
            (0, "0 B"),
            (412 << 20, "412 MiB"),
            (int(61.24 * 2**30), "61.2 GiB"),
            (3 << 40, "3.0 TiB"),
        ],
    )
    def test_size(self, value: int | None, expected: str) -> None:
        assert units.size(value) == expected

    def test_size_of_a_whole_uses_the_whole_s_unit(self) -> None:
        assert units.size_of(612 << 20, 80 << 30) == "0.6/80.0 GiB"
        assert units.size_of(None, 80 << 30) == "n/a"

    @pytest.mark.parametrize(
        ("seconds", "expected"),
        [
            (None, "n/a"),
            (math.inf, "n/a"),
            (-3, "0s"),
            (8.9, "8s"),
            (724, "12m 04s"),
            (12120, "3h 22m"),
            (187_200, "2d 04h"),
        ],
    )
    def test_duration(self, seconds: float | None, expected: str) -> None:
        assert units.duration(seconds) == expected

    def test_duration_in_a_sentence(self) -> None:
        words = [units.duration_in_words(s) for s in (0.44, 25.4, 119, 250, 7300, 13300)]
        assert words == ["0.4 s", "25 s", "119 s", "4 min", "2 h", "3.7 h"]

    @pytest.mark.parametrize(
        ("seconds", "expected"),
        [
            (None, "n/a"),
            (0.0008, "0.8 ms"),
            (0.3124, "312 ms"),
            (1.239, "1.24 s"),
            (48.06, "48.1 s"),
        ],
    )
    def test_step_time(self, seconds: float | None, expected: str) -> None:
        assert units.step_time(seconds) == expected

    @pytest.mark.parametrize(
        ("per_second", "expected"),
        [
            (3.018, "3.02 steps/s"),
            (120.4, "120 steps/s"),
            (0.1, "6 steps/min"),
            (0.001, "3.6 steps/h"),
            (0.0, "0 steps/h"),
            (None, "n/a"),
        ],
    )
    def test_rate_picks_the_unit_that_reads_best(
        self, per_second: float | None, expected: str
    ) -> None:
        assert units.rate(per_second) == expected

    @pytest.mark.parametrize(
        ("value", "state", "expected"),
        [
            (2.12041, "ok", "2.1204"),
            (12.3456, "ok", "12.346"),
            (345.678, "ok", "345.68"),
            (9876.5, "ok", "9876.5"),
            (123456.0, "ok", "1.23e5"),
            (0.00012, "ok", "1.20e-4"),
            (-0.5, None, "-0.5000"),
            (None, "nan", "NaN"),
            (None, "inf", "inf"),
            (math.nan, None, "NaN"),
            (None, None, "n/a"),
            (0.0, "ok", "0.0000"),
        ],
    )
    def test_loss_fits_its_column(
        self, value: float | None, state: str | None, expected: str
    ) -> None:
        assert units.loss(value, state) == expected
        assert len(expected) <= 7

    def test_deviation_is_signed_but_for_nothing(self) -> None:
        assert [units.deviation(v) for v in (0.412, -0.2, 0.001, None)] == [
            "+41%",
            "-20%",
            "0%",
            "n/a",
        ]

    def test_ranks_are_folded(self) -> None:
        assert units.ranks([5, 0, 1, 2, 3, 7]) == "0-3,5,7"
        assert units.ranks([]) == ""


class TestScale:
    @pytest.mark.parametrize(
        ("low", "high", "most", "expected"),
        [
            (0.0, 10.0, 6, [0, 2, 4, 6, 8, 10]),
            (2.03, 8.6, 5, [4, 6, 8]),
            (0.913, 0.957, 5, [0.92, 0.94]),
            (-1.0, 1.0, 3, [-1, 0, 1]),
        ],
    )
    def test_value_ticks_are_1_2_5(
        self, low: float, high: float, most: int, expected: list[float]
    ) -> None:
        assert value_ticks(low, high, most) == pytest.approx(expected)

    def test_values_that_are_almost_the_same_have_one_tick(self) -> None:
        assert value_ticks(0.0, 5e-324, 4) == [0.0]

    def test_log_ticks_thin_out(self) -> None:
        assert log_ticks(1.0, 10.0, 5) == [1.0, 2.0, 5.0, 10.0]
        assert log_ticks(1.0, 1e6, 4) == [1.0, 100.0, 1e4, 1e6]

    @pytest.mark.parametrize(
        ("value", "step", "expected"),
        [(2.0, 1.0, "2"), (2.5, 0.5, "2.5"), (0.92, 0.02, "0.92"), (0, 5, "0"), (2e6, 1e6, "2e6")],
    )
    def test_value_labels_show_the_digits_that_differ(
        self, value: float, step: float, expected: str
    ) -> None:
        assert value_label(value, step) == expected

    @pytest.mark.parametrize(
        ("seconds", "expected"),
        [(0, "0"), (30, "30s"), (-1800, "-30m"), (5400, "1h30"), (93600, "1d02h"), (90, "1m30")],
    )
    def test_time_labels(self, seconds: float, expected: str) -> None:
        assert time_label(seconds) == expected

    def test_time_steps_are_those_of_clocks(self) -> None:
        assert [time_step_s(span, 6) for span in (60, 754, 3600, 7 * 86400)] == [
            10,
            300,
            600,
            172800,
        ]

    def test_a_span_beyond_any_clock_has_no_more_intervals(self) -> None:
        assert 2**62 / time_step_s(2**62, 6) <= 6

    def test_a_scale_clamps(self) -> None:
        axis = Scale(2.0, 4.0, 41)
        assert [axis.dot(v) for v in (1.0, 2.0, 3.0, 4.0, 9.0)] == [0, 0, 20, 40, 40]


class TestBars:
    @pytest.mark.parametrize(
        ("share", "expected"),
        [(0.0, "────"), (0.5, "━━──"), (1.2, "━━━━"), (0.6, "━━╸─"), (None, "····")],
    )
    def test_bars_have_their_width(self, share: float | None, expected: str) -> None:
        assert plain(bar(share, 4)) == expected

    def test_the_filled_part_is_styled(self) -> None:
        assert bar(0.5, 4, "warn") == (("━━", "warn"), ("──", "faint"))
