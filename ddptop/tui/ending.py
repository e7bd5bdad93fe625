"""The app's end: quiet, however half the screens are there by then."""

from __future__ import annotations

from textual.app import App


class EndingApp(App[None]):
    """Tells of no error once it was asked to end.

    Keys and looks are handled until the last widget has ended, and a screen that opens meanwhile
    gets no widgets: what it then fails for is brought about by the end alone. Nobody sees that
    screen any more; its traceback, and the exit status 1, would be all that is seen.
    """

    def _handle_exception(self, error: Exception) -> None:
        if not self._exit:
            super()._handle_exception(error)
