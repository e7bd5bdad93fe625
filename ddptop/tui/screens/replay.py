"""The replay screen: the job screen at any time of its history, with a timeline below."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from msgspec.structs import replace
from textual import on
from textual.app import ComposeResult
from textual.message import Message
from textual.screen import Screen
from textual.timer import Timer

from ddptop.draw.timeline import (
    SPEEDS,
    Position,
    explain_timeline,
    moment_at,
    moment_label,
    timeline_lines,
)
from ddptop.job.attempts import Course, neighbor
from ddptop.job.help import guilty
from ddptop.job.keys import SCREENS
from ddptop.job.record import Job
from ddptop.sources.job import JobAnswer, JobDetail
from ddptop.sources.past import ReplayAnswer, ReplayQuery
from ddptop.sources.query import Look
from ddptop.style import Line, line
from ddptop.tui.keymap import bindings
from ddptop.tui.messages import QueryChanged
from ddptop.tui.screens.job import JobScreen
from ddptop.tui.widgets.charts import ChartWidget
from ddptop.tui.widgets.lines import DraggedView, Panel
from ddptop.tui.widgets.ranks import RankPanel
from ddptop_runner.model import run_step


class TimeLine(DraggedView, Panel, can_focus=True):
    """A bar of the whole history; a click or drag goes to a time."""

    DEFAULT_CSS = """
    TimeLine { height: 3; dock: bottom; margin: 0 0 1 0; background: $surface; }
    TimeLine .line--picked { color: $background; background: $warning; text-style: bold; }
    TimeLine:focus { background-tint: $foreground 3%; }
    """

    @dataclass
    class Jumped(Message):
        """Go to another time."""

        at: float
        """Unix seconds."""

    def __init__(self) -> None:
        super().__init__(id="timeline")
        self._course: Course | None = None
        self.show_text("reading history...")

    def show(self, course: Course, position: Position) -> None:
        """Show a history and the position in it."""
        self._course = course
        self.paint(lambda cells, rows: timeline_lines(course, position, cells, rows))

    def show_text(self, words: str) -> None:
        """Show why there is nothing to show."""
        self._course = None
        self.paint(lambda _cells, _rows: [line((f" {words}", "warn"))])

    def explain(self) -> list[tuple[str, str]]:
        """Help on the letters."""
        return explain_timeline(self._course)

    def dragged_to(self, x: int) -> None:
        """Go there."""
        if self._course is not None:
            self.post_message(self.Jumped(moment_at(self._course, x, self.size.width)))


FRAME_S = 0.25
"""How often the screen changes during playback."""
LEAP_S = 60.0
LEAP_RECORDS = 10


class ReplayScreen(JobScreen, inherit_bindings=False):
    """Shows a job as it was at any time of its history."""

    DEFAULT_CSS = """
    /* the timeline has a legend where there is room */
    ReplayScreen.-tall #timeline { height: 4; }
    """

    KEYS = "replay"
    BINDINGS = [*Screen.BINDINGS, *bindings(SCREENS[KEYS])]
    AUTO_FOCUS = "#timeline"

    def __init__(self, job: str, at: float | None = None, *, readonly: bool = False) -> None:
        """Replay `job` from unix time `at`; None starts at the latest failure or hang."""
        super().__init__(job, readonly=readonly)
        self.at = at
        """The time shown, in unix seconds; None until the history is read."""
        self.playing = False
        self.speed = SPEEDS[1]
        """Seconds of history per second of playback."""
        self.timeline = TimeLine()
        self._title.show(f"REPLAY: {job}", ())
        self._timer: Timer | None = None
        self._frame_at_s = 0.0

    @property
    def subject(self) -> tuple[object, ...]:
        """The job and the time shown."""
        return (self.job, self.at)

    def compose(self) -> ComposeResult:
        """The job screen's panels, and the timeline above the keys."""
        for widget in super().compose():
            if widget is self._keys:
                yield self.timeline
            yield widget

    def focus_main(self) -> None:
        """Focus the timeline, not the ranks."""
        self.timeline.focus()

    @property
    def replay(self) -> ReplayAnswer | None:
        """The latest answer."""
        return self.answer if isinstance(self.answer, ReplayAnswer) else None

    @property
    def course(self) -> Course | None:
        """The course of the whole run; None until it is read."""
        return None if self.replay is None else self.replay.course

    @property
    def view(self) -> Job | None:
        """The job at the time shown."""
        return None if self.detail is None else self.detail.view

    def needs(self) -> ReplayQuery:
        """The query for the time shown, with the job screen's chart."""
        return ReplayQuery(job=self.job, chart=super().needs().chart, at=self.at)

    def place(self, look: Look) -> Line:
        """The time shown, for the title."""
        if self.course is None or self.at is None:
            return super().place(look)
        return line(("state at ", "dim"), (moment_label(self.course, self.at), "busy"))

    def show(self, answer: JobAnswer) -> None:
        """Update every panel."""
        if (replay := self.replay) is None:
            return
        if replay.detail is None or replay.at is None:
            words = f"{self.job} no longer exists" if replay.view is None else replay.trouble
            self.timeline.show_text(words or "no history recorded")
            self._title.show(f"REPLAY: {self.job}", super().place(answer.look))
            return
        if self.at is None:
            self.at = replay.at
        super().show(answer)
        self._title.show(f"REPLAY: {self.job}", self.place(answer.look))
        self._keys.show(None)
        self._show_position()
        view, step = self._chart.view, run_step.of_snapshot(replay.detail.view.snapshot)
        at = replay.at if view.axis == "time" else None if step is None else float(step.step)
        self._chart.follow(replace(view, cursor=at))

    def rows_below(self) -> int:
        """Rows of the timeline."""
        return self.timeline.size.height or 3

    def _show_cause(self, detail: JobDetail) -> None:
        """Show what had gone wrong by then."""
        super()._show_cause(detail)
        if self.has_class("-short"):  # the timeline shows the same
            self._setback.fit(None)

    def _show_log(self, detail: JobDetail) -> None:
        """Show the selected rank's log up to the time shown."""
        view, state, rank = detail.view, detail.view.snapshot, self.ranks.rank
        is_shared = not view.is_foreign and view.spec.is_command
        lengths = [one.log_bytes for one in state.ranks if is_shared or one.rank == rank]
        until = max((size for size in lengths if size is not None), default=None)
        if until is None:
            words = "n/a: the log's length at this point was not recorded"
            self.log_view.show_text(view, rank, words)
        else:
            self.log_view.show(view, rank, guilty(view), until=until, attempt=state.attempt or 0)

    def _show_position(self) -> None:
        replay = self.replay
        if replay is None or replay.course is None or self.at is None:
            return
        state = None if replay.detail is None else replay.detail.view.snapshot
        self.timeline.show(
            replay.course,
            Position(
                at=self.at,
                width_s=replay.width_s,
                playing=self.playing,
                speed=self.speed,
                attempt=None if state is None else state.attempt,
                attempt_started=replay.attempt_started,
            ),
        )

    # --- actions ---------------------------------------------------------------------------------

    def go(self, at: float) -> None:
        """Go to another time: the timeline moves immediately, the panels with the next answer."""
        if (course := self.course) is None:
            return
        before, self.at = self.at, min(max(at, course.first), course.last)
        is_edge = self.at in (course.first, course.last)
        if before is None or is_edge or int(before) != int(self.at):
            self._show_position()
            self.post_message(QueryChanged())

    @on(TimeLine.Jumped)
    def _jumped(self, message: TimeLine.Jumped) -> None:
        self.go(message.at)

    @on(RankPanel.Chosen)
    def _rank_entered(self, message: RankPanel.Chosen) -> None:
        """Show the rank's log at that time: the rank screen only shows the present."""
        message.prevent_default()
        self.page = "log"

    @on(ChartWidget.Viewed)
    def _chart_clicked(self, message: ChartWidget.Viewed) -> None:
        """Go to the time that was clicked on the chart."""
        cursor = message.chart.view.cursor
        if message.chart.view.axis == "time" and cursor is not None and not message.moved:
            self.go(cursor)

    def action_play(self) -> None:
        """Play or pause; at the end, start over."""
        if (course := self.course) is None or self.at is None:
            return
        if not self.playing and self.at >= course.last - 0.5 and not course.live:
            self.go(course.first)
        self._set_playing(not self.playing)

    def _set_playing(self, playing: bool) -> None:
        self.playing = playing
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_interval(FRAME_S, self._play_on) if playing else None
        self._frame_at_s = monotonic()
        self._show_position()

    def _play_on(self) -> None:
        now_s = monotonic()
        passed_s, self._frame_at_s = now_s - self._frame_at_s, now_s
        if (course := self.course) is None or self.at is None:
            return
        self.go(self.at + passed_s * self.speed)
        if self.at >= course.last and not course.live:
            self._set_playing(False)

    def action_speed(self, step: int) -> None:
        """Play faster or slower."""
        index = min(max(SPEEDS.index(self.speed) + step, 0), len(SPEEDS) - 1)
        self.speed = SPEEDS[index]
        self._show_position()

    def _move(self, records: int, least_s: float = 0.0) -> None:
        """Move by records, whose length is the resolution of the history at this time."""
        if self.at is not None:
            width_s = (None if self.replay is None else self.replay.width_s) or 1
            direction = 1 if records > 0 else -1
            self.go(self.at + direction * max(least_s, abs(records) * width_s))

    def action_step(self, direction: int) -> None:
        """Move by one second, or to the next record."""
        self._move(direction)

    def action_leap(self, direction: int) -> None:
        """Move by one minute, or by ten records."""
        self._move(direction * LEAP_RECORDS, LEAP_S)

    def action_edge(self, direction: int) -> None:
        """Go to the start or the end."""
        if (course := self.course) is not None:
            self.go(course.first if direction < 0 else course.last)

    def action_event(self, direction: int) -> None:
        """Go to the next or previous mark."""
        if (course := self.course) is None or self.at is None:
            return
        found = neighbor(course.marks, self.at, direction)
        if found is None:
            self.warn(f"no {'later' if direction > 0 else 'earlier'} event")
        else:
            self.go(found.at)
            self.app.clear_notifications()  # notifications of earlier marks cover the charts
            text = found.text.split(". ", 1)[0]  # the panels show the rest
            self.notify(text, title=found.kind, markup=False, timeout=3)

    def action_back(self) -> None:
        """Show all panels, then go back to the previous screen."""
        if self.page != "main":
            self.page = "main"
        else:
            self.dismiss()
