"""The supervisor: gathers every source into one model, writes snapshot and history, takes commands.

It imports no torch. It may die at any time: the guardian starts it again, it binds the same socket
paths, reads its last snapshot, and the agent tells it the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path, PurePath
from typing import Any

import msgspec

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.base.errors import ControlError, DdptopError
from ddptop_runner.base.files import lock
from ddptop_runner.base.paths import RunFolder, create_local_dir
from ddptop_runner.base.start import PRIVATE
from ddptop_runner.devices.report import DeviceReport
from ddptop_runner.host import procs
from ddptop_runner.host.exits import OrphanWatch
from ddptop_runner.host.handover import agent_plan
from ddptop_runner.host.tree import HostUsage
from ddptop_runner.job import evidence
from ddptop_runner.job.attempt import Attempt
from ddptop_runner.job.decide import NO_HEAD
from ddptop_runner.job.event_log import EventLog
from ddptop_runner.job.progress import JobProgress
from ddptop_runner.judge.alerts import Finding, stalled
from ddptop_runner.launch.gpus.choice import job_environment
from ddptop_runner.launch.gpus.queue import QueueWatch, feed_of, queue_of
from ddptop_runner.model import events as ev
from ddptop_runner.model.node_link import NodeEvent, NodeState, Report
from ddptop_runner.model.probe_message import decode_message
from ddptop_runner.model.snapshot import Event, NodeSnapshot, ProcessId, encode
from ddptop_runner.model.spec import JobSpec, Rendezvous, read_spec
from ddptop_runner.node import snapshot as node_snapshot
from ddptop_runner.node.agent_link import Message
from ddptop_runner.node.alerts import JobAlerts
from ddptop_runner.node.driver import JobDriver
from ddptop_runner.node.guardian import PACKET_BYTES
from ddptop_runner.node.job_clock import JobClock
from ddptop_runner.node.keeper import RunFolderKeeper, write_end
from ddptop_runner.node.last_resort import LastResort
from ddptop_runner.node.past import look_back
from ddptop_runner.node.server import ControlServer, SocketFile
from ddptop_runner.store.disk import SteadyFile
from ddptop_runner.store.history import HistoryReader, HistoryWriter

TICK_S = 1.0
DATAGRAM_BYTES = 8192
ORPHAN_GRACE_S = 30.0
LEAVE_AFTER_S = 0.05  # for the answer to whoever asked this supervisor to leave
SHOWN_CHARACTERS = 2000
"""Of an event in the pane; the history has it whole."""


class Supervisor:
    """One job's supervisor. Construct inside a running event loop, then `run`."""

    def __init__(self, folder: RunFolder, spec: JobSpec, channel: socket.socket) -> None:
        self._folder = folder
        self._spec = spec
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._seq = 0
        self._unguarded = False
        self._is_reachable = False
        """Whether commands are served: what is published before would call for some."""
        self._devices_changed = False
        """Whether an attempt ran, or is to run, on other devices than the one before."""
        self._clock = JobClock(spec.created_at)
        self._guardian: ProcessId | None = None
        self._self = procs.identify(os.getpid())
        self._usage = HostUsage()
        self._orphans = OrphanWatch(lambda *ended: self._driver.seen_to_exit(*ended))
        self._history = HistoryWriter(folder.live_dir / "history.db", hosts=spec.hosts)
        self._log = EventLog(self._history, self._show)
        self.defects = LastResort(self._log)
        self._driver = JobDriver(folder, spec, self._log, self._usage, self)
        self._snapshot_file = SteadyFile(folder.node_file(procs.host_name()))
        self._keeper = RunFolderKeeper(folder, spec, self._log, self._history, self._snapshot_file)
        self._progress = JobProgress(folder, spec.cwd, spec.command())
        self._alerts = JobAlerts(self._log, self.defects)
        self._driver.before_end = self._alerts.tell_end
        self._queue = queue_of(folder, spec, self._log)
        self._feed = self._queue or feed_of(spec)
        self._probe_socket: socket.socket | None = None
        self._probe_path: SocketFile | None = None
        self._sockets_problem: str | None = None
        self._server = ControlServer(
            folder.control_socket, self._command, self._driver, self._follow
        )
        self._followers: list[Callable[[bytes], None]] = []
        self._contact_s = boottime_s()
        """When the head of a job on several nodes was last heard of."""

    @property
    def _attempt(self) -> Attempt:
        return self._driver.attempt

    async def run(self) -> int:
        """Supervise until the group has ended; the job's exit code for the guardian."""
        with contextlib.suppress(OSError):  # ranks may be speaking; the first tick tries again
            self._bind_probe_socket()
        hello = json.loads(await self._loop.sock_recv(self._channel, PACKET_BYTES))
        self._greet(hello)
        await self._bind_sockets()
        self._is_reachable = True
        self.publish()
        self._loop.add_reader(self._channel, self._read_guardian)
        if self._feed is not None:
            await self._feed.start()
        try:
            await self._tick_until_ended()
        finally:
            await self._shut_down()
        self._tell_guardian({"type": "done", "exit_code": self._exit_status()})
        return 0

    # -- the loop --------------------------------------------------------------------------------

    async def _tick_until_ended(self) -> None:
        next_tick_s = self._loop.time()
        while not self._driver.ended.is_set():
            await self._keep_sockets()
            self._tick()
            next_tick_s = max(next_tick_s + TICK_S, self._loop.time())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._driver.ended.wait(), next_tick_s - self._loop.time())

    def _tick(self) -> None:
        """Gather the figures, let the job decide on them, then publish what is known."""
        if self._queue is not None:
            self._tick_in_queue(self._queue)
            return
        attempt, now_s = self._attempt, boottime_s()
        self._look_for_head(now_s)
        self._look_at_usage()
        self.defects.call(lambda: attempt.look_at_tree(now_s, self._progress.is_printed), None)
        self.defects.call(self._look_at_output, None)
        self._orphans.look(self._driver.unguarded_processes())
        self.defects.call(lambda: attempt.look_at_progress(now_s), None)
        attempt.look_at_checkpoints()
        snapshot = self._snapshot()
        self.defects.call(lambda: attempt.look_at_losses(snapshot.ranks), None)
        if self._driver.job.phase != snapshot.state:
            snapshot = self._snapshot()
        attempt.table.note_peaks(snapshot.ranks)
        self._look_for_trouble(snapshot, now_s)
        self._write(msgspec.structs.replace(snapshot, alerts=self._alerts.now))
        ranks = node_snapshot.for_history(snapshot)
        self._history.add(snapshot.ts, snapshot.attempt, ranks, snapshot.gpus)
        attempt.table.forget_loss_range()

    def _look_for_trouble(self, snapshot: NodeSnapshot, now_s: float) -> None:
        driver, call = self._driver, self.defects.call
        found: list[Finding] = []
        found += call(lambda: self._keeper.look(self._attempt.number, now_s), [])
        found += call(lambda: driver.devices.look(self.device_report(), driver.job.set_aside), [])
        if self._spec.membership is not None:  # the head judges the ranks of all nodes together
            self._alerts.look(msgspec.structs.replace(snapshot, ranks=[], gpus=[]), found, now_s)
            return
        found += stalled(snapshot.pause, is_told=self._attempt.hangs.is_on)
        at_work = [gpu for gpu in snapshot.gpus if gpu.index not in snapshot.set_aside]
        self._alerts.look(msgspec.structs.replace(snapshot, gpus=at_work), found, now_s)

    def _look_at_usage(self) -> None:
        records = self._attempt.table.everyone()
        alive = [record for record in records if record.alive]
        pids = {one.rank: one.pid for one in alive if one.pid is not None}
        usage = self._usage.look(pids, [one.rank for one in alive if one.reported.phase == "data"])
        for record in records:
            record.usage = usage.get(record.rank)

    def _look_at_output(self) -> None:
        attempt = self._attempt
        self._progress.look(attempt.table, attempt.number, attempt.started_s)
        attempt.look_at_steps(self._progress.steps(attempt.table, attempt.number))

    # -- waiting for devices ---------------------------------------------------------------------

    def _tick_in_queue(self, queue: QueueWatch) -> None:
        # without a guardian, nobody would start it
        may_start = self._driver.job.phase == "queued" and not self._unguarded
        launched = queue.look() if may_start else None
        self._alerts.now = [queue.alert()]
        if launched is not None:
            self._leave_queue(launched)
        self.publish()

    def _leave_queue(self, spec: JobSpec) -> None:
        """The job has its devices: begin."""
        if self._queue is not None:
            self.spawn(self._queue.stop())
        self._spec, self._alerts.now = spec, []
        self._clock.begin_again()
        self._queue, self._feed = None, feed_of(spec)
        if self._feed is not None:
            self.spawn(self._feed.start())
        self._driver.leave_queue(spec)
        self._log.emit(_launched(spec, self._attempt.number))
        by_uuid = spec.queue is not None and spec.queue.by_uuid
        env = job_environment(spec.devices, by_uuid=by_uuid)
        self._ask_for_agent(self._attempt.number, spec.max_restarts, env)

    async def _shut_down(self) -> None:
        self._read_probes()  # the last words of ranks that ended
        self._attempt.look_at_checkpoints(at_once=self._driver.ended.is_set())
        self._loop.remove_reader(self._channel)
        if self._feed is not None:
            await self._feed.stop()
        self._server.close()
        self._close_probe_socket()
        self._folder.probe_socket.unlink(missing_ok=True)
        if not self._driver.ended.is_set():
            return
        self._clock.end()
        self._keeper.close()
        self.defects.call(self._look_at_output, None)
        self._progress.close()
        snapshot = self._snapshot()
        ranks = node_snapshot.for_history(snapshot)
        self._history.add(snapshot.ts, snapshot.attempt, ranks, snapshot.gpus)
        await write_end(self._folder, snapshot, self._history, self._snapshot_file)

    def _exit_status(self) -> int:
        job = self._driver.job
        return job.exit_code if job.exit_code is not None else (job.phase != "finished")

    # -- what comes in ---------------------------------------------------------------------------

    async def _keep_sockets(self) -> None:
        """Bind again where a path is gone: cleaners of /tmp and /var/tmp delete what looks old."""
        has_probes = self._probe_path is not None and self._probe_path.is_there
        if has_probes and self._server.is_bound:
            return
        if not self._folder.path.is_dir():  # deleted under the job; nobody asks any more
            return
        was_bound = self._sockets_problem is None
        await self._bind_sockets()
        if was_bound and self._sockets_problem is None:
            where = self._folder.live_dir
            self._log.emit(ev.SocketsRecreated(attempt=self._attempt.number, folder=str(where)))

    async def _bind_sockets(self) -> None:
        """Bind what is not bound. Where that fails the next tick tries again, and it is told once.

        A supervisor without sockets still guards the job.
        """
        try:
            if self._folder.live_dir != self._folder.path and not self._folder.live_dir.is_dir():
                create_local_dir(self._folder)
            if self._probe_path is None or not self._probe_path.is_there:
                self._bind_probe_socket()
            if not self._server.is_bound:
                await self._server.start()
        except (OSError, DdptopError) as error:
            if self._sockets_problem != str(error):
                self._sockets_problem = str(error)
                self._log.emit(ev.SocketsFailed(attempt=self._attempt.number, error=str(error)))
        else:
            self._sockets_problem = None

    def _bind_probe_socket(self) -> None:
        self._read_probes()  # what came in while the path was there
        self._close_probe_socket()
        endpoint = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._probe_socket = endpoint
        self._probe_path = SocketFile(endpoint, self._folder.probe_socket)
        self._loop.add_reader(endpoint, self._read_probes)

    def _close_probe_socket(self) -> None:
        if self._probe_socket is not None:
            self._loop.remove_reader(self._probe_socket)
            self._probe_socket.close()
        self._probe_socket = self._probe_path = None

    def _read_probes(self) -> None:
        for _ in range(64):  # then let the loop do other things
            if self._probe_socket is None:
                return
            try:
                data = self._probe_socket.recv(DATAGRAM_BYTES)
            except OSError:
                return
            message = decode_message(data)
            if message is not None and message.job == self._spec.job_id:
                heard = functools.partial(self._attempt.hear, message)
                self.defects.call(heard, None)

    def _greet(self, hello: Message) -> None:
        self._guardian = procs.identify(hello["guardian_pid"])
        self._driver.agent_pid = hello["agent_pid"]
        past = look_back(self._folder, hello)
        self._log.restore(past.events, past.snapshot if past.lives_on else None)
        if past.snapshot is not None:
            self._clock.go_on_from(past.snapshot, alive_since=past.lives_on)
            self._seq = past.snapshot.seq
            known = past.snapshot.memory.get("saves") or {}
            self._attempt.checkpoints.recall(
                past.snapshot.checkpoint, {"saved_at": known.get("saved_at")}
            )
            self._attempt.run_steps.recall(past.snapshot, resumed=False)
            self._attempt.look_at_steps({})
        if past.snapshot is not None and past.lives_on:
            self._driver.recover(past.snapshot)
            if past.snapshot.state != "queued":  # what it waits for is told anew at each look
                memory = past.snapshot.memory.get("alerts") or {}
                self._alerts.recall(past.snapshot.alerts, memory)
            if self._queue is not None:
                self._queue.skip_event()
        if past.event is not None:
            self._log.emit(past.event)
        if hello["agent_pid"] is None and not past.lives_on:
            self._log.emit(ev.QueueEntered(attempt=hello["attempt"]))
        if not past.lives_on and self._queue is None and hello["agent_pid"] is not None:
            self._log.emit(_launched(self._spec, hello["attempt"]))
        if self._queue is None and self._driver.job.phase == "queued":  # the last one took devices
            self._leave_queue(self._spec)
        # what the ranks did is known better from their own exits than from the agent's
        for exit_ in sorted(hello["exits"], key=lambda one: one["pid"] == hello["agent_pid"]):
            self._driver.process_exited(exit_["pid"], exit_["returncode"], exit_["at_boottime_s"])
        if past.lives_on:
            self._driver.resume()
        if hello.get("adopted"):
            self._orphans.begin(self._guardian)
            self._orphans.look(self._driver.unguarded_processes())

    def _read_guardian(self) -> None:
        """Take all that the guardian has sent; the agent's exit last, as in its hello."""
        messages: list[Message] = []
        is_alive = True
        while is_alive:
            try:
                packet = self._channel.recv(PACKET_BYTES)
            except BlockingIOError:
                break
            except OSError:
                packet = b""
            is_alive = bool(packet)
            if packet:
                messages.append(json.loads(packet))
        agent_pid = self._driver.agent_pid
        for message in sorted(messages, key=lambda one: one["pid"] == agent_pid):
            if message["type"] == "exited":
                self._driver.process_exited(
                    message["pid"], message["returncode"], message["at_boottime_s"]
                )
            elif message["type"] == "agent_started":
                self._driver.agent_pid = message["pid"]
                self._driver.awaits_agent = False
        if not is_alive:  # the guardian died: from now on nobody collects exits for us
            self._loop.remove_reader(self._channel)
            self._unguarded = True
            self._orphans.begin(None)

    def _follow(self, after_seq: int, send: Callable[[bytes], None]) -> Callable[[], None]:
        """Send the head what it has not seen yet, then what happens."""
        rows = HistoryReader(self._folder.history_db).events(silent=True, after_seq=after_seq)
        unsaved = [row for row in self._history.unsaved_events if row.seq > after_seq]
        for row in [*rows, *unsaved]:
            send(_line(NodeEvent(event=row)))

        def send_event(row: Event) -> None:
            send(_line(NodeEvent(event=row)))

        self._log.watchers.append(send_event)
        self._followers.append(send)
        self._contact_s = boottime_s()
        self.publish()

        def stop() -> None:
            self._log.watchers.remove(send_event)
            self._followers.remove(send)

        return stop

    def _look_for_head(self, now_s: float) -> None:
        """A node that no head reaches any more trains for nobody in the end."""
        membership = self._spec.membership
        if membership is None or self._driver.job.phase == "stopping":
            return
        if self._followers:
            self._contact_s = now_s
        elif now_s - self._contact_s > membership.orphan_timeout_s:
            self._log.emit(ev.Noticed(attempt=self._attempt.number, text=NO_HEAD))
            self._driver.stop(ORPHAN_GRACE_S)

    async def _command(self, message: Message) -> Message:
        op = message.get("op")
        self._contact_s = boottime_s()
        if op == "stop":
            self._driver.stop(float(message.get("grace_s", 30.0)))
        elif op == "kill":
            self._driver.stop(0.0)
        elif op == "restart":
            self._driver.restart(*_next_attempt(message))
        elif op == "stacks":
            return await self._stacks(message.get("rank"))
        elif op == "evidence":
            reason = str(message.get("reason", "failure"))
            return {"evidence": await self._driver.keep_evidence(reason)}
        elif op == "checkpoint":
            return {"asked": msgspec.to_builtins(self._attempt.ask_for_checkpoint())}
        elif op == "leave":
            self._leave()
        elif op != "ping":
            raise ControlError(f"unknown request {op!r}")
        return {"state": self._driver.job.phase}

    def _leave(self) -> None:
        """Make room for the supervisor of a new guardian, which goes on from the snapshot."""
        if not self._unguarded:
            raise ControlError("the job already has a guardian")

        def leave() -> None:
            self.publish()
            self._history.close()
            os._exit(0)

        self._loop.call_later(LEAVE_AFTER_S, leave)

    async def _stacks(self, rank: int | None) -> Message:
        records = [record for record in self._attempt.table if rank in (None, record.rank)]
        if not records and rank is None:
            raise ControlError("no ranks detected yet", "ranks appear once training starts")
        if not records:
            raise ControlError(f"rank {rank} does not exist", self._ranks_in_words())
        found = await evidence.collect_stacks(self._folder, self._attempt.number, records)
        return {"stacks": msgspec.to_builtins(found)}

    def _ranks_in_words(self) -> str:
        ranks = [record.rank for record in self._attempt.table]
        return f"valid ranks: {min(ranks)} to {max(ranks)}" if ranks else "no ranks detected yet"

    # -- what goes out ---------------------------------------------------------------------------

    def _show(self, line: str) -> None:
        self._tell_guardian({"type": "print", "text": line[:SHOWN_CHARACTERS]})

    def _tell_guardian(self, message: Message) -> None:
        with contextlib.suppress(OSError):  # a lost guardian does not stop the supervisor
            self._channel.send(json.dumps(message).encode())

    def start_agent(self, attempt: int, restarts_left: int) -> None:
        """Have the guardian start a new agent."""
        report = self.device_report()
        lost = report is not None and any(gpu.lost for gpu in report.gpus)
        env = {}
        if lost or self._devices_changed:  # any device of the machine may be lost: no indices
            env = job_environment(self._spec.devices, by_uuid=True)
        self._ask_for_agent(attempt, restarts_left, env)

    def _ask_for_agent(self, attempt: int, restarts_left: int, env: dict[str, str]) -> None:
        self._driver.awaits_agent = not self._unguarded
        rendezvous = self._driver.job.rendezvous
        plan = agent_plan(self._spec, self._folder, attempt, restarts_left, rendezvous)
        self._tell_guardian({"type": "start_agent", "plan": plan, "env": env})

    def device_report(self) -> DeviceReport | None:
        """The latest report on the job's devices; None where nothing samples them."""
        return None if self._feed is None else self._feed.latest

    def change_spec(self, spec: JobSpec) -> None:
        """The next attempts run on other devices, with another number of ranks."""
        self._spec = spec
        self._devices_changed = True

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the loop; an error of it is written to the supervisor's log."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self.defects.report(error)

    def snapshot_bytes(self) -> bytes:
        """The node snapshot of this moment."""
        return encode(self._snapshot())

    def publish(self) -> None:
        """Write the snapshot now."""
        if self._is_reachable:
            self._write(msgspec.structs.replace(self._snapshot(), alerts=self._alerts.now))

    def _write(self, snapshot: NodeSnapshot) -> None:
        self._snapshot_file.write(encode(snapshot))  # where it fails, the next tick tries again
        if self._followers:
            progress = [
                dataclasses.asdict(one) for one in self._attempt.table.progress(boottime_s())
            ]
            bare = msgspec.structs.replace(snapshot, memory={})
            line = _line(NodeState(snapshot=bare, progress=progress))
            for send in self._followers:
                send(line)

    def _snapshot(self) -> NodeSnapshot:
        self._seq += 1
        return node_snapshot.take(
            self._driver,
            self._spec,
            self._feed,
            folder=self._folder,
            seq=self._seq,
            clock=self._clock,
            progress=self._progress,
            alerts_memory=self._alerts.remember(),
            guardian=self._guardian,
            supervisor=self._self,
        )


