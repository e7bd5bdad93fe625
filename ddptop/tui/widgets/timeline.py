"""The timeline of a replay, which shows the current time and jumps to others."""

from __future__ import annotations

from dataclasses import dataclass

from textual import events
from textual.content import Content
from textual.message import Message

from ddptop.draw.timeline import Position, explain_timeline, mark_at, moment_at, timeline_lines
from ddptop.tui.widgets.lines import DraggedView
from ddptop.view.course import Course
from ddptop.view.text import Line, line


class TimeLine(DraggedView, can_focus=True):
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
        self._position: Position | None = None
        self._words = "reading history..."

    def show(self, course: Course, position: Position) -> None:
        """Show a history and the position in it."""
        if (course, position) != (self._course, self._position):
            self._course, self._position = course, position
            self.redraw()

    def show_text(self, words: str) -> None:
        """Show why there is nothing to show."""
        self._course = self._position = None
        self._words = words
        self.redraw()

    def build(self, width: int, height: int) -> list[Line]:
        """Build the text, the bar, and the clock."""
        if self._course is None or self._position is None:
            return [line((f" {self._words}", "warn"))]
        return timeline_lines(self._course, self._position, width, height)

    def explain(self) -> list[tuple[str, str]]:
        """Help on the letters."""
        return explain_timeline(self._course)

    def dragged_to(self, x: int) -> None:
        """Go there."""
        if self._course is not None:
            self.post_message(self.Jumped(moment_at(self._course, x, self.size.width)))

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Show what happened at the mark under the pointer."""
        if self.is_dragged:
            return
        course = self._course
        mark = None if course is None else mark_at(course, event.x, self.size.width)
        self.tooltip = None if mark is None else Content(mark.text)
