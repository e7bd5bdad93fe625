"""The process of a job: its log, clock, alerts, snapshots, and tasks, and its guardian.

The supervisor of a node's ranks and the head of a job on several nodes each contain one.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import functools
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from ddptop_runner.base import bounded
from ddptop_runner.base.clock import boottime_s, utc_now
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.files import set_aside
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.host import procs
from ddptop_runner.job.event_log import EventLog, Memory, read_memory
from ddptop_runner.job.moment import rebuild
from ddptop_runner.job.view import Samples, devices_for_history, for_history, view
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.snapshot import (
    Event,
    NodeSnapshot,
    ProcessId,
    decode_snapshot,
    encode,
)
from ddptop_runner.model.spec import JobSpec, read_spec, write_spec
from ddptop_runner.model.words import LIVE_STATES
from ddptop_runner.node.alerts import JobAlerts, LastResort
from ddptop_runner.node.guardian import PACKET_BYTES
from ddptop_runner.node.keeper import write_end
from ddptop_runner.store.disk import SteadyFile
from ddptop_runner.store.history import HistoryReader, HistoryWriter

TICK_S = 1.0
SHOWN_CHARACTERS = 2000
"""Limit for an event in the pane; the history has the full text."""


class JobProcess:
    """The process of one job. Construct inside a running event loop.

    Args:
        folder: the job's run folder.
        spec: the job.
        channel: the guardian's.
    """

    def __init__(self, folder: RunFolder, spec: JobSpec, channel: socket.socket) -> None:
        self._folder, self._spec = folder, spec
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._seq = 0
        self._guardian: ProcessId | None = None
        self._self = procs.identify(os.getpid())
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_unguarded = False
        """Whether the guardian has died."""
        self.clock = JobClock(spec.created_at)
        self.history = HistoryWriter(folder.live_dir / "history.db", hosts=spec.hosts)
        self.log = EventLog(self.history, self._show)
        self.defects = LastResort(self.log)
        self.alerts = JobAlerts(self.log, self.defects)
        self.snapshot_file = SteadyFile(folder.node_file(procs.host_name()))

    # -- from start to end -----------------------------------------------------------------------

    async def receive_hello(self) -> pt.GuardianHello:
        """The guardian's first message."""
        packet = await self._loop.sock_recv(self._channel, PACKET_BYTES)
        hello: pt.GuardianHello = pt.decode(packet, pt.GuardianHello)
        return hello

    def restore(self, hello: pt.GuardianHello) -> Recovered:
        """Continue the log and clock of an earlier process of this job; returns what it left."""
        self._guardian = procs.identify(hello.guardian_pid)
        found = recover(self._folder, hello)
        self.log.restore(found.events, found.snapshot if found.has_continued else None)
        if found.snapshot is not None:
            self.clock.continue_from(found.snapshot, alive_since=found.has_continued)
            self._seq = found.snapshot.seq
        return found

    def restore_alerts(self, found: Recovered) -> None:
        """Continue the alerts of an earlier process in this life of the job."""
        if found.snapshot is not None:
            self.alerts.recall(found.snapshot.alerts, found.memory.alerts)

    async def tick_until(self, ended: asyncio.Event, tick: Callable[[], Awaitable[None]]) -> None:
        """Call `tick` once a second until the job has ended."""
        next_tick_s = self._loop.time()
        while not ended.is_set():
            await tick()
            next_tick_s = max(next_tick_s + TICK_S, self._loop.time())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ended.wait(), next_tick_s - self._loop.time())

    async def end(self, take_snapshot: Callable[[], NodeSnapshot]) -> None:
        """Write the last snapshot and close the history."""
        snapshot = take_snapshot()
        self.record(snapshot, final=True)
        await write_end(self._folder, snapshot, self.history, self.snapshot_file)

    def rows_after(self, seq: int) -> list[Event]:
        """The events of the log after that number."""
        rows = HistoryReader(self._folder.history_db).events(silent=True, after_seq=seq)
        last = max((row.seq for row in rows), default=seq)
        unsaved = [row for row in self.history.unsaved_events if row.seq > last]
        return [*rows, *unsaved]

    # -- tasks -----------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something concurrently with the loop; its errors go to the supervisor's log."""
        task = self._loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._task_done)

    def look_at_workers(self, stacks_of: Callable[[int], Awaitable[pt.Stacks]]) -> None:
        """Ask once for the stacks of loader processes that a rank waits for."""
        rank = self.alerts.rank_to_look_at()
        if rank is not None:
            self.spawn(self._look_at_workers(stacks_of(rank)))

    async def _look_at_workers(self, answer: Awaitable[pt.Stacks]) -> None:
        with contextlib.suppress(DdptopError):  # the rank has ended meanwhile
            self.alerts.note_workers((await answer).stacks[0].loader or "")

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self.defects.report(error)

    # -- guardian --------------------------------------------------------------------------------

    def listen(
        self, take: Callable[[list[pt.ToSupervisor]], None], lost: Callable[[], None]
    ) -> None:
        """Receive the guardian's messages until `stop_listening`.

        Args:
            take: receives all available messages, in order.
            lost: called once the guardian has died; from then on, no process collects exits.
        """

        def read() -> None:
            messages: list[pt.ToSupervisor] = []
            is_alive = True
            while is_alive:
                try:
                    packet = self._channel.recv(PACKET_BYTES)
                except BlockingIOError:
                    break
                except ConnectionResetError:
                    continue  # it died with a message unread; its own can still be read
                except OSError:
                    packet = b""
                is_alive = bool(packet)
                if packet:
                    messages.append(pt.decode(packet, pt.ToSupervisor))
            take(messages)
            if not is_alive:
                self.stop_listening()
                self.is_unguarded = True
                lost()

        self._loop.add_reader(self._channel, read)

    def stop_listening(self) -> None:
        """Stop receiving the guardian's messages."""
        self._loop.remove_reader(self._channel)

    def send_to_guardian(self, message: pt.ToGuardian) -> None:
        """Send a message; errors are ignored, since a dead guardian does not stop the job."""
        with contextlib.suppress(OSError):
            self._channel.send(pt.encode(message))

    def send_exit_code(self) -> None:
        """Send the job's exit code to the guardian, because this process is about to exit."""
        job = self.log.state
        code = job.exit_code if job.exit_code is not None else int(job.phase != "finished")
        self.send_to_guardian(pt.JobOver(exit_code=code))

    def _show(self, line: str) -> None:
        self.send_to_guardian(pt.Print(text=line[:SHOWN_CHARACTERS]))

    # -- snapshots -------------------------------------------------------------------------------

    def snapshot(self, spec: JobSpec, samples: Samples, memory: Memory) -> NodeSnapshot:
        """The job's current snapshot, without alerts.

        Args:
            spec: the job, as requested.
            samples: what is known besides the job's state.
            memory: what a restarted process restores, besides what it finds here.
        """
        self._seq += 1
        now_s = boottime_s()
        return replace(
            view(spec, self.log.state, samples, utc_now()),
            seq=self._seq,
            host=procs.host_name(),
            boot_id=procs.boot_id(),
            pid_ns=procs.pid_namespace(),
            guardian=self._guardian,
            supervisor=self._self,
            ran_s=self.clock.lived_s(now_s),
            boottime_s=now_s,
            memory=replace(
                memory,
                state=self.log.state,
                last_seq=self.history.last_seq,
                alerts=self.alerts.reported,
            ).plain(),
        )

    def write(self, snapshot: NodeSnapshot) -> NodeSnapshot:
        """Write a snapshot with the current alerts, and the spec if it was deleted; returns it."""
        whole = replace(snapshot, alerts=self.alerts.now)
        self.snapshot_file.write(encode(whole))  # if it fails, the next tick retries
        if not self._folder.spec_file.exists():
            with contextlib.suppress(OSError):  # without the run folder
                write_spec(self._folder, self._spec)
        return whole

    def record(self, snapshot: NodeSnapshot, final: bool = False) -> None:
        """Add the figures of ranks and devices to the history."""
        gpus = devices_for_history(snapshot)
        self.history.add(snapshot.ts, snapshot.attempt, for_history(snapshot), gpus, final)


