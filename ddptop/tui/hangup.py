"""What to do when the terminal is gone: to leave at once, and for certain.

A terminal that hung up reads as end of file for ever, which Textual's reader turns into a busy
loop, and its writer dies of the first error; whoever then writes through it waits for ever. So the
hang-up is waited for in the kernel, and the process ends even where Textual cannot.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable

LEAVE_S = 2.0
"""Seconds in which Textual may end by itself once the terminal is gone."""


class HangUp:
    """Watches the terminal on stdin for its end."""

    def __init__(self) -> None:
        self._is_leaving = False

    def watch(self, loop: AbstractEventLoop, gone: Callable[[], None]) -> None:
        """Call `gone` in the loop as soon as the terminal has hung up."""

        def wait() -> None:
            poll = select.poll()
            poll.register(0, 0)  # nothing but a hang-up or an error
            poll.poll()
            with contextlib.suppress(RuntimeError):  # the loop is closed: it ends anyway
                loop.call_soon_threadsafe(gone)

        threading.Thread(target=wait, name="hang-up", daemon=True).start()

    def leave(self) -> None:
        """End this process soon, however far the program's own end has come."""
        if not self._is_leaving:
            self._is_leaving = True
            timer = threading.Timer(LEAVE_S, os._exit, (1,))
            timer.daemon = True
            timer.start()
