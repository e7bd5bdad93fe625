"""Watches how long devices in use have been idle, for a job that waits for them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ddptop_runner.launch.gpus.usage import IDLE_UTIL_PERCENT, DeviceUse, key

GAP_S = 30.0
"""What happened during a longer pause between looks is unknown."""


class IdleWatch:
    """Since when each device has not computed, as far as it was watched."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[tuple[int, ...], float]] = {}
        self._looked_at_s = float("-inf")

    def look(self, uses: Sequence[DeviceUse], now_s: float) -> list[DeviceUse]:
        """The same uses with the time for which each device has been idle.

        It starts again with other processes, because a new one has yet to compute.
        """
        before = self._since if now_s - self._looked_at_s <= GAP_S else {}
        self._looked_at_s, self._since = now_s, {}
        found = []
        for use in uses:
            is_idle = use.util_percent is not None and use.util_percent < IDLE_UTIL_PERCENT
            if not (use.busy and is_idle) or use.gone:
                found.append(use)
                continue
            pids, since_s = before.get(key(use.device), (use.pids, now_s))
            if pids != use.pids:
                since_s = now_s
            self._since[key(use.device)] = use.pids, since_s
            found.append(msgspec.structs.replace(use, idle_s=now_s - since_s))
        return found
