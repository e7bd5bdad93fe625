"""The viewer as a process: when it searches for garbage, and how it ends with its terminal."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable


def wait_with_garbage() -> None:
    """Search for none until the first frame: a tenth of its time, and what it loads stays."""
    gc.disable()


def go_on_with_garbage() -> None:
    """Search again, and never through what is there by now."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def give_back() -> None:
    """Give the system what is free: glibc keeps it for each thread, 4 MiB after a day of watching.

    Takes half a millisecond. Other C libraries have no such call; nothing happens there.
    """
    import ctypes

    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


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
