"""Draws the timeline of a replay: a job's history, its events, and the position. Pure."""

from __future__ import annotations

import datetime as dt

import msgspec

from ddptop.charts.axis import label_line, time_step_s
from ddptop.job.attempts import MARKS, Course, Mark, neighbor
from ddptop.job.help import about
from ddptop.style import Line, Span, fill, fit, line, merged, rule, spread, width
from ddptop_runner.base.units import duration, plural

SPEEDS = (1, 10, 60, 600)
"""Seconds of history per second of replay."""


_MARGIN = 1
TICK_CELLS = 14


class Position(msgspec.Struct, frozen=True):
    """The position of the replay."""

    at: float
    """Unix seconds."""
    width_s: int | None = None
    """Resolution of the samples at this time; None if nothing was recorded."""
    playing: bool = False
    speed: int = SPEEDS[0]
    attempt: int | None = None
    attempt_started: float | None = None
    """Unix seconds."""


def timeline_lines(course: Course, position: Position, cells: int, rows: int) -> list[Line]:
    """The timeline: a description, the bar, and its clock; with a fourth row, a legend first."""
    lines = [
        words_line(course, position, cells),
        bar_line(course, position, cells),
        clock_line(course, position, cells),
    ]
    if rows > len(lines):
        lines.insert(0, rule("timeline", cells, legend(course)))
    return lines[:rows]


def legend(course: Course) -> Line:
    """The letters on this timeline."""
    kinds = {mark.kind for mark in course.marks}
    spans: list[Span] = []
    for kind, (letter, style, _) in MARKS.items():
        if kind not in kinds:
            continue
        if spans:
            spans.append(("  ", ""))
        spans.append((letter or "0 1 2", style))
        spans.append((f" {kind}", "dim"))
    return tuple(spans)


def column(course: Course, at: float, cells: int) -> int:
    """The bar's cell for a time."""
    share = (at - course.first) / course.span_s
    return min(cells - 1, max(0, int(share * (cells - 1) + 0.5)))


def moment_at(course: Course, x: int, cells: int) -> float:
    """The time at cell `x` of a widget `cells` wide."""
    inside = cells - 2 * _MARGIN
    share = min(1.0, max(0.0, (x - _MARGIN) / max(1, inside - 1)))
    return course.first + share * course.span_s


def bar_line(course: Course, position: Position, cells: int) -> Line:
    """The bar: past, future, gaps, marks, and the position."""
    inside = cells - 2 * _MARGIN
    here = column(course, position.at, inside)
    drawn = _drawn(course, inside)
    per_cell = course.span_s / max(1, inside - 1)
    spans: list[Span] = [(" " * _MARGIN, "")]
    for x in range(inside):
        begin = course.first + (x - 0.5) * per_cell
        if (mark := drawn.get(x)) is not None:
            text, style = mark.letter[-1], MARKS[mark.kind][1]
        elif course.is_recorded(begin, begin + per_cell):
            text, style = ("━", "busy") if x <= here else ("─", "dim")
        else:
            text, style = "·", "faint"
        if x == here:
            text, style = ("┃" if mark is None else text), "picked"
        spans.append((text, style))
    return fit(merged(spans), cells)


def _drawn(course: Course, inside: int) -> dict[int, Mark]:
    """Marks by cell; if several share a cell, the most important one."""
    order = list(MARKS)
    found: dict[int, Mark] = {}
    for mark in course.marks:
        x = column(course, mark.at, inside)
        if x not in found or order.index(mark.kind) < order.index(found[x].kind):
            found[x] = mark
    return found


def words_line(course: Course, position: Position, cells: int) -> Line:
    """Whether the replay is playing, its time, where that is in the run, and what comes next."""
    playing = f" ▶ playing {position.speed}×"  # noqa: RUF001
    state = (playing, "ok") if position.playing else (" ‖ paused", "dim")
    parts: list[Line] = [line(state), line((moment_label(course, position.at), "strong"))]
    if position.attempt is not None:
        parts.append(line((f"attempt {position.attempt}", "dim")))
    if position.width_s is None:
        parts.append(line(("no data recorded at that time", "dim")))
    elif position.width_s > 1:
        parts.append(line((f"resolution {duration(position.width_s)}", "dim")))
    if position.attempt_started is not None and position.at >= position.attempt_started:
        old = duration(position.at - position.attempt_started)
        parts.append(line((f"{old} after the attempt started", "dim")))
    following = next_line(course, position)
    if width(fill(parts[:2], cells)) + width(following) + 2 > cells:
        following = ()
    left = fill(parts, cells - width(following) - 2)
    return fit(spread(left, following, cells), cells)


def next_line(course: Course, position: Position) -> Line:
    """What happens next, and how soon."""
    following = neighbor(course.marks, position.at, 1)
    if following is None:
        return line(("live: ", "ok"), ("latest sample ", "dim")) if course.live else ()
    name = f"attempt {following.letter}" if following.kind == "attempt" else following.kind
    return line(
        ("next: ", "dim"),
        (name, MARKS[following.kind][1]),
        (f" in {duration(following.at - position.at)} ", "dim"),
    )


def clock_line(course: Course, position: Position, cells: int) -> Line:
    """Times of day under the bar, and the position."""
    inside = cells - 2 * _MARGIN
    if inside < 1:
        return ()
    labels = [(column(course, at, inside), label) for at, label in _ticks(course, inside)]
    here = column(course, position.at, inside)
    return fit(line(" " * _MARGIN, *label_line(inside, here, labels)), cells)


def _ticks(course: Course, inside: int) -> list[tuple[float, str]]:
    """Labels for the two ends, then for round times of day between them."""
    step_s = time_step_s(course.span_s, max(1, inside // TICK_CELLS))
    style = "%d %b" if step_s >= 86400 else "%H:%M" if step_s >= 60 else "%H:%M:%S"
    offset = _local(course.first).utcoffset()
    shift = 0.0 if offset is None else offset.total_seconds()
    start = -(-(course.first + shift) // step_s) * step_s - shift
    count = int((course.last - start) // step_s) + 1
    ends = [(course.first, _local(course.first)), (course.last, _local(course.last))]
    exact = "%H:%M:%S" if course.span_s < 3600 else "%H:%M"
    return [
        *((at, f"{moment:{exact}}") for at, moment in ends),
        *((start + i * step_s, f"{_local(start + i * step_s):{style}}") for i in range(count)),
    ]


def moment_label(course: Course, at: float) -> str:
    """A time of day, with the date if the history spans several days."""
    moment = _local(at)
    if _local(course.first).date() == _local(course.last).date():
        return f"{moment:%H:%M:%S}"
    return f"{moment:%a %d %b %H:%M:%S}"


def explain_timeline(course: Course | None) -> list[tuple[str, str]]:
    """Explain the letters, and how much is recorded."""
    letters = "; ".join(f"{letter or '0 1 2'}: {meaning}" for letter, _, meaning in MARKS.values())
    found = [("timeline", f"{letters}."), *about("timeline")]
    if course is not None:
        marks = plural(len(course.marks), "mark")
        found.append(("this run", f"{duration(course.span_s)} recorded, with {marks}."))
    return found


def _local(at: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(at, dt.timezone.utc).astimezone()
