"""When garbage is searched for, and when memory goes back to the system."""

from __future__ import annotations

import contextlib
import gc


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
