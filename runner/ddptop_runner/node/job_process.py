"""The common part of supervisor and head: log, clock, alerts, snapshots, tasks, guardian.

The supervisor of a node's ranks and the head of a job on several nodes each contain one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from msgspec.structs import replace

from ddptop_runner.base.clock import boottime_s, utc_now
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.host import procs
from ddptop_runner.job.event_log import EventLog
from ddptop_runner.job.memory import Memory
from ddptop_runner.job.view import Samples, devices_for_history, for_history, view
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.snapshot import NodeSnapshot, ProcessId, encode
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.node.alerts import JobAlerts
from ddptop_runner.node.guardian import PACKET_BYTES
from ddptop_runner.node.job_clock import JobClock
from ddptop_runner.node.keeper import write_end
from ddptop_runner.node.last_resort import LastResort
from ddptop_runner.node.past import Past, read_past
from ddptop_runner.store.disk import SteadyFile
from ddptop_runner.store.history import HistoryWriter

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
        self._folder = folder
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

    def restore(self, hello: pt.GuardianHello) -> Past:
        """Continue the log and clock of an earlier process of this job; returns what it left."""
        self._guardian = procs.identify(hello.guardian_pid)
        past = read_past(self._folder, hello)
        self.log.restore(past.events, past.snapshot if past.has_continued else None)
        if past.snapshot is not None:
            self.clock.continue_from(past.snapshot, alive_since=past.has_continued)
            self._seq = past.snapshot.seq
        return past

    def restore_alerts(self, past: Past) -> None:
        """Continue the alerts of an earlier process in this life of the job."""
        if past.snapshot is not None:
            self.alerts.recall(past.snapshot.alerts, past.memory.alerts)

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

    # -- tasks -----------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something concurrently with the loop; its errors go to the supervisor's log."""
        task = self._loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._task_done)

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
                alerts=self.alerts.remember(),
            ).plain(),
        )

    def write(self, snapshot: NodeSnapshot) -> NodeSnapshot:
        """Write a snapshot with the current alerts; returns it."""
        whole = replace(snapshot, alerts=self.alerts.now)
        self.snapshot_file.write(encode(whole))  # if it fails, the next tick retries
        return whole

    def record(self, snapshot: NodeSnapshot, final: bool = False) -> None:
        """Add the figures of ranks and devices to the history."""
        gpus = devices_for_history(snapshot)
        self.history.add(snapshot.ts, snapshot.attempt, for_history(snapshot), gpus, final)
