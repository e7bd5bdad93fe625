"""Lines that can be dragged along."""

from __future__ import annotations

from textual import events

from ddptop.tui.widgets.lines import LinesView


class DraggedView(LinesView):
    """Follows the pointer while a button is pressed."""

    is_dragged = False
    """Whether a button is held that was pressed here."""

    def takes_drag(self, x: int) -> bool:
        """Whether something can be dragged at that cell of the widget."""
        return True

    def dragged_to(self, x: int) -> None:
        """The pointer is at that cell, which may lie beyond either edge."""
        raise NotImplementedError

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Go there, and follow the pointer."""
        if self.takes_drag(event.x):
            self.is_dragged = True
            self.capture_mouse()
            self.dragged_to(event.x)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Follow the pointer."""
        if self.is_dragged:
            self.dragged_to(event.x)

    def on_mouse_up(self) -> None:
        """Release the pointer."""
        if self.is_dragged:
            self.is_dragged = False
            self.release_mouse()
