"""The viewer's process: garbage collection, and exit when the terminal hangs up."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


def wait_with_garbage() -> None:
    """Collect no garbage until the first frame: it would take a tenth of that time in vain."""
    gc.disable()


def go_on_with_garbage() -> None:
    """Resume garbage collection, but never scan the objects that exist now."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def give_back() -> None:
    """Return free memory to the system: glibc keeps some per thread, 4 MiB after a day.

    Takes half a millisecond. Does nothing with C libraries that lack malloc_trim.
    """
    import ctypes

    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


LEAVE_S = 2.0
"""How long Textual may take to exit once the terminal is gone."""


class HangUp:
    """Watches stdin for a hang-up of the terminal."""

    def __init__(self) -> None:
        self._is_leaving = False

    def watch(self, loop: AbstractEventLoop, gone: Callable[[], None]) -> None:
        """Call `gone` in the loop when the terminal hangs up."""

        def wait() -> None:
            poll = select.poll()
            poll.register(0, 0)  # no events, only hang-ups and errors
            poll.poll()
            with contextlib.suppress(RuntimeError):  # the loop is closed: the app is exiting
                loop.call_soon_threadsafe(gone)

        threading.Thread(target=wait, name="hang-up", daemon=True).start()

    def leave(self) -> None:
        """Exit after `LEAVE_S`, even if the app has not finished its own shutdown."""
        if not self._is_leaving:
            self._is_leaving = True
            timer = threading.Timer(LEAVE_S, os._exit, (1,))
            timer.daemon = True
            timer.start()
