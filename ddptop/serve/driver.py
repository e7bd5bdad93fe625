"""The Textual driver of the interface behind a browser tab."""

from __future__ import annotations

import contextlib

from textual import messages
from textual.drivers.web_driver import WebDriver
from textual.message import Message

from ddptop.tui.textual_gaps import post_from_thread


class TabDriver(WebDriver):
    """Exits the app when its tab is gone, and posts no messages to an app that has exited."""

    def run_input_thread(self) -> None:
        """Read input from the tab until it is closed."""
        super().run_input_thread()
        if not self.exit_event.is_set():
            self.send_message(messages.ExitApp())

    def send_message(self, message: Message) -> None:
        """Post a message to the app, from any thread.

        The tab may still send input while the process exits. Textual would then create a coroutine
        that is never awaited, and Python would warn about it on stderr.
        """
        with contextlib.suppress(RuntimeError):  # the loop is closed
            post_from_thread(self, message)
