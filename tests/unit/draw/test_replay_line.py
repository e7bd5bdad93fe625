"""The timeline of a replay, as text."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from ddptop.draw.timeline import (
    Position,
    bar_line,
    clock_line,
    column,
    explain_timeline,
    moment_at,
    moment_label,
    timeline_lines,
    words_line,
)
from ddptop.job.attempts import Course, Mark, marks_of, neighbor, opening
from ddptop.style import plain, width
from msgspec.structs import replace

from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.model.snapshot import Event

NOON = 1_773_489_600.0
"""2026-03-14 12:00:00 UTC."""
COURSE = Course(
    first=NOON,
    last=NOON + 600,
    recorded=((int(NOON), int(NOON) + 300), (int(NOON) + 360, int(NOON) + 601)),
    marks=(
        Mark(NOON, "attempt", "attempt 0: 2 ranks started", 0),
        Mark(NOON + 100, "checkpoint", "rank 0 saved a.pt"),
        Mark(NOON + 200, "checkpoint", "rank 0 saved b.pt"),
        Mark(NOON + 290, "alert", "no rank made progress"),
        Mark(NOON + 300, "hang", "The job hung."),
        Mark(NOON + 300.4, "attempt", "attempt 1: 2 ranks started", 1),
        Mark(NOON + 600, "end", "finished"),
    ),
)
HERE = Position(at=NOON + 450, width_s=1, attempt=1, attempt_started=NOON + 300)


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("cells", range(1, 9))
def test_a_line_without_room_is_empty(cells: int) -> None:
    lines = timeline_lines(COURSE, HERE, cells, 4)
    assert len(lines) == 4 and max(map(width, lines)) <= cells


def test_the_bar_shows_what_lies_behind_gaps_and_what_happened():
    text = plain(bar_line(COURSE, HERE, 63))
    assert text == " 0━━━━━━━━━c━━━━━━━━━c━━━━━━━━!H·····━━━━━━━━━┃──────────────E "


def test_the_position_stands_on_a_mark_without_hiding_it():
    line = bar_line(COURSE, replace(HERE, at=NOON + 300), 63)
    assert ("H", "picked") in line


def test_of_several_marks_in_one_cell_the_worst_is_drawn():
    drawn = plain(bar_line(COURSE, replace(HERE, at=NOON), 63))
    assert drawn[1 + column(COURSE, NOON + 300, 61)] == "H"


def test_every_row_fits_and_the_legend_names_what_is_there():
    for cells in (40, 60, 80, 120, 200):
        lines = timeline_lines(COURSE, HERE, cells, 4)
        assert len(lines) == 4 and all(width(line) == cells for line in lines)
    legend = plain(timeline_lines(COURSE, HERE, 120, 4)[0])
    assert "H hang" in legend and "c checkpoint" in legend and "failure" not in legend
    assert len(timeline_lines(COURSE, HERE, 80, 3)) == 3


def test_the_clock_runs_below_the_bar():
    text = plain(clock_line(COURSE, HERE, 63))
    assert text.startswith(" 12:00:00") and text.rstrip().endswith("12:10:00")
    assert text[1 + column(COURSE, HERE.at, 61)] == "▲" and "12:05" in text


def test_history_of_several_days_shows_dates():
    long = replace(COURSE, last=NOON + 5 * 86400)
    assert moment_label(long, NOON + 86400) == "Sun 15 Mar 12:00:00"
    assert moment_label(COURSE, NOON) == "12:00:00"
    assert "16 Mar" in plain(clock_line(long, HERE, 120))


@pytest.mark.parametrize(
    ("position", "words"),
    [
        (
            HERE,
            ("‖ paused", "12:07:30", "attempt 1", "2m 30s after", "next: end in 2m"),
        ),
        (replace(HERE, playing=True, speed=60), ("▶ playing 60×",)),  # noqa: RUF001
        (replace(HERE, width_s=None), ("no data recorded at that time",)),
        (replace(HERE, width_s=10), ("resolution 10s",)),
        (replace(HERE, at=NOON + 250), ("next: alert in 40s",)),
    ],
)
def test_the_words_say_where_one_is(position, words):
    text = plain(words_line(COURSE, position, 120))
    for one in words:
        assert one in text
    assert " in " not in text.partition("next:")[0], "the header has the elapsed time"
    assert "12:0" in plain(words_line(COURSE, position, 40))


def test_the_newest_moment_of_a_live_job_is_said_to_be_that():
    position = replace(HERE, at=COURSE.last)
    assert "latest sample" in plain(words_line(replace(COURSE, live=True), position, 120))
    assert "latest" not in plain(words_line(COURSE, position, 120))


@pytest.mark.parametrize(
    ("at", "direction", "expected"),
    [
        *[(0, 1, 100), (100, 1, 200), (299, 1, 300), (300, 1, 600), (600, 1, None)],
        *[(600, -1, 300.4), (300, -1, 290), (50, -1, 0), (0, -1, None)],
    ],
)
def test_the_next_mark_is_at_least_a_second_away(at, direction, expected):
    found = neighbor(COURSE.marks, NOON + at, direction)
    assert (None if found is None else pytest.approx(found.at - NOON)) == expected


def test_troubles_are_found_among_all_marks():
    assert neighbor(COURSE.marks, NOON, 1, ("failure", "hang")) == COURSE.marks[4]
    assert neighbor(COURSE.marks, NOON + 301, 1, ("failure", "hang")) is None


def test_a_replay_begins_before_the_last_trouble_or_at_the_end():
    assert opening(COURSE) == NOON + 295
    calm = replace(COURSE, marks=tuple(m for m in COURSE.marks if m.kind != "hang"))
    assert opening(calm) == COURSE.last


@pytest.mark.parametrize("cells", [30, 80, 200])
def test_a_click_goes_to_what_is_drawn_there(cells):
    assert moment_at(COURSE, 0, cells) == COURSE.first
    assert moment_at(COURSE, cells - 1, cells) == COURSE.last
    for share in (0.0, 0.3, 0.5, 1.0):
        at = COURSE.first + share * 600
        x = 1 + column(COURSE, at, cells - 2)
        assert abs(moment_at(COURSE, x, cells) - at) <= 600 / (cells - 3)


def test_marks_are_made_of_events():
    kinds = ["launched", "attempt_started", "hang_suspected", "failure", "rank_exited", "stopped"]
    events = [
        Event(ts=utc_from_unix(NOON + i), type=kind, message=kind, attempt=0)
        for i, kind in enumerate(kinds)
    ]
    found = marks_of(events)
    assert [mark.kind for mark in found] == ["attempt", "alert", "failure", "end"]
    assert found[0].letter == "0"


def test_an_empty_history_is_drawn_as_well():
    lines = timeline_lines(Course(NOON, NOON), Position(NOON), 80, 4)
    assert len(lines) == 4 and all(width(line) == 80 for line in lines)


def test_every_letter_is_explained():
    text = dict(explain_timeline(COURSE))["timeline"]
    for letter in ("F: a failure", "H: a hang", "c: a checkpoint", "E: the job's end"):
        assert letter in text
