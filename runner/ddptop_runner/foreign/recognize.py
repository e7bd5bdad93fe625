"""Which processes form which training: pure, from facts alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ddptop_runner.foreign.types import ForeignJob, ProcessFacts, Unreadable


def find_jobs(
    facts: Iterable[ProcessFacts],
    device_pids: Mapping[int, Sequence[str]],
    own_pids: Collection[int] = (),
    *,
    boot_unix_s: float,
    ticks_per_s: int = 100,
    pinned: Collection[int] = (),
) -> tuple[list[ForeignJob], list[Unreadable]]:
    """The foreign jobs, newest first, and the processes that may be training but cannot be read.

    Args:
        facts: every process of the host.
        device_pids: UUIDs of the devices that a pid holds, by NVML.
        own_pids: processes of ddptop's own jobs, left out with their descendants.
        boot_unix_s: when the host was started, in seconds since 1970.
        ticks_per_s: the unit of `start_ticks`.
        pinned: processes that are a job because a person says so.
    """
    raise NotImplementedError
