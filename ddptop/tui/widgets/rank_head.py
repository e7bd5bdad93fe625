"""What a rank is doing, in a sentence, and its figures."""

from __future__ import annotations

from ddptop.tui.widgets.lines import LinesView
from ddptop.view.text import Line, Span, fill, fit, line, wrap

SENTENCE_ROWS = 2


class RankHead(LinesView):
    """The sentence is the first thing that is seen; below it rows of figures."""

    DEFAULT_CSS = """
    RankHead { height: 4; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._said: Span = ("", "")
        self._facts: list[list[Line]] = []
        self._about: list[tuple[str, str]] = []

    def show(self, said: Span, facts: list[list[Line]], about: list[tuple[str, str]]) -> None:
        """Show a sentence and rows of parts, as many as fit; `about` explains them."""
        self._said, self._facts, self._about = said, facts, about
        rows = len(self._rows(max(20, self.screen.size.width)))
        if self.styles.height is None or self.styles.height.value != rows:
            self.styles.height = rows
        self.redraw()

    def _rows(self, width: int) -> list[Line]:
        text, style = self._said
        symbol = {"bad": "✗", "warn": "▲", "ok": "●", "busy": "◍"}.get(style, "·")
        first, *more = wrap(text, width - 6, SENTENCE_ROWS)
        strong = style if style in ("bad", "warn") else "strong"
        head = line(" ", (f"{symbol} ", style), (first, strong))
        lines = [head, *(line("   ", (one, strong)) for one in more)]
        gap = "   " if width >= 100 else "  "
        rows = [(*parts[0], *fill(parts[1:], width - 11, gap)) for parts in self._facts]
        return [fit(one, width) for one in (*lines, *rows)]

    def build(self, width: int, height: int) -> list[Line]:
        """The rows."""
        return self._rows(width)

    def explain(self) -> list[tuple[str, str]]:
        """What the sentence and the figures mean."""
        return self._about