# -- its clock -------------------------------------------------------------------------------------


class JobClock:
    """A job's times, tracked by its supervisor.

    Args:
        started_at: when the job was launched.
    """

    def __init__(self, started_at: dt.datetime) -> None:
        self.started_at = started_at
        self._lived_before_s = 0.0
        self._since_s = boottime_s()

    def continue_from(self, previous: NodeSnapshot, *, alive_since: bool) -> None:
        """Continue from an earlier snapshot.

        Args:
            previous: the last snapshot.
            alive_since: whether the job has continued since then without its supervisor;
                otherwise, it had ended or was lost.
        """
        self.started_at = previous.started_at
        self._lived_before_s = previous.ran_s or 0.0
        if alive_since:
            self._lived_before_s += unseen_s(previous, self._since_s)

    def begin_again(self) -> None:
        """Restart the clock, because the time before (a wait for devices) does not count."""
        self.started_at, self._lived_before_s, self._since_s = utc_now(), 0.0, boottime_s()

    def lived_s(self, now_s: float) -> float:
        """How long the job has lived at that CLOCK_BOOTTIME."""
        return self._lived_before_s + max(0.0, now_s - self._since_s)


def unseen_s(previous: NodeSnapshot, now_s: float) -> float:
    """Seconds from a live job's snapshot to now if both are from the same boot; otherwise, 0."""
    if previous.state not in LIVE_STATES or previous.boot_id != procs.boot_id():
        return 0.0
    return 0.0 if previous.boottime_s is None else max(0.0, now_s - previous.boottime_s)


# -- what an earlier process left ------------------------------------------------------------------


@dataclass(frozen=True)
class Recovered:
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


def recover(folder: RunFolder, hello: pt.GuardianHello) -> Recovered:
    """Read what is left; the guardian's hello shows why this supervisor was started."""
    snapshot, damage = _last_snapshot(folder)
    events: tuple[Event, ...] = ()
    with contextlib.suppress(DdptopError):
        events = tuple(HistoryReader(folder.history_db).events(silent=True))
    adopted, restarts = hello.adopted, hello.supervisor_restarts
    if snapshot is None or not (adopted or restarts) or _is_of_an_earlier_life(snapshot, hello):
        event: ev.JobEvent | None = _lost(snapshot)
        if damage is not None:
            event = ev.Noticed(attempt=hello.attempt, text=damage)
        return Recovered(snapshot, has_continued=False, event=event, events=events)
    came = ev.GuardianRestarted if adopted and not restarts else ev.SupervisorRestarted
    event = came(attempt=snapshot.attempt, damage=damage)
    return Recovered(snapshot, has_continued=True, event=event, events=events)


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
