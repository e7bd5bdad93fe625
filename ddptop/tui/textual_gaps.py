"""All uses of Textual's private names; a test finds uses elsewhere."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

from textual._styles_cache import StylesCache
from textual.app import App, ScreenStackError, _PrintCapture
from textual.css.query import NoMatches
from textual.dom import DOMNode, NoScreen
from textual.drivers.linux_driver import LinuxDriver
from textual.drivers.web_driver import WebDriver
from textual.keys import _character_to_key
from textual.message import Message
from textual.messages import ExitApp
from textual.screen import Screen

_PrintCapture.encoding = "utf-8"  # type: ignore[attr-defined]  # libtmux reads it when imported

OF_THE_END = (NoMatches, NoScreen, ScreenStackError)
"""Exceptions raised by a screen whose widgets are gone or were never mounted."""


class QuietApp(App[None]):
    """Suppresses errors that its own shutdown causes.

    Textual handles keys and messages until the last widget is removed, and a screen that opens
    meanwhile gets no widgets. Without this, users would see a traceback and exit status 1.
    """

    _ends = False

    def to_terminal(self, escapes: str) -> None:
        """Write what draws nothing."""
        if self._driver is not None:
            self._driver.write(escapes)

    async def _shutdown(self) -> None:
        self._ends = True
        await super()._shutdown()

    def _handle_exception(self, error: Exception) -> None:
        is_of_the_end = self._exit or (self._ends and isinstance(error, OF_THE_END))
        if not is_of_the_end:
            super()._handle_exception(error)


class HeldScreen(Screen[None]):
    """Draws nothing until `release`, so that its first frame shows data, not empty widgets."""

    _is_held = True

    def release(self) -> None:
        """Draw from now on."""
        if self._is_held:
            self._is_held = False
            self.refresh(layout=True)

    def _compositor_refresh(self) -> None:
        if not self._is_held:
            super()._compositor_refresh()


class TerminalDriver(LinuxDriver):
    """Releases the terminal on SIGTSTP and takes it back on SIGCONT, both in the event loop.

    Textual does both in the signal handler. If the signal arrives during a write, the handler waits
    forever for a queue that its own thread has locked; and a SIGCONT without a SIGTSTP leaves a
    thread behind that keeps the process from exiting.
    """

    _is_suspended = False

    def _sigtstp_application(self, *_: object) -> None:
        self._soon(self._suspend)

    def _sigcont_application(self, *_: object) -> None:
        self._soon(self._go_on)

    def _soon(self, act: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the app is exiting
            self._loop.call_soon_threadsafe(act)

    def _draws(self) -> bool:
        return self._writer_thread is not None and self._writer_thread.is_alive()

    def _suspend(self) -> None:
        if self._draws():
            self.suspend_application_mode()
            self._is_suspended = self._must_signal_resume = True
        os.kill(os.getpid(), signal.SIGSTOP)

    def _go_on(self) -> None:
        if self._draws():  # after SIGSTOP: another program may have changed the terminal's modes
            self.suspend_application_mode()
            self._is_suspended = True
        if self._is_suspended:
            self.resume_application_mode()
            self._is_suspended = not self._draws()  # in the background: retry on the next SIGCONT


class TabDriver(WebDriver):
    """For a browser tab; exits the app when its tab is gone."""

    def run_input_thread(self) -> None:
        """Read input from the tab until it is closed."""
        super().run_input_thread()
        if not self.exit_event.is_set():
            self.send_message(ExitApp())

    def send_message(self, message: Message) -> None:
        """Post a message to the app, from any thread; to none that has exited.

        The tab may still send input while the process exits. Textual would then create a coroutine
        that is never awaited, and Python would warn about it on stderr.
        """
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._app.post_message, message)


def forget_drawn() -> None:
    """Clear a Textual cache that keeps what up to a thousand widgets drew."""
    StylesCache.get_inner_outer.cache_clear()


def attach(part: DOMNode, parent: DOMNode) -> None:
    """Attach a node to a parent so that it gets the parent's style."""
    part._attach(parent)


def key_of_character(character: str) -> str:
    """Textual's name for the key that types a character."""
    return _character_to_key(character)
