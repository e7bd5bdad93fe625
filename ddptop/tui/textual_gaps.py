"""Every private name of Textual that ddptop uses; a test finds one that is used elsewhere."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

from textual import events
from textual._styles_cache import StylesCache
from textual.app import App, ScreenStackError
from textual.css.query import NoMatches
from textual.dom import DOMNode, NoScreen
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.keys import _character_to_key
from textual.message import Message
from textual.widgets import Input

OF_THE_END = (NoMatches, NoScreen, ScreenStackError)
"""Exceptions raised by a screen whose widgets are gone or were never mounted."""


class QuietApp(App[None]):
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


class TerminalDriver(LinuxDriver):
    """Gives the terminal back at SIGTSTP, and takes it again at SIGCONT, between two steps.

    Textual does both inside the signal's handler. One that came in the middle of a write waited for
    the queue that its own thread held, for ever; and a SIGCONT without a SIGTSTP before it left a
    thread behind, which kept the process from ending.
    """

    _is_suspended = False

    def _sigtstp_application(self, *_: object) -> None:
        self._soon(self._suspend)

    def _sigcont_application(self, *_: object) -> None:
        self._soon(self._go_on)

    def _soon(self, act: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: it ends anyway
            self._loop.call_soon_threadsafe(act)

    def _draws(self) -> bool:
        return self._writer_thread is not None and self._writer_thread.is_alive()

    def _suspend(self) -> None:
        if self._draws():
            self.suspend_application_mode()
            self._is_suspended = self._must_signal_resume = True
        os.kill(os.getpid(), signal.SIGSTOP)

    def _go_on(self) -> None:
        if self._draws():  # stopped by SIGSTOP: whoever had the terminal since has set it up anew
            self.suspend_application_mode()
            self._is_suspended = True
        if self._is_suspended:
            self.resume_application_mode()
            self._is_suspended = not self._draws()  # in the background: until it is in front again


class TypedInput(Input):
    """An input that may take a key before Textual's own handling of it."""

    async def _on_key(self, event: events.Key) -> None:
        self.take_key(event)

    @property
    def suggested(self) -> str:
        """What would be completed."""
        return self._suggestion

    def take_key(self, event: events.Key) -> None:
        """Handle a key; `event.prevent_default` keeps it from Textual."""


def post_from_thread(driver: Driver, message: Message) -> None:
    """Hand the app a message from any thread; RuntimeError says that it has ended."""
    driver._loop.call_soon_threadsafe(driver._app.post_message, message)


def forget_drawn() -> None:
    """Forget what widgets drew: a cache of Textual's keeps all that a thousand of them did."""
    StylesCache.get_inner_outer.cache_clear()


def attach(part: DOMNode, parent: DOMNode) -> None:
    """Make a node part of another for its style alone."""
    part._attach(parent)


def key_of_character(character: str) -> str:
    """Textual's name of the key that types a character."""
    return _character_to_key(character)
