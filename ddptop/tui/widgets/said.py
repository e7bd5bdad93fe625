"""The job under the cursor in a whole sentence, and what can be done about it."""

from __future__ import annotations

from ddptop.tui.widgets.lines import LinesView
from ddptop.view.attention import next_step
from ddptop.view.figures.jobs import sentence_cell
from ddptop.view.listed import Listed
from ddptop.view.text import Line, fit, line, plain, wrap


class Said(LinesView):
    """As many rows as it is given: the sentence, and in the last one what to do next."""

    def __init__(self) -> None:
        super().__init__(id="said")
        self._one: Listed | None = None
        self._readonly = False

    def show(self, one: Listed | None, *, readonly: bool) -> None:
        """Take the job under the cursor."""
        self._one, self._readonly = one, readonly
        self.redraw()

    def build(self, width: int, height: int) -> list[Line]:
        """Sentence and next step."""
        if self._one is None:
            return []
        cell = sentence_cell(self._one.attention)
        style = cell[0][1]
        rows = height if height < 3 else height - 1
        texts = wrap(plain(cell), width - 4, rows)
        step = next_step(self._one.view, self._one.attention, readonly=self._readonly)
        lines = [line(("▌ ", style), (text, "" if style == "dim" else style)) for text in texts]
        if step and len(lines) < height:
            lines.append(line(("▌ ", style), (step, "dim")))
        return [fit(one, width) for one in lines]
