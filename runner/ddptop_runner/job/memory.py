"""What a restarted process of a job restores besides its log and the last snapshot's figures."""

from __future__ import annotations

from typing import Any

import msgspec

from ddptop_runner.job.ranks import RankMemory
from ddptop_runner.job.state import JobState
from ddptop_runner.judge.checkpoints import SaveMemory
from ddptop_runner.judge.hangs.watch import HangMemory
from ddptop_runner.judge.restarts.devices import Known
from ddptop_runner.model.snapshot import NodeSnapshot
from ddptop_runner.model.words import Base


class AlertMemory(Base, frozen=True, kw_only=True):
    """Of the alerts."""

    reported: dict[str, str] = {}
    """Messages of recorded alerts by id, until their end is recorded."""


class NodeMemory(Base, frozen=True, kw_only=True):
    """Of one node of a job on several."""

    seq: int = 0
    """Of the last event received from it."""
    attempt: int | None = None
    ended: bool = True
    """Whether its part of the job has no processes."""


class Memory(Base, frozen=True, kw_only=True):
    """Kept in the snapshot."""

    state: JobState | None = None
    last_seq: int = 0
    """Of the last event that `state` includes."""
    ranks: RankMemory = RankMemory()
    hangs: HangMemory = msgspec.field(default_factory=HangMemory)
    saves: SaveMemory = msgspec.field(default_factory=SaveMemory)
    oom_kills: dict[str, int | None] = {}
    """By cgroup, the kernel's count when the attempt began."""
    devices: dict[str, Known] = {}
    alerts: AlertMemory = AlertMemory()
    nodes: dict[str, NodeMemory] = {}
    """By host."""

    def plain(self) -> dict[str, Any]:
        """The memory as the snapshot contains it."""
        found: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return found


def read_memory(snapshot: NodeSnapshot | None) -> Memory:
    """The memory in a snapshot; empty if it is missing or damaged."""
    try:
        return msgspec.convert({} if snapshot is None else snapshot.memory, Memory, str_keys=True)
    except msgspec.ValidationError:
        return Memory()
