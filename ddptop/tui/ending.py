"""The app's end: quiet, however half the screens are there by then."""

from __future__ import annotations

from textual.app import App, ScreenStackError
from textual.css.query import NoMatches
from textual.dom import NoScreen

OF_THE_END = (NoMatches, NoScreen, ScreenStackError)
"""Exceptions raised by a screen whose widgets are gone or were never mounted."""


class EndingApp(App[None]):
    """Tells of no error that its end brings about.

    Keys and looks are handled until the last widget has ended, and a screen that opens meanwhile
    gets no widgets. Nobody sees that screen any more; the traceback of what it fails for, and the
    exit status 1, would be all that is seen.
    """

    _ends = False

    async def _shutdown(self) -> None:
        self._ends = True
        await super()._shutdown()

    def _handle_exception(self, error: Exception) -> None:
        is_of_the_end = self._exit or (self._ends and isinstance(error, OF_THE_END))
        if not is_of_the_end:
            super()._handle_exception(error)
