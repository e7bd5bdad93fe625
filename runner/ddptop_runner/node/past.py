"""What a supervisor finds when it starts: an earlier one's snapshot, and the state of the job."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import msgspec

from ddptop_runner.base import bounded
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.host import procs
from ddptop_runner.model.snapshot import Event, NodeSnapshot, decode_snapshot
from ddptop_runner.model.spec import read_spec
from ddptop_runner.model.words import LIVE_STATES
from ddptop_runner.store.history import HistoryReader
from ddptop_runner.store.upkeep.damaged import set_aside
from ddptop_runner.store.upkeep.substitute import substitute


@dataclass(frozen=True)
class Past:
    """How a job stands before its supervisor begins."""

    snapshot: NodeSnapshot | None
    """The last one of any earlier supervisor."""
    lives_on: bool
    """Whether the job has gone on since: only its supervisor, or its guardian, was ended."""
    event: Event | None
    """What is to be told about it."""
    events: tuple[Event, ...] = ()
    """What was told of a job that lives on."""


def look_back(folder: RunFolder, hello: dict[str, Any]) -> Past:
    """Read what is left, and tell from the guardian's hello how this supervisor came to be."""
    snapshot, damage = _last_snapshot(folder)
    adopted, restarts = bool(hello.get("adopted")), hello["supervisor_restarts"]
    if snapshot is None or not (adopted or restarts) or _is_of_an_earlier_life(snapshot, hello):
        event = _lost(snapshot)
        if damage is not None:
            event = Event(ts=utc_now(), type="alert", attempt=hello["attempt"], message=damage)
        return Past(snapshot, lives_on=False, event=event)
    if adopted and not restarts:
        words = "the guardian had exited; a new one adopted the job"
        event = Event(ts=utc_now(), type="guardian_restarted", message=words)
    else:
        words = "the supervisor restarted; nothing was lost"
        event = Event(ts=utc_now(), type="supervisor_restarted", message=words)
    if damage is not None:
        event = msgspec.structs.replace(
            event, message=f"{event.message.partition(';')[0]}; {damage}"
        )
    events: tuple[Event, ...] = ()
    with contextlib.suppress(DdptopError):
        events = tuple(HistoryReader(folder.history_db).events())
    event = msgspec.structs.replace(event, attempt=snapshot.attempt)
    return Past(snapshot, lives_on=True, event=event, events=events)


def _is_of_an_earlier_life(snapshot: NodeSnapshot, hello: dict[str, Any]) -> bool:
    """Whether the job was started again since, and no supervisor has written of that yet."""
    return snapshot.attempt is not None and snapshot.attempt < hello["attempt"]


def _last_snapshot(folder: RunFolder) -> tuple[NodeSnapshot | None, str | None]:
    """The last snapshot, and what is wrong with its file; from the history where that is damaged.

    A damaged file is set aside.
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
        aside = set_aside(file)
    words = (
        f"its snapshot was damaged and set aside as {aside};"
        " attempt, restarts, and ranks are from the history"
    )
    try:
        return substitute(folder, read_spec(folder), words), words
    except DdptopError:
        return None, words


def _lost(snapshot: NodeSnapshot | None) -> Event | None:
    """What became of a job that has no end on record."""
    if snapshot is None or snapshot.state not in LIVE_STATES:
        return None
    rebooted = None not in (snapshot.boot_id, procs.boot_id()) and (
        snapshot.boot_id != procs.boot_id()
    )
    why = "the machine rebooted" if rebooted else "all its processes had exited"
    heard = snapshot.ts.astimezone()
    day = "" if heard.date() == utc_now().astimezone().date() else f"{heard:%Y-%m-%d} "
    words = f"attempt {snapshot.attempt} was lost: {why}; last seen {day}{heard:%H:%M:%S}"
    return Event(ts=utc_now(), type="lost", attempt=snapshot.attempt, message=words)
