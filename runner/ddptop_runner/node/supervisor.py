"""The supervisor: combines all sources, writes snapshot and history, carries out commands.

It does not import torch. It may die at any time: the guardian restarts it, it binds the same socket
paths and reads its last snapshot, and the agent reports the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath

import msgspec

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.base.errors import ControlError, DdptopError
from ddptop_runner.base.files import lock
from ddptop_runner.base.paths import RunFolder, create_local_dir
from ddptop_runner.base.start import PRIVATE
from ddptop_runner.devices.feed import DeviceFeed
from ddptop_runner.devices.report import DeviceReport
from ddptop_runner.host import procs
from ddptop_runner.host.exits import OrphanWatch
from ddptop_runner.host.handover import agent_plan
from ddptop_runner.host.tree import HostUsage
from ddptop_runner.job import evidence
from ddptop_runner.job.attempt import Attempt
from ddptop_runner.job.decide import NOTICES
from ddptop_runner.job.progress import JobProgress
from ddptop_runner.job.registry import read_job
from ddptop_runner.job.samples import of_attempt
from ddptop_runner.judge.alerts import Finding, stalled
from ddptop_runner.judge.checkpoints import SaveMemory
from ddptop_runner.judge.restarts.devices import without
from ddptop_runner.launch.gpus.choice import job_environment
from ddptop_runner.launch.gpus.queue import QueueWatch, feed_of, queue_of
from ddptop_runner.launch.gpus.waiting import publish_jobs
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.probe_message import decode_message
from ddptop_runner.model.snapshot import Cause, Event, NodeSnapshot, encode
from ddptop_runner.model.spec import JobSpec, read_spec
from ddptop_runner.node.driver import JobDriver
from ddptop_runner.node.keeper import RunFolderKeeper
from ddptop_runner.node.process import TICK_S, JobProcess
from ddptop_runner.node.server import ControlServer, SocketFile

DATAGRAM_BYTES = 8192
ORPHAN_GRACE_S = 30.0
ADOPT_EVERY_S = 30.0
"""Between two attempts to start a new guardian."""
NO_HEAD = "no contact with the head of the job (--orphan-timeout)"
REPORTED = (ev.Launched, ev.TrainingStarted, ev.CheckpointSaved, ev.JobEnded, *NOTICES)
"""Events that a node's head takes over."""
COLLECT_AFTER = 20_000
"""A second with hundreds of ranks creates that many objects, almost all without cycles."""


