"""The base of texts that lie above a screen and scroll with the keys of a pager."""

from __future__ import annotations

from textual.containers import VerticalScroll
from textual.screen import ModalScreen

from ddptop.tui.actions import EXIT, moving


class PagerScreen(ModalScreen[None]):
    """Its one VerticalScroll scrolls by the keys that move everything."""

    BINDINGS = [
        *moving(
            {
                "move.up": "scroll(-3)",
                "move.down": "scroll(3)",
                "move.half_up": "half(-1)",
                "move.half_down": "half(1)",
                "move.page_up": "half(-2)",
                "move.page_down": "half(2)",
                "move.first": "scroll(-1000000)",
                "move.last": "scroll(1000000)",
            }
        ),
        EXIT.binding(),
    ]

    def action_scroll(self, lines: int) -> None:
        """Scroll by some lines."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def action_half(self, pages: int) -> None:
        """Scroll by half of what is visible."""
        scroll = self.query_one(VerticalScroll)
        scroll.scroll_relative(y=pages * max(1, scroll.size.height // 2), animate=False)
