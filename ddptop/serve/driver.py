"""How the interface behind a browser tab is spoken to."""

from __future__ import annotations

import contextlib

from textual import messages
from textual.drivers.web_driver import WebDriver
from textual.message import Message

from ddptop.tui.textual_gaps import post_from_thread


class TabDriver(WebDriver):
    """Ends the app when nobody is left to talk to, and says nothing to an app that has ended."""

    def run_input_thread(self) -> None:
        """Read what is typed in the tab, until it is closed."""
        super().run_input_thread()
        if not self.exit_event.is_set():
            self.send_message(messages.ExitApp())

    def send_message(self, message: Message) -> None:
        """Hand it to the app, from any thread.

        The tab may still say something while the process ends: what Textual would hand over then is
        a coroutine that nobody awaits, of which Python complains on stderr.
        """
        with contextlib.suppress(RuntimeError):  # the loop is closed
            post_from_thread(self, message)
