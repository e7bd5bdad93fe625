"""Reads what a starting supervisor finds: an earlier one's snapshot and the job's log."""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import dataclass

import msgspec

from ddptop_runner.base import bounded
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.files import set_aside
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.host import procs
from ddptop_runner.job.memory import Memory, read_memory
from ddptop_runner.job.moment import rebuild
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.snapshot import Event, NodeSnapshot, decode_snapshot
from ddptop_runner.model.spec import read_spec
from ddptop_runner.model.words import LIVE_STATES
from ddptop_runner.store.history import HistoryReader


@dataclass(frozen=True)
class Past:
    """A job before its supervisor begins."""

    snapshot: NodeSnapshot | None
    """The last snapshot of any earlier supervisor."""
    has_continued: bool
    """Whether the job has continued since, because only its supervisor or guardian ended."""
    event: ev.JobEvent | None
    """The event to record about it."""
    events: tuple[Event, ...] = ()
    """The job's log."""

    @functools.cached_property
    def memory(self) -> Memory:
        """What the snapshot remembers."""
        return read_memory(self.snapshot)


def read_past(folder: RunFolder, hello: pt.GuardianHello) -> Past:
    """Read what is left; the guardian's hello shows why this supervisor was started."""
    snapshot, damage = _last_snapshot(folder)
    events: tuple[Event, ...] = ()
    with contextlib.suppress(DdptopError):
        events = tuple(HistoryReader(folder.history_db).events(silent=True))
    adopted, restarts = hello.adopted, hello.supervisor_restarts
    if snapshot is None or not (adopted or restarts) or _is_of_an_earlier_life(snapshot, hello):
        event: ev.JobEvent | None = _lost(snapshot)
        if damage is not None:
            event = ev.SnapshotDamaged(attempt=hello.attempt, damage=damage)
        return Past(snapshot, has_continued=False, event=event, events=events)
    came = ev.GuardianRestarted if adopted and not restarts else ev.SupervisorRestarted
    event = came(attempt=snapshot.attempt, damage=damage)
    return Past(snapshot, has_continued=True, event=event, events=events)


def _is_of_an_earlier_life(snapshot: NodeSnapshot, hello: pt.GuardianHello) -> bool:
    """Whether the job was restarted since and no supervisor has written a snapshot yet."""
    return snapshot.attempt is not None and snapshot.attempt < hello.attempt


def _last_snapshot(folder: RunFolder) -> tuple[NodeSnapshot | None, str | None]:
    """(the last snapshot, what is wrong with its file).

    A damaged file is set aside, and the snapshot comes from the history.
    """
    file = folder.node_file(procs.host_name())
    try:
        return decode_snapshot(bounded.read_bytes(file)), None
    except OSError:
        return None, None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    aside = "nothing"
    with contextlib.suppress(OSError):
        aside = set_aside(file).name
    words = (
        f"its snapshot was damaged and set aside as {aside};"
        " attempt, restarts, and ranks are from the history"
    )
    try:
        return rebuild(folder, read_spec(folder), words), words
    except DdptopError:
        return None, words


def _lost(snapshot: NodeSnapshot | None) -> ev.JobLost | None:
    """The event for a job without a recorded end."""
    if snapshot is None or snapshot.state not in LIVE_STATES:
        return None
    rebooted = None not in (snapshot.boot_id, procs.boot_id()) and (
        snapshot.boot_id != procs.boot_id()
    )
    return ev.JobLost(
        attempt=snapshot.attempt,
        rebooted=rebooted,
        requeued=os.environ.get("SLURM_RESTART_COUNT", "0") != "0",
        last_seen=snapshot.ts,
    )
