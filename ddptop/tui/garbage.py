"""No search for garbage while the interface starts: what it loads stays anyway."""

from __future__ import annotations

import gc


def wait_with_garbage() -> None:
    """Search for none until the first frame: a tenth of the time that it takes."""
    gc.disable()


def go_on_with_garbage() -> None:
    """Search again, and never through what is there by now."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