class Supervisor:
    """One job's supervisor. Construct inside a running event loop, then `run`."""

    def __init__(self, folder: RunFolder, spec: JobSpec, channel: socket.socket) -> None:
        self._folder = folder
        self._loop = asyncio.get_running_loop()
        self._process = process = JobProcess(folder, spec, channel)
        self._log, self._alerts = process.log, process.alerts
        self.defects, self.spawn = process.defects, process.spawn
        self._is_reachable = False
        """Whether commands are served; publishing earlier would invite commands."""
        self._usage = HostUsage()
        self._orphans = OrphanWatch(lambda *ended: self._driver.seen_to_exit(*ended))
        self._driver = JobDriver(folder, spec, self._log, self._usage, self)
        self._keeper = RunFolderKeeper(
            folder, spec, self._log, process.history, process.snapshot_file
        )
        self._progress = JobProgress(folder, spec.cwd, spec.command())
        self._driver.before_end = self._alerts.record_end
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
        """When the head of a job on several nodes was last connected."""
        self._is_orphaned = False
        self._adopted_at_s = float("-inf")

    @property
    def _attempt(self) -> Attempt:
        return self._driver.attempt

    @property
    def _spec(self) -> JobSpec:
        return self._attempt.requested

    @property
    def _next_spec(self) -> JobSpec:
        """The job as the next agent runs it."""
        return without(self._spec, self._driver.job.set_aside)

    async def run(self) -> int:
        """Supervise until the group has ended; returns the job's exit code for the guardian."""
        with contextlib.suppress(OSError):  # ranks may be sending; the first tick retries
            self._bind_probe_socket()
        self._greet(await self._process.receive_hello())
        await self._bind_sockets()
        self._is_reachable = True
        self.publish()
        self._process.listen(self._take_messages, lambda: self._orphans.begin(None))
        if self._feed is not None:
            await self._feed.start()
        if self._spec.devices:  # other users see that the job has them as long as it lives
            self.defects.call(publish_jobs, None)
        self.spawn(self._hold_logs())
        try:
            await self._process.tick_until(self._driver.ended, self._each_second)
        finally:
            await self._shut_down()
        self._process.send_exit_code()
        return 0

    # -- the loop --------------------------------------------------------------------------------

    async def _each_second(self) -> None:
        await self._keep_sockets()
        self._tick()

    def _tick(self) -> None:
        """Gather figures, let the job decide on them, and publish the result."""
        if self._queue is not None:
            self._tick_in_queue(self._queue)
            return
        attempt, now_s = self._attempt, boottime_s()
        self._look_for_head(now_s)
        self._look_at_usage()
        self.defects.call(self._look_at_output, None)
        if self._progress.is_printed:
            self.defects.call(lambda: attempt.look_at_printing(now_s), None)
        self._orphans.look(self._driver.unguarded_processes())
        self.defects.call(lambda: attempt.look_at_progress(now_s), None)
        attempt.look_at_checkpoints()
        snapshot = self._snapshot()
        self.defects.call(lambda: attempt.trouble.look_at_losses(snapshot.ranks), None)
        if self._driver.job.phase != snapshot.state:
            snapshot = self._snapshot()
        attempt.table.note_peaks(snapshot.ranks)
        self._look_for_trouble(snapshot, now_s)
        self._write(snapshot)
        self._process.record(snapshot)
        attempt.table.forget_loss_range()

    def _look_for_trouble(self, snapshot: NodeSnapshot, now_s: float) -> None:
        driver, call = self._driver, self.defects.call
        found: list[Finding] = []
        found += call(lambda: self._keeper.look(self._attempt.number, now_s), [])
        found += call(lambda: driver.devices.update(self.device_report(), driver.job.set_aside), [])
        if self._spec.membership is not None:  # the head judges the ranks of all nodes together
            self._alerts.look(msgspec.structs.replace(snapshot, ranks=[], gpus=[]), found, now_s)
            return
        found += stalled(snapshot.pause, has_event=self._attempt.trouble.hangs.is_on)
        at_work = [gpu for gpu in snapshot.gpus if gpu.index not in snapshot.set_aside]
        self._alerts.look(msgspec.structs.replace(snapshot, gpus=at_work), found, now_s)
        self._process.look_at_workers(self._stacks)

    async def _hold_logs(self) -> None:
        """A rank that prints fast fills its reserved blocks between two ticks."""
        while not self._driver.ended.is_set():
            hold = functools.partial(self._keeper.hold_logs, self._attempt.number, boottime_s())
            await asyncio.sleep(self.defects.call(hold, TICK_S))

    def _look_at_usage(self) -> None:
        records = self._attempt.table.everyone()
        alive = [record for record in records if record.alive]
        pids = {one.rank: one.pid for one in alive if one.pid is not None}
        usage = self._usage.look(pids)
        for record in records:
            record.usage = usage.get(record.rank)

    def _look_at_output(self) -> None:
        attempt = self._attempt
        self._progress.look(attempt.table, attempt.number, attempt.started_s)
        attempt.look_at_steps(self._progress.steps(attempt.table, attempt.number))

    # -- waiting in the queue ---------------------------------------------------------------------

    def _tick_in_queue(self, queue: QueueWatch) -> None:
        is_queued = self._driver.job.phase == "queued"
        may_start = is_queued and not self._process.is_unguarded  # only a guardian can start it
        if is_queued and not may_start:
            self._get_guardian()
        launched = queue.look() if may_start else None
        self._alerts.now = [queue.alert()]
        if may_start and queue.never is not None:
            cause = Cause(kind="launch", headline=queue.never, summary=f"{queue.never}.")
            self._driver.take(pt.AgentExited(pid=None, agent=pt.AgentState(status=0, cause=cause)))
        if launched is not None:
            self._leave_queue(launched)
        self.publish()

    def _get_guardian(self) -> None:
        """Start a new guardian, as nobody may look at the job before its turn comes."""
        if boottime_s() - self._adopted_at_s < ADOPT_EVERY_S:
            return
        self._adopted_at_s = boottime_s()

        async def adopt() -> None:
            from ddptop_runner.node import adoption  # few jobs need it

            with contextlib.suppress(DdptopError, OSError):
                await asyncio.to_thread(lambda: adoption.adopt(read_job(self._folder), os.environ))

        self.spawn(adopt())

    def _leave_queue(self, spec: JobSpec) -> None:
        """Begin, because the job has its devices."""
        if self._queue is not None:
            self.spawn(self._queue.stop())
        self._alerts.now = []
        self._process.clock.begin_again()
        self._queue, self._feed = None, feed_of(spec)
        if self._feed is not None:
            self.spawn(self._feed.start())
        self._driver.leave_queue(spec)
        self._log.emit(_launched(spec, self._attempt.number))
        by_uuid = spec.queue is not None and spec.queue.by_uuid
        env = job_environment(spec.devices, by_uuid=by_uuid)
        order = pt.StartAgent(attempt=self._attempt.number)
        self._ask_for_agent(order, env)

    async def _shut_down(self) -> None:
        self._read_probes()  # the last messages of ranks that exited
        self._attempt.look_at_checkpoints(at_once=self._driver.ended.is_set())
        self._process.stop_listening()
        if self._feed is not None:
            await self._feed.stop()
        self._server.close()
        self._close_probe_socket()
        self._folder.probe_socket.unlink(missing_ok=True)
        if not self._driver.ended.is_set():
            return
        self._keeper.close()
        self.defects.call(self._look_at_output, None)
        self._progress.close()
        await self._process.end(self._snapshot)

    # -- input -----------------------------------------------------------------------------------

    async def _keep_sockets(self) -> None:
        """Rebind missing paths: cleaners of /tmp and /var/tmp delete what looks old."""
        has_probes = self._probe_path is not None and self._probe_path.is_there
        if has_probes and self._server.is_bound:
            return
        if not self._folder.path.is_dir():  # deleted while the job runs, so no client can find it
            return
        was_bound = self._sockets_problem is None
        await self._bind_sockets()
        if was_bound and self._sockets_problem is None:
            where = self._folder.live_dir
            self._notice(f"recreated the job's sockets, which had been deleted from {where}")

    async def _bind_sockets(self) -> None:
        """Bind unbound sockets. If that fails, it is reported once and retried by the next tick.

        A supervisor without sockets still guards the job.
        """
        try:
            if self._folder.live_dir != self._folder.path:
                create_local_dir(self._folder)
            if self._probe_path is None or not self._probe_path.is_there:
                self._bind_probe_socket()
            if not self._server.is_bound:
                await self._server.start()
        except (OSError, DdptopError) as error:
            if self._sockets_problem != str(error):
                self._sockets_problem = str(error)
                why = f"cannot bind the job's sockets ({error})"
                self._notice(f"{why}: only `ddptop kill` can stop the job")
        else:
            self._sockets_problem = None

    def _notice(self, text: str) -> None:
        self._log.emit(ev.Noticed(attempt=self._attempt.number, text=text))

    def _bind_probe_socket(self) -> None:
        self._read_probes()  # what arrived while the path existed
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
        for _ in range(64):  # then let the loop run other tasks
            if self._probe_socket is None:
                return
            try:
                data = self._probe_socket.recv(DATAGRAM_BYTES)
            except OSError:
                return
            message = decode_message(data)
            if message is not None and message.job == self._spec.job_id:
                self.defects.call(functools.partial(self._attempt.receive, message), None)

    def _greet(self, hello: pt.GuardianHello) -> None:
        self._driver.agent_pid = hello.agent_pid
        found = self._process.restore(hello)
        if found.snapshot is not None:
            saves = SaveMemory(saved_at=found.memory.saves.saved_at)
            self._attempt.checkpoints.recall(found.snapshot.checkpoint, saves)
            self._attempt.run_steps.recall(found.snapshot, resumed=False)
            self._attempt.look_at_steps({})
        if found.snapshot is not None and found.has_continued:
            self._driver.recover(found.snapshot, found.memory)
            if found.snapshot.state != "queued":  # the queue raises its alert at each tick
                self._process.restore_alerts(found)
            if self._queue is not None:
                self._queue.skip_event()
        if found.event is not None:
            self._log.emit(found.event)
        if hello.agent_pid is None and not found.has_continued:
            self._log.emit(ev.Queued(attempt=hello.attempt))
        if not found.has_continued and self._queue is None and hello.agent_pid is not None:
            self._log.emit(_launched(self._spec, hello.attempt))
        if (
            self._queue is None and self._driver.job.phase == "queued"
        ):  # the previous supervisor took devices
            self._leave_queue(self._spec)
        # the ranks' own exits show what they did better than the agent's
        self._take_messages(hello.exits)
        if found.has_continued:
            self._driver.resume()
        if hello.adopted:
            self._orphans.begin(procs.identify(hello.guardian_pid))
            self._orphans.look(self._driver.unguarded_processes())

    def _take_messages(self, messages: Sequence[pt.ToSupervisor]) -> None:
        """Take in exits collected by the guardian, the agent's last, and starts of agents."""
        agent_pid = self._driver.agent_pid
        for message in sorted(messages, key=lambda one: one.pid == agent_pid):
            if isinstance(message, pt.Exited):
                pid, status, at_s = message.pid, message.returncode, message.at_boottime_s
                self._driver.process_exited(pid, status, at_s)
            else:
                self._driver.agent_pid = message.pid
                self._driver.awaits_agent = False

    def _follow(self, after_seq: int, send: Callable[[bytes], None]) -> Callable[[], None]:
        """Send the head what it has not seen yet, and then new events."""

        def send_event(row: Event) -> None:
            if isinstance(ev.of_row(row), REPORTED):
                send(pt.line(pt.NodeEvent(event=row)))

        for row in self._process.rows_after(after_seq):
            send_event(row)
        self._log.watchers.append(send_event)
        self._followers.append(send)
        if self._spec.membership is not None and not self._driver.job.is_over:
            for fact in self._driver.resync():
                send(pt.line(pt.NodeFact(fact=fact)))
        self._contact_s = boottime_s()
        self.publish()

        def stop() -> None:
            self._log.watchers.remove(send_event)
            self._followers.remove(send)

        return stop

    def _look_for_head(self, now_s: float) -> None:
        """Stop a node without contact to its head for `--orphan-timeout`."""
        membership = self._spec.membership
        if membership is None or self._is_orphaned:
            return
        if self._followers:
            self._contact_s = now_s
        elif now_s - self._contact_s > membership.orphan_timeout_s:
            self._is_orphaned = True
            self._notice(NO_HEAD)
            self._driver.stop(ORPHAN_GRACE_S)

    def report(self, fact: pt.Fact) -> None:
        """Send the head a fact, if it follows this node."""
        for send in self._followers:
            send(pt.line(pt.NodeFact(fact=fact)))

    async def _command(self, request: pt.SupervisorRequest) -> pt.Reply:
        self._contact_s = boottime_s()
        if isinstance(request, pt.StopAsked):
            self._driver.stop(request.grace_s, request.by)
        elif isinstance(request, pt.Restart):
            self._driver.restart()
        elif isinstance(request, pt.Carry):
            self._driver.carry(request)
        elif isinstance(request, pt.JudgeRanks):
            return self._driver.judge_ranks(request.attempt)
        elif isinstance(request, pt.GetStacks):
            return await self._stacks(request.rank)
        elif isinstance(request, pt.SaveEvidence):
            self._attempt.look_at_checkpoints(at_once=True)  # the head counts the lost work
            await self._driver.keep_evidence(request.reason)
        elif isinstance(request, pt.MoveInQueue):
            if self._queue is None:
                raise ControlError(f"{self._spec.job} is not waiting")
            self._queue.move(request.place)
        elif isinstance(request, pt.AttemptBegan):
            self._attempt.began_elsewhere = (request.attempt, request.step)
        elif isinstance(request, pt.RequestCheckpoint):
            return self._attempt.ask_for_checkpoint()
        elif not isinstance(request, pt.Ping):
            raise ControlError("only the head of a job on several nodes fetches files")
        return pt.Done()

    async def _stacks(self, rank: int | None) -> pt.Stacks:
        records = [record for record in self._attempt.table if rank in (None, record.rank)]
        if not records and rank is None:
            raise ControlError("no ranks detected yet", "ranks appear once training starts")
        if not records:
            raise ControlError(f"rank {rank} does not exist", self._ranks_in_words())
        found = await evidence.collect_stacks(self._folder, self._attempt.number, records)
        return pt.Stacks(stacks=found)

    def _ranks_in_words(self) -> str:
        ranks = [record.rank for record in self._attempt.table]
        return f"valid ranks: {min(ranks)} to {max(ranks)}" if ranks else "no ranks detected yet"

    # -- output ----------------------------------------------------------------------------------

    def start_agent(self, order: pt.StartAgent) -> None:
        """Have the guardian start a new agent."""
        report, job = self.device_report(), self._driver.job
        lost = report is not None and any(gpu.lost for gpu in report.gpus)
        env = {}
        # any device of the machine may be lost, so there are no indices
        if lost or job.set_aside or job.needs_new_agent:
            env = job_environment(self._next_spec.devices, by_uuid=True)
        self._ask_for_agent(order, env)

    def _ask_for_agent(self, order: pt.StartAgent, env: dict[str, str]) -> None:
        self._driver.awaits_agent = not self._process.is_unguarded
        plan = agent_plan(self._next_spec, self._folder, order.attempt, order.rendezvous)
        self._process.send_to_guardian(pt.LaunchAgent(plan=plan, env=env))

    def device_report(self) -> DeviceReport | None:
        """The latest report on the job's devices; None if nothing samples them."""
        return None if self._feed is None else self._feed.latest

    def request_device_report(self) -> None:
        """Have the job's devices read at once, if anything samples them."""
        if isinstance(self._feed, DeviceFeed):
            self._feed.request()

    def snapshot_bytes(self) -> bytes:
        """The current node snapshot."""
        return encode(self._snapshot())

    def publish(self) -> None:
        """Write the snapshot immediately."""
        if self._is_reachable:
            self._write(self._snapshot())

    def _write(self, snapshot: NodeSnapshot) -> None:
        written = self._process.write(snapshot)
        if self._followers:
            progress = [
                dataclasses.asdict(one) for one in self._attempt.table.progress(boottime_s())
            ]
            bare = msgspec.structs.replace(written, memory={})
            line = pt.line(pt.NodeState(snapshot=bare, progress=progress))
            for send in self._followers:
                send(line)

    def _snapshot(self) -> NodeSnapshot:
        agent_pid, feed = self._driver.agent_pid, self._feed
        samples = of_attempt(
            self._attempt,
            self._progress,
            None if feed is None else feed.latest,
            folder=self._folder,
            started_at=self._process.clock.started_at,
            agent=None if agent_pid is None else procs.identify(agent_pid),
            device_note=None if feed is None else feed.note,
        )
        return self._process.snapshot(self._spec, samples, self._driver.remember())


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
    gc.freeze()  # what was imported stays
    gc.set_threshold(COLLECT_AFTER)
    try:
        return asyncio.run(supervise(folder, channel))
    except DdptopError as error:
        sys.stderr.write(f"ddptop: {error}\n")
        return 1
