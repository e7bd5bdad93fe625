"""The job's log: writes each event to the history and, as a line, to the guardian's pane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ddptop_runner.base.clock import utc_from_unix, utc_now
from ddptop_runner.base.exit_status import split_status
from ddptop_runner.job.event_text import text
from ddptop_runner.job.ranks import DiscoveredRanks
from ddptop_runner.job.state import JobState
from ddptop_runner.job.transition import apply
from ddptop_runner.judge.checkpoints import SaveMemory
from ddptop_runner.judge.hangs.verdict import Limits
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import SILENT, Event, NodeSnapshot
from ddptop_runner.model.words import Base
from ddptop_runner.store.history import HistoryWriter


class EventLog:
    """Records events in order and holds the job's state after them.

    Args:
        history: stores the events.
        show: prints a line where the user may see it.
    """

    def __init__(self, history: HistoryWriter, show: Callable[[str], None]) -> None:
        self._history = history
        self._show = show
        self._known: set[tuple[object, ...]] = set()
        self.watchers: list[Callable[[Event], None]] = []
        """Called with each event as it is recorded."""
        self.state = JobState()
        """The fold of all events by `apply`; nothing else changes it."""

    def restore(self, rows: Sequence[Event], snapshot: NodeSnapshot | None = None) -> None:
        """Restore an earlier supervisor's records.

        Args:
            rows: the log.
            snapshot: the supervisor's last one, if the job has continued since. The log adds what
                happened later; if a full disk has lost the end of the log, the snapshot prevails.
        """
        events = [ev.of_row(row) for row in rows]
        if (
            snapshot is not None
        ):  # else it is from an earlier life of the job, which may have the same numbers
            self._known.update(map(_key, events))
        memory = read_memory(snapshot)
        state = memory.state or JobState()
        last_seq = 0 if memory.state is None else memory.last_seq
        for row, event in zip(rows, events, strict=True):
            if row.seq > last_seq:
                state = apply(state, event, row.ts)
        self.state = state
        self._history.continue_after(last_seq)

    def emit(self, event: ev.JobEvent) -> None:
        """Record and show an event, unless it repeats one that can only happen once."""
        key = _key(event)
        if event.ONCE and key in self._known:
            return
        self._known.add(key)
        row = self._history.event(as_row(event))
        self.state = apply(self.state, event, row.ts)
        for watcher in self.watchers:
            watcher(row)
        if event.type != SILENT:
            self._show(f"{row.ts.astimezone():%H:%M:%S}  {row.message}")


def _key(event: ev.JobEvent) -> tuple[object, ...]:
    """The identity of an event: an attempt fails once, each of its ranks exits once."""
    # a launcher may restart its ranks within an attempt
    who = tuple(getattr(event, name, None) for name in ("rank", "pid", "node"))
    # a process's exit status may become known later
    return (type(event), event.attempt, *who, getattr(event, "status", 0) is None)


def as_row(event: ev.JobEvent) -> Event:
    """The event as a row of the history."""
    row = Event(
        ts=utc_from_unix(utc_now().timestamp()),  # rounded as it will be read back
        type=event.type,
        message=text(event),
        attempt=event.attempt,
        data=ev.to_data(event),
    )
    return replace(row, **_columns(event))


def _columns(event: ev.JobEvent) -> dict[str, object]:
    """The columns that the contract has besides `data`."""
    if isinstance(event, ev.RankStarted):
        return {"rank": event.rank, "pid": event.pid}
    if isinstance(event, ev.RankExited):
        exit_code, signal = (None, None) if event.status is None else split_status(event.status)
        return {"rank": event.rank, "pid": event.pid, "exit_code": exit_code, "signal": signal}
    if isinstance(event, ev.CheckpointSaved):
        return {"rank": event.checkpoint.rank}
    cause = getattr(event, "cause", None)
    if cause is None:
        return {}
    return {
        "rank": cause.rank,
        "exit_code": cause.exit_code,
        "signal": cause.signal,
        "evidence": cause.evidence,
    }


class NodeMemory(Base, frozen=True, kw_only=True):
    """Of one node of a job on several."""

    seq: int = 0
    """Of the last event received from it."""
    ended: bool = True
    """Whether its part of the job has no processes."""


class Memory(Base, frozen=True, kw_only=True):
    """Kept in the snapshot."""

    state: JobState | None = None
    last_seq: int = 0
    """Of the last event that `state` includes."""
    last_step_s: dict[int, float] = {}
    """By rank, CLOCK_BOOTTIME."""
    discovered: DiscoveredRanks | None = None
    """None for a job that is not a command."""
    hangs: Limits = msgspec.field(default_factory=Limits)
    saves: SaveMemory = msgspec.field(default_factory=SaveMemory)
    oom_kills: dict[str, int | None] = {}
    """By cgroup, the kernel's count when the attempt began."""
    alerts: dict[str, str] = {}
    """Messages of recorded alerts by id, until their end is recorded."""
    nodes: dict[str, NodeMemory] = {}
    """By host."""
    head_seq: int = 0
    """On one of several nodes, of the last event taken over from the head."""

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
