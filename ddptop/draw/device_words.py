"""Devices in words: who uses them, which are wasted, and which are outliers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddptop.draw.devices import Holder, Owners, holder_text
from ddptop.view.host_words import has_several
from ddptop.view.text import Line, fill, line
from ddptop_runner.base import units
from ddptop_runner.job.registry import AnyJob
from ddptop_runner.judge.balance.imbalance import Figure, deviations
from ddptop_runner.launch.gpus.usage import SMALL_CONTEXT_BYTES
from ddptop_runner.model.snapshot import GpuSample

WASTED_S = 120.0
"""A device that is in use and idle for this long is wasted."""

MOST_RANKS = 64
"""Outliers of jobs with more ranks are shown only on their own screens."""

_SHOWN: tuple[Figure, ...] = ("utilization", "memory", "power")


def wasted_s(gpu: GpuSample, idle_s: Mapping[str, float]) -> float | None:
    """How long a device in use has been idle; None if it is busy or free."""
    spent_s = idle_s.get(gpu.uuid or "", 0.0)
    held = any((p.mem_used_bytes or 0) > SMALL_CONTEXT_BYTES for p in gpu.processes or [])
    if gpu.lost or not held or spent_s < WASTED_S or (gpu.util_percent or 0) > 1:
        return None
    return spent_s


def wasted_words(gpu: GpuSample, idle_s: Mapping[str, float]) -> Line:
    """`▲ idle for 12m`; empty where it is not."""
    spent_s = wasted_s(gpu, idle_s)
    if spent_s is None:
        return ()
    return line((f"▲ idle for {units.brief_duration(spent_s)}", "warn"))


def holder_words(
    owners: Owners, idle_s: Mapping[str, float], here: str, *, brief: bool = False
) -> Holder:
    """Who uses a device, its problems, and whether it is wasted.

    Args:
        owners: job and rank of each process on this host, by pid.
        idle_s: for how long a device has done nothing, by UUID.
        here: this host.
        brief: whether there is little room.
    """

    def holder(gpu: GpuSample) -> Line:
        known: Owners = owners if gpu.host in (None, here) else {}
        parts = [wasted_words(gpu, idle_s), holder_text(gpu, known, brief=brief)]
        return fill(parts, 200, "  ")

    return holder


def unevenness(views: Sequence[AnyJob]) -> Line:
    """`GPU 5: power 28% below the other GPUs in llama-ft`, the worst of all; else empty."""
    worst: tuple[float, str] | None = None
    for view in views:
        snapshot = view.snapshot if view.is_live and not view.on_other_host else None
        if snapshot is None or not snapshot.gpus or not 1 < len(snapshot.ranks) <= MOST_RANKS:
            continue
        several = has_several(snapshot)
        apart = deviations(snapshot.ranks, snapshot.gpus, snapshot.alerts)
        for rank in snapshot.ranks:
            for figure, ratio in apart[rank.rank].odd_in:
                if rank.gpu is None or ratio is None or figure not in _SHOWN:
                    continue
                if worst is None or abs(ratio) > worst[0]:
                    where = f" on {rank.host}" if several else ""
                    side = "above" if ratio > 0 else "below"
                    text = f"GPU {rank.gpu}{where}: {figure} {100 * abs(ratio):.0f}% {side}"
                    worst = abs(ratio), f"{text} the other GPUs in {view.job}"
    return () if worst is None else line((f"▲ {worst[1]}", "warn"))


def common_name(gpus: Sequence[GpuSample]) -> str | None:
    """The devices' name where all have the same one."""
    names = {gpu.name for gpu in gpus if gpu.parent_uuid is None}
    return names.pop() if len(names) == 1 else None
