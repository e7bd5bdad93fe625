"""Suspends and resumes the interface in a terminal."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

from textual.drivers.linux_driver import LinuxDriver


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