def _line(report: Report) -> bytes:
    return msgspec.json.encode(report)


def _next_attempt(message: Message) -> tuple[int | None, Rendezvous | None]:
    """Number and rendezvous of the next attempt, as a head names them.

    Raises:
        ControlError: when they are none.
    """
    try:
        attempt = msgspec.convert(message.get("attempt"), int | None)
        return attempt, msgspec.convert(message.get("rendezvous"), Rendezvous | None)
    except msgspec.ValidationError as error:
        raise ControlError(f"invalid attempt or rendezvous: {error}") from error


def _launched(spec: JobSpec, attempt: int) -> ev.Launched:
    target = spec.command_line() if spec.is_command else PurePath(spec.target).name
    nproc = None if spec.is_command else spec.nproc
    return ev.Launched(
        attempt=attempt,
        target=target,
        nproc=nproc,
        devices=spec.devices or [],
        at_s=boottime_s(),
    )


async def supervise(folder: RunFolder, channel: socket.socket) -> int:
    """Run the supervisor of a job on the guardian's channel."""
    spec = read_spec(folder)
    if spec.placement is not None:
        from ddptop_runner.node.head import Head

        return await Head(folder, spec, channel).run()
    return await Supervisor(folder, spec, channel).run()


def main(run_dir: str, channel_fd: str) -> int:
    """Supervise the job of that run folder; started by the guardian."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(PRIVATE)
    folder = RunFolder(Path(run_dir))
    if lock(folder.supervisor_lock) is None:
        return 1
    channel = socket.socket(fileno=int(channel_fd))
    channel.setblocking(False)
    try:
        return asyncio.run(supervise(folder, channel))
    except DdptopError as error:
        sys.stderr.write(f"ddptop: {error}\n")
        return 1
