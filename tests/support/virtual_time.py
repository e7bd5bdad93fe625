"""An event loop in which waiting takes no real time."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class VirtualLoop(asyncio.SelectorEventLoop):
    """Waiting takes no real time."""

    def __init__(self) -> None:
        self.clock_s = 1000.0
        super().__init__(_Jumps(self))

    def time(self) -> float:
        return self.clock_s


class _Jumps(selectors.SelectSelector):
    """Nothing comes from outside."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "nothing is left to wait for"
        if timeout > 0:
            self._loop.clock_s += max(timeout, 1e-6)  # a sum that is rounded down would not advance
        return []
