"""The last lines of one rank's log on the screen of its job, followed."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical

from ddptop.logs.messages import LogRead
from ddptop.tui.widgets.lines import LinesView
from ddptop.tui.widgets.log_pager import LogPager
from ddptop.view.keys import key
from ddptop.view.text import Line, line, rule

if TYPE_CHECKING:
    from ddptop.logs.tails import FedLines


class _LogTitle(LinesView):
    DEFAULT_CSS = "_LogTitle { height: 1; }"

    def __init__(self) -> None:
        super().__init__()
        self.title = "log"
        self.note: Line = ()

    def build(self, width: int, height: int) -> list[Line]:
        return [rule(self.title, width, self.note)]


class _Lines(LogPager):
    """The pager, over lines that are all in memory."""

    @property
    def lines(self) -> list[str]:
        """The lines that have ended."""
        return self.buffer.texts

    @property
    def line_count(self) -> int:
        """How many these are."""
        return self.buffer.ended


class LogView(Vertical):
    """The last lines, and every new one while the view is at its end."""

    def __init__(self) -> None:
        super().__init__(id="log")
        self._whole = False
        self._pager = _Lines()
        self._title = _LogTitle()

    def compose(self) -> ComposeResult:
        """Title and lines."""
        yield self._title
        yield self._pager

    @functools.cached_property
    def _fed(self) -> FedLines:
        """What was printed; the first frame has none of it."""
        from ddptop.logs.tails import FedLines

        return FedLines()

    @property
    def lines(self) -> _Lines:
        """The widget that scrolls."""
        return self._pager

    def show_title(
        self,
        rank: int | None,
        attempt: int | None,
        following: bool,
        output: str | None = None,
        launcher: str | None = None,
    ) -> None:
        """Say whose log it is; `output` says where a foreign job writes.

        Of a command, whose launcher is named, a rank has no log but perhaps lines of the one log.
        """
        kind = "log" if output is None else "output"
        whose = "" if rank is None else f": rank {rank}"
        if launcher is not None and (rank is None or self._whole):
            whose = f": {launcher}" if rank is None else f": {launcher}, all ranks"
        self._title.title = f"{kind}{whose}"
        text = output or ("" if attempt is None else f"attempt {attempt}")
        if following and not self._pager.following:
            text += f", not following ({key('move.last')}: end)"
        self._title.note = line((text, "dim")) if text else ()
        self._title.redraw()

    def take(self, message: LogRead) -> None:
        """Add lines, or start over."""
        self._whole = message.whole
        rows, partial = self._fed.take(message)
        pager = self._pager
        if message.restarted:
            pager.buffer.set_all(rows, partial)
            pager.held = False
            pager.replace(None)
        else:
            gone = pager.buffer.put_behind(rows, partial, 0, pager.seen[1])
            pager.moved_by(-gone, 1)
