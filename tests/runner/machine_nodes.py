"""A simulated job on several nodes: its real head, in virtual time, over nodes that lose anything.

The head is `node.head.Head` with its orders, waits, and retries; what it reads and writes is
replaced: links, history, snapshot file, control socket. A node of the simulation behaves as
`job.decide` has it for one of several, and outlives the head. Whoever cuts a link loses what was on
its way: orders, answers, and events, of which the node keeps its own log.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import selectors
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
from tests.runner.builders import make_snapshot, make_spec
from tests.runner.machine import Rows

from ddptop_runner.base.errors import ControlError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.job.decide import NO_HEAD
from ddptop_runner.job.event_log import as_row
from ddptop_runner.job.memory import read_memory
from ddptop_runner.job.state import JobState
from ddptop_runner.judge.causes.culprit import RankEnd
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.diagnose import AttemptOutcome, RankExit
from ddptop_runner.model.snapshot import Cause, Event, decode_snapshot
from ddptop_runner.model.spec import NodeSpec, Placement, Rendezvous
from ddptop_runner.node import head as head_module
from ddptop_runner.node import job_process, orders, parts
from ddptop_runner.node.head import Head
from ddptop_runner.node.links import SILENT_S, LinkError
from ddptop_runner.node.past import Past
from ddptop_runner.node.remote import HEAD_SILENT_S, REQUEST_S
from ddptop_runner.node.supervisor import ORPHAN_GRACE_S

MOST_RESTARTS = 3
NODE_TIMEOUT_S = 40.0
ORPHAN_TIMEOUT_S = 600.0
STEPS = 25
SETTLED_S = 600.0
"""This long after the last event, everything that follows from it has happened."""
JOIN_S = 60.0
"""How long the nodes of an attempt wait for each other."""
HANG_S = 60.0
"""How long until ranks whose peer disappeared silently are found to hang, and are ended."""
STOPPED_S = 180.0
"""A stop ends the job within this time, whatever the state of its nodes."""
QUIET_S = 35.0
"""Longer than any wait without a pending order."""
LINK_BACK_S = 15.0
"""How long until a link is reestablished and the node has reported what happened."""
TICK_S = 10.0
POLL_S = 0.5
FOLDER = RunFolder(Path(tempfile.gettempdir()) / "machine-nodes" / "train")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Waiting takes no real time."""

    def __init__(self) -> None:
        self.clock_s = 1000.0
        super().__init__(_Jumps(self))

    def time(self) -> float:
        return self.clock_s


class _Jumps(selectors.SelectSelector):
    """Nothing comes from outside: the head's only channel contains its hello from the start."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "nothing is left to wait for"
        if timeout > 0:
            self._loop.clock_s += max(timeout, 1e-6)  # a sum that is rounded down would not advance
        return []


class Node:
    """One node's part of the job, like its supervisor."""

    def __init__(self, world: World, spec: NodeSpec) -> None:
        self.world, self.spec = world, spec
        self.host = spec.host
        self.is_cut = False
        self.is_off = False
        self.is_wedged = False
        """Whether its supervisor does nothing, as in a write that never returns."""
        self.is_full = False
        """Whether its disk is, so that it starts nothing."""
        self.log: list[Event] = []
        self.phase = "none"
        """`none`, `starting`, `running`, `held`, `stopping`, `ended`."""
        self.attempt: int | None = None
        self.met: Rendezvous | None = None
        self.alive: dict[int, int] = {}
        """Pid by rank."""
        self.judged: set[int | None] = set()
        """Attempts that have failed here."""
        self.join_s = 0.0
        """Until when it waits for the other nodes of its attempt."""
        self.ends: list[RankEnd] = []
        self.link: Link | None = None
        self.loses_at_s = 0.0
        """By when its ranks fail, because others have."""
        self.has_finished = False
        """Whether it has ended well."""
        self.back_s = math.inf
        """Since when it is in contact with the head; as long as it is not, in the future."""
        self.lost_s = 0.0
        """Since when it follows no head any more."""
        self.finished_s = 0.0
        self.refused_in: int | None = None
        """The attempt of the job in which it refused an order."""

    @property
    def can_be_reached(self) -> bool:
        return not (self.is_cut or self.is_off)

    @property
    def is_heard(self) -> bool:
        return self.can_be_reached and not self.is_wedged

    def changes(self, **flags: bool) -> None:
        """It becomes unreachable, or reachable again."""
        for name, value in flags.items():
            setattr(self, name, value)
        self.note_contact()

    def note_contact(self) -> None:
        if not self.is_heard or self.link is None or self.link.is_silent:
            self.back_s = math.inf
        else:
            self.back_s = min(self.back_s, self.world.loop.time())

    def gets_link(self, link: Link) -> None:
        self.link = link
        self.note_contact()

    def loses_link(self, *, after_s: float = 0.0) -> None:
        """It ends by itself, unless a head returns within `--orphan-timeout`."""
        self.link = None
        self.note_contact()
        lost_s = self.lost_s = self.world.loop.time()

        def look() -> None:
            if self.link is not None or self.lost_s != lost_s:
                return
            if self.is_wedged:
                self.world.loop.call_later(TICK_S, look)
            elif self.is_alive and self.phase != "stopping":
                self.record(ev.Noticed(attempt=self.attempt, text=NO_HEAD))
                self._others_lose()
                self._stop(ORPHAN_GRACE_S)

        self.world.loop.call_later(after_s + ORPHAN_TIMEOUT_S, look)

    @property
    def is_alive(self) -> bool:
        return self.phase in ("starting", "running", "held", "stopping")

    def record(self, event: ev.JobEvent) -> None:
        row = msgspec.structs.replace(as_row(event), seq=len(self.log) + 1)
        self.log.append(row)
        if self.link is not None:
            self.link.wake.set()

    def later(self, least_s: float, most_s: float, do: Callable[[], None]) -> None:
        """Unless another attempt began or the node was powered off in between."""
        attempt, life = self.attempt, self.world.lives[self.host]

        def check() -> None:
            if (attempt, life) != (self.attempt, self.world.lives[self.host]):
                return
            if self.is_wedged:
                self.world.loop.call_later(TICK_S, check)
            else:
                do()

        delay_s = self.world.random.uniform(least_s, most_s)
        self.world.loop.call_later(delay_s, check)

    # -- what the head asks for ------------------------------------------------------------------

    def start(self, attempt: int, rendezvous: Rendezvous) -> dict[str, Any]:
        if self.is_alive:
            raise ControlError("the node's part of the job is already running")
        if self.is_full:
            self.refused_in = self.world.job.attempt
            raise ControlError("No space left on device")
        assert not self.world.job.nodes[self.host].refused, "a node that is left out is ordered"
        assert self.attempt is None or attempt >= self.attempt, "an attempt is started again"
        self._begin(attempt, rendezvous)
        self.record(ev.Launched(attempt=attempt, target="train.py", nproc=self.spec.nproc))
        return {}

    def _begin(self, attempt: int, rendezvous: Rendezvous) -> None:
        assert not self.alive, "two attempts on one node"
        if attempt in self.world.meetings:
            assert self.world.meetings[attempt] == (rendezvous.run_id, rendezvous.nodes) or (
                self.world.heads > 1
            ), "an attempt meets twice"
        self.world.meetings[attempt] = (rendezvous.run_id, rendezvous.nodes)
        self.attempt, self.met, self.phase, self.ends = attempt, rendezvous, "starting", []
        self.has_finished = False
        self.join_s = self.world.loop.time() + JOIN_S
        self.later(0.1, 8.0, self._join)

    def _join(self) -> None:
        """All nodes of an attempt join, or none starts a rank."""
        if self.phase != "starting" or self.met is None:
            return
        there = [one for one in self.world.nodes.values() if one.has_joined(self.met.run_id)]
        if len(there) == self.met.nodes:
            for node in there:
                node._group_started()
        elif self.world.loop.time() > self.join_s:
            self._held(None)
        else:
            self.later(1.0, 5.0, self._join)

    def has_joined(self, run_id: str) -> bool:
        """Whether it waits for the others; a node that stopped waiting is no longer there."""
        return self.phase == "starting" and self.met is not None and self.met.run_id == run_id

    def _group_started(self) -> None:
        if self.phase != "starting" or self.met is None:
            return
        self.phase = "running"
        ranks = range(self.met.first_rank, self.met.first_rank + self.spec.nproc)
        self.record(
            ev.AttemptStarted(attempt=self.attempt, world=len(ranks), at_s=self.world.loop.time())
        )
        for rank in ranks:
            self.alive[rank] = self.world.pid()
            self.record(ev.RankStarted(attempt=self.attempt, rank=rank, pid=self.alive[rank]))
        self.later(0.5, 3.0, self._train)

    def _train(self) -> None:
        if self.phase == "running":
            self.record(ev.TrainingStarted(attempt=self.attempt, after_s=1.0))

    def request(self, request: pt.NodeRequest) -> pt.Reply:
        if isinstance(request, pt.Restart):
            assert request.attempt is not None and request.rendezvous is not None
            self._restart(request.attempt, request.rendezvous)
            return pt.Done()
        if not self.is_alive:
            raise ControlError("nothing of the job runs here")
        if isinstance(request, pt.StopAsked):
            self._stop(request.grace_s)
        elif isinstance(request, pt.RequestCheckpoint):
            return pt.SaveAsked(signalled={}, flag_file="save")
        elif isinstance(request, pt.SaveEvidence) and not self.alive:
            raise ControlError("no rank is alive")
        return pt.Done()

    def _restart(self, attempt: int, rendezvous: Rendezvous) -> None:
        if attempt == self.attempt and self.phase in ("starting", "running"):
            return
        if self.phase not in ("running", "held") or attempt != (self.attempt or 0) + 1:
            raise ControlError(f"this node is {self.phase} in attempt {self.attempt}")
        kind = ev.RestartHurried if self.phase == "held" else ev.RestartRequested
        self.record(kind(attempt=self.attempt, used=0, rendezvous=rendezvous))
        self._end_ranks()
        self._begin(attempt, rendezvous)

    def _stop(self, grace_s: float) -> None:
        if self.phase == "stopping" and grace_s > 0:
            return
        self.phase = "stopping"
        self.later(0.1, 0.2 + grace_s, self._stopped)

    def _stopped(self) -> None:
        if self.phase == "stopping":
            self._end_ranks()
            self._ended("stopped")

    def _ended(self, state: Any) -> None:
        self.phase, self.has_finished = "ended", state == "finished"
        self.finished_s = self.world.loop.time()
        self.record(ev.JobEnded(attempt=self.attempt, state=state))

    def _end_ranks(self) -> None:
        for rank in list(self.alive):
            self.exit(rank, -15, by_us=True)

    # -- what happens ----------------------------------------------------------------------------

    def exit(self, rank: int, status: int, *, by_us: bool = False) -> None:
        pid, at_s = self.alive.pop(rank), self.world.loop.time()
        self.ends.append(RankEnd(RankExit(rank, pid, status, at_s, ended_by_us=by_us)))
        self.record(
            ev.RankExited(
                attempt=self.attempt, rank=rank, pid=pid, status=status, at_s=at_s, by_us=by_us
            )
        )
        if by_us or self.phase != "running":
            return
        if status:
            self.later(0.0, 3.0, self._hold)
            self._others_lose()
        elif not self.alive:
            self._ended("finished")

    def _others_lose(self) -> None:
        for other in self.world.nodes.values():
            if other is not self and other.attempt == self.attempt:
                other.loses_others()

    def loses_others(self) -> None:
        """Ranks that train with a lost one fail soon, or wait until that is noticed."""
        waits_s = HANG_S if self.world.random.random() < 0.3 else 0.0
        self.loses_at_s = self.world.loop.time() + waits_s + 3.0
        self.later(waits_s, waits_s + 3.0, self._fail)

    def _fail(self) -> None:
        if self.phase == "running" and self.alive:
            self.exit(min(self.alive), 1)

    def _hold(self) -> None:
        if self.phase != "running":
            return
        self._end_ranks()
        bad = [end for end in self.ends if end.exit.failed and not end.exit.ended_by_us]
        self._held(bad[0].exit.rank)

    def _held(self, rank: int | None) -> None:
        self.phase = "held"
        self.judged.add(self.attempt)
        outcome = AttemptOutcome(self.attempt or 0, 30.0, 5, 1, None, None, kind="exit_code")
        self.record(
            ev.FailureJudged(
                attempt=self.attempt,
                cause=Cause(kind="exit_code", rank=rank, exit_code=1, summary="It failed."),
                outcome=outcome,
                ends=[msgspec.to_builtins(end) for end in self.ends],
            )
        )
        self.record(ev.RestartHeld(attempt=self.attempt, delay_s=7200.0, at_s=0.0))

    def die(self) -> None:
        """Everything on the node is lost at once."""
        self.world.lives[self.host] += 1
        self.changes(is_off=True, is_wedged=False)
        if self.is_alive:
            self._others_lose()
            self.phase, self.alive = "none", {}
        if self.world.random.random() < 0.5:
            self.break_link()
        elif self.link is not None:  # nothing reports it
            self.link.goes_silent()

    def break_link(self) -> None:
        if self.link is not None:
            self.link.cut("Broken pipe")


class Link:
    """Replaces `node.links.NodeLink`; what was in transit when it broke is lost."""

    world: World

    def __init__(
        self,
        placement: Placement,
        node: NodeSpec,
        job_id: str,
        after_seq: int,
        take: Callable[..., None],
        made: Callable[..., None],
        broken: Callable[..., None],
    ) -> None:
        self.node, self.seq = node, after_seq
        self.shift_s, self.clock_offset_s = 0.0, 0.0
        self.is_up = False
        self.wake = asyncio.Event()
        self._take, self._made, self._broken = take, made, broken
        self._far = self.world.nodes[node.host]
        self._life = 0
        self.is_silent = False
        self._answers: set[asyncio.Future[Any]] = set()

    @property
    def host(self) -> str:
        return self.node.host

    async def run(self) -> None:
        try:
            while True:
                while not self._far.can_be_reached:
                    self._broken(self, "No route to host")
                    await asyncio.sleep(2.0)
                self.is_up = True
                self._far.gets_link(self)
                self._made(self)
                await self._follow(self._life)
                await asyncio.sleep(self.world.random.choice([0.2, 1.0, 5.0]))
        finally:
            self._life += 1
            if self._far.link is self:
                self._far.loses_link()

    async def _follow(self, life: int) -> None:
        """Like ddptop-node: sends events and then states, or that no job exists."""
        far, absent_s = self._far, 0.0
        while self.is_up and life == self._life:
            self.wake.clear()
            if len(far.log) > self.seq:
                await asyncio.sleep(self.world.random.choice([0.0, 0.0, 0.3]))
            if self.is_silent or far.is_wedged:
                await asyncio.sleep(TICK_S)
                continue
            rows = far.log[self.seq :]
            is_there = far.is_alive or (bool(far.log) and far.phase == "ended")
            for row in rows:
                if not self.is_up or life != self._life:
                    return
                self.seq = row.seq
                self._take(self, pt.NodeEvent(event=row))
            if not self.is_up or life != self._life:
                return
            if is_there:
                absent_s = 0.0
                self._take(self, pt.NodeState(snapshot=far.world.snapshot_of(far)))
            elif (absent_s := absent_s + 1.0) >= 3.0:
                absent_s = 0.0
                self._take(self, pt.NodeAbsent())
            alarm = self.world.loop.call_later(TICK_S if is_there else 1.0, self.wake.set)
            await self.wake.wait()
            alarm.cancel()

    def goes_silent(self) -> None:
        """Like a node that is powered off: orders get no answer until the head gives it up."""
        life = self._life
        self.is_silent = True
        self._far.note_contact()
        give_up = self.world.loop.call_later
        give_up(SILENT_S, lambda: self.cut("no response") if life == self._life else None)

    def cut(self, why: str) -> None:
        if not self.is_up:
            return
        after_s = HEAD_SILENT_S - SILENT_S if self.is_silent else 0.0
        self.is_up = self.is_silent = False
        self._life += 1
        self._far.loses_link(after_s=after_s)
        self.wake.set()
        for future in self._answers:
            if not future.done():
                future.set_exception(LinkError(f"{self.host} cannot be reached", why))
        self._broken(self, why)

    async def ask(self, request: pt.NodeRequest, kind: Any, timeout_s: float = 90.0) -> Any:
        return await self._asked(lambda: self._far.request(request), timeout_s)

    async def start(
        self, spec: Any, env: dict[str, str], attempt: int, rendezvous: Rendezvous
    ) -> dict[str, Any]:
        return await self._asked(lambda: self._far.start(attempt, rendezvous), 90.0)

    async def _asked(self, do: Callable[[], dict[str, Any]], timeout_s: float) -> dict[str, Any]:
        if not self.is_up:
            raise LinkError(f"{self.host} cannot be reached")
        future: asyncio.Future[Any] = self.world.loop.create_future()
        self._answers.add(future)
        life = self._life

        def arrive() -> None:
            if life != self._life or self.is_silent or future.cancelled():
                return  # the order is lost
            after_s = self.world.random.choice([0.0, 0.5])
            try:
                if self._far.is_wedged:
                    self._far.refused_in = self.world.job.attempt
                    after_s = REQUEST_S
                    raise ControlError("the supervisor does not respond")
                result: Any = do()
            except ControlError as error:
                result = error
            self.world.loop.call_later(after_s, reply, result)

        def reply(result: Any) -> None:
            if future.done() or life != self._life:
                return  # the answer is lost
            if isinstance(result, ControlError):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.world.loop.call_later(self.world.random.choice([0.0, 0.2, 1.0]), arrive)
        try:
            found: dict[str, Any] = await asyncio.wait_for(future, timeout_s)
        except asyncio.TimeoutError:
            raise LinkError(f"{self.host} did not answer") from None
        finally:
            self._answers.discard(future)
        return found


class HeadRows(Rows):
    """The head's history; checks the invariants at each event."""

    problem = None

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def event(self, row: Event) -> Event:
        before = self.folded
        row = super().event(row)
        try:
            self.world.check_event(before, self.folded, ev.from_data(row.data))
        except AssertionError as error:  # the head survives its own errors
            self.world.broken.append(str(error))
        return row

    def add(self, *_: object) -> None:
        pass

    def close(self, final: bool = False) -> None:
        pass


class _File:
    def __init__(self, world: World) -> None:
        self._world = world

    def write(self, data: bytes) -> bool:
        self._world.snapshot = data
        return True


class _Server:
    is_bound = True

    async def start(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Fetcher:
    async def take_evidence(self, name: str, most_s: float = 0.0) -> None:
        await asyncio.sleep(0.1)

    async def take_logs(self, *_: object) -> None:
        await asyncio.sleep(0.1)

    async def take_ends(self, attempts: object) -> None:
        await asyncio.sleep(0.1)


class World:
    """One job on several nodes, with a head that can be killed."""

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        self.random, self.loop = random.Random(seed), loop
        count = self.random.randint(1, 3)
        self.limit = self.random.randint(0, MOST_RESTARTS)
        specs = [
            NodeSpec(
                host=f"n{index}",
                address=f"10.0.0.{index}",
                nproc=self.random.randint(1, 2),
                python="/usr/bin/python3",
                command=["ddptop-node"],
                ports=[29500, 29501, 29502],
            )
            for index in range(count)
        ]
        placement = Placement(
            by="pipe",
            nodes=specs,
            min_nodes=self.random.randint(1, count),
            node_timeout_s=NODE_TIMEOUT_S,
            orphan_timeout_s=ORPHAN_TIMEOUT_S,
        )
        self.placement = placement
        self.began: set[tuple[int | None, str]] = set()
        """Attempts with the nodes that have started their ranks."""
        self.spec = make_spec(
            max_restarts=self.limit,
            nproc=sum(one.nproc for one in specs),
            placement=placement,
        )
        self.lives = {one.host: 0 for one in specs}
        self.nodes = {one.host: Node(self, one) for one in specs}
        self.rows = HeadRows(self)
        self.snapshot = b""
        self.heads = 0
        self.head_s = 0.0
        """Since when there is this one."""
        self.meetings: dict[int, tuple[str, int]] = {}
        self._pids = 100
        self.head: Head | None = None
        self._work: asyncio.Task[int] | None = None
        self._channels: tuple[socket.socket, socket.socket] | None = None
        self.happened: list[str] = []
        self.away_at_end: set[str] = set()
        """Nodes without contact as the job ended: they end by themselves, later."""
        self.could_not_end = ""
        """What the head says of nodes on which ranks may be left."""
        self.fates: dict[str, str] = {}
        """What becomes of nodes at last; of the others, that they come back."""
        if self.random.random() < 0.6:
            for host in self.random.sample(list(self.nodes), self.random.randint(1, count)):
                self.fates[host] = self.random.choice(["off", "cut", "wedged", "full"])
        self.broken: list[str] = []
        """What did not hold at an event."""
        self.ended_s: float | None = None
        self.was_asked: set[type[pt.Message]] = set()
        """To `restart` since the last attempt began, or to `stop`."""
        self._far = {host: make_snapshot(self.spec, ranks=[], alerts=[]) for host in self.lives}

    def pid(self) -> int:
        self._pids += 1
        return self._pids

    def snapshot_of(self, node: Node) -> Any:
        return msgspec.structs.replace(self._far[node.host], attempt=node.attempt)

    # -- the head --------------------------------------------------------------------------------

    def start_head(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setblocking(False)
        hello = pt.GuardianHello(
            attempt=0, agent_pid=None, guardian_pid=1, supervisor_restarts=self.heads
        )
        ours.send(pt.encode(hello))
        self._channels = (ours, theirs)
        self.heads += 1
        self.head_s = self.loop.time()
        self.head = Head(FOLDER, self.spec, theirs)
        self._work = self.loop.create_task(self.head.run())

    async def kill_head(self) -> None:
        """Only the log and the last snapshot are left."""
        head, work = self.head, self._work
        assert head is not None and work is not None and self._channels is not None
        self.head = None
        while tasks := [task for task in (work, *head.process.tasks) if not task.done()]:
            for task in tasks:  # wait_for loses one that arrives just as its own wait ends
                task.cancel()
            await asyncio.wait(tasks, timeout=0.01)
        for part in head.parts.by_host.values():
            if part.broken is not None:
                part.broken.cancel()
        if head._publishing is not None:
            head._publishing.cancel()
        self._close()
        if self.rows.pending:
            for row in self.rows.pending:  # what is not in the snapshot either was never reported
                if isinstance(started := ev.from_data(row.data), ev.NodeStarted):
                    self.began.discard((started.attempt, started.node))
            self.rows.pending = []
            kept = read_memory(decode_snapshot(self.snapshot))
            assert kept.state is not None
            self.rows.folded, self.rows.last_seq = kept.state, kept.last_seq

    def _close(self) -> None:
        assert self._channels is not None
        self.loop.remove_reader(self._channels[1])
        for end in self._channels:
            end.close()

    def read_past(self, folder: object, hello: pt.GuardianHello) -> Past:
        if not self.heads or not self.snapshot:
            return Past(None, has_continued=False, event=None)
        snapshot = decode_snapshot(self.snapshot)
        event = ev.SupervisorRestarted(attempt=snapshot.attempt)
        return Past(snapshot, has_continued=True, event=event, events=tuple(self.rows.kept))

    @property
    def job(self) -> JobState:
        return self.rows.folded

    # -- what always holds -----------------------------------------------------------------------

    def check_event(self, before: JobState, state: JobState, event: ev.JobEvent | None) -> None:
        assert 0 <= state.budget.used <= self.limit, "the budget is overspent"
        if before.is_over:
            assert state == before, "an end is final"
        if isinstance(event, ev.RankStarted | ev.RankExited | ev.TrainingStarted):
            assert event.attempt == before.attempt, "an event of an earlier attempt counts"
        if isinstance(event, ev.RankExited):
            known = before.ranks.get(event.rank)
            assert known is None or not known.exited, "an exit is told once"
        elif isinstance(event, ev.NodesChosen):
            self._check_nodes(before, event)
        elif isinstance(event, ev.NodeStarted):
            self.began.add((event.attempt, event.node))
        elif isinstance(event, ev.NodeFailed) and event.cause and event.cause.kind == "exit_code":
            assert event.attempt in self.nodes[event.node].judged, (
                f"{event.node} has not failed in {event.attempt}"
            )
        elif isinstance(event, ev.RestartRequested):
            self._check_request(before, event)
        elif isinstance(event, ev.EndDecided) and event.state == "finished":
            self._check_finish(before)
        elif isinstance(event, ev.EndDecided) and str(event.reason).startswith("fewer than"):
            self._check_few(before)
        elif isinstance(event, ev.Noticed) and "could not be ended" in event.text:
            self.could_not_end = event.text
        elif isinstance(event, ev.JobEnded):
            self._check_end(before, event)

    def _check_nodes(self, before: JobState, event: ev.NodesChosen) -> None:
        assert len(event.nodes) >= self.placement.min_nodes, "too few nodes"
        assert before.attempt in (None, event.attempt, (event.attempt or 0) - 1)
        for host in event.nodes if before.nodes else ():
            life = before.nodes[host]
            assert not life.refused and life.unknown_since is None, f"{host} is away, and chosen"
        self.was_asked.discard(pt.Restart)

    def _check_request(self, before: JobState, event: ev.RestartRequested) -> None:
        """Nothing is restarted because of a head or a link."""
        taking_part = [host for host, life in before.nodes.items() if life.takes_part]
        if event.node is not None:
            lives = [before.nodes[host] for host in taking_part]
            away = [one.away_s(self.loop.time()) for one in lives if one.unknown_since]
            assert not away or (len(away) == len(lives) and min(away) > NODE_TIMEOUT_S - 0.1), (
                f"others may train on, and {event.node} is taken back"
            )
        elif event.without is None and pt.Restart not in self.was_asked:
            late = [host for host in taking_part if (event.attempt, host) not in self.began]
            assert late, "nobody has asked for a restart"

    def _check_few(self, before: JobState) -> None:
        """Required nodes did not return in time, or refuse."""
        lives = {host: before.nodes[host] for host in self.nodes}
        out = {host for host, life in lives.items() if life.refused or life.unknown_since}
        attempt = before.attempt
        refusing = {host for host, one in self.nodes.items() if one.refused_in == attempt}
        now_s = self.loop.time()
        early = [
            host
            for host in out - refusing
            if not lives[host].refused and lives[host].away_s(now_s) < NODE_TIMEOUT_S - 0.1
        ]
        assert refusing or out, "no node is missing"
        assert not early or refusing, f"{early} were not waited for"

    def _check_finish(self, before: JobState) -> None:
        """Once the head can know that the last node has finished, nothing is waited for."""
        nodes = [self.nodes[host] for host, life in before.nodes.items() if life.takes_part]
        known_s = max(max(one.finished_s, one.back_s) for one in nodes)
        late_s = self.loop.time() - max(known_s, self.head_s)
        assert not known_s < math.inf or late_s < LINK_BACK_S, f"finished {late_s:.0f} s late"

    def _check_end(self, before: JobState, event: ev.JobEnded) -> None:
        self.ended_s = now_s = self.loop.time()
        away = (one.host for one in self.nodes.values() if now_s - one.back_s < LINK_BACK_S)
        self.away_at_end.update(away)
        assert self.head is not None
        back = [
            host
            for host, part in self.head.parts.by_host.items()
            if part.is_known and not part.ended and self.nodes[host].is_alive
        ]
        assert not back, f"{back} could be ended"
        if event.state == "stopped":
            assert pt.StopAsked in self.was_asked, "nobody has asked for a stop"
        elif event.state == "finished":
            taking_part = [host for host, life in before.nodes.items() if life.takes_part]
            unfinished = [host for host in taking_part if not self.nodes[host].has_finished]
            assert not unfinished, f"{unfinished} have not finished"
        else:
            assert event.cause is not None, "it fails for no reason"

    def check(self) -> None:
        assert not self.broken, self.broken[0]
        if self.head is not None and self.head.parts.by_host:  # it has restored its previous state
            mine, folded = self.head.job, self.rows.folded
            apart = [
                (name, getattr(mine, name), getattr(folded, name))
                for name in (() if mine == folded else mine.__struct_fields__)
                if getattr(mine, name) != getattr(folded, name)
            ]
            assert not apart, f"the log tells another story: {apart}"
        if self.head is not None:
            assert not self.head.defects._reported, self.head.defects._reported

    # -- what can happen -------------------------------------------------------------------------

    def some(self) -> Node:
        return self.random.choice(list(self.nodes.values()))

    async def rank_fails(self) -> None:
        node = self.some()
        if node.phase == "running" and node.alive:
            node.exit(self.random.choice(list(node.alive)), self.random.choice([1, -9, -11]))

    async def ranks_finish(self) -> None:
        if self.random.random() < 0.3:
            for node in self.nodes.values():
                for rank in list(node.alive):
                    if node.phase == "running" and node.attempt == self.job.attempt:
                        node.exit(rank, 0)

    async def link_breaks(self) -> None:
        node = self.some()
        node.changes(is_cut=node.is_cut or self.random.random() < 0.7)
        if node.link is not None and self.random.random() < 0.3:
            node.link.goes_silent()
        else:
            node.break_link()

    async def link_returns(self) -> None:
        for node in self.nodes.values():
            node.changes(is_cut=False)

    async def supervisor_hangs(self) -> None:
        node = self.some()
        node.changes(is_wedged=node.is_alive)

    async def supervisors_go_on(self) -> None:
        for node in self.nodes.values():
            node.changes(is_wedged=False)

    async def node_dies(self) -> None:
        self.some().die()

    async def nodes_return(self) -> None:
        for node in self.nodes.values():
            node.changes(is_off=False)

    async def head_dies(self) -> None:
        if self.head is not None and not self.head.ended.is_set():
            await self.kill_head()
            await asyncio.sleep(self.random.choice([0.0, 0.5, 20.0]))
            self.start_head()

    async def disk_fills(self) -> None:
        node = self.some()
        node.is_full = self.random.random() < 0.3

    async def heads_disk_fills(self) -> None:
        self.rows.is_full = self.random.random() < 0.3

    async def node_tells(self) -> None:
        node = self.some()
        if node.is_alive:
            node.record(ev.Noticed(attempt=node.attempt, text="something"))

    async def asked_to_restart(self) -> None:
        await self.command(pt.Restart())

    async def asked_to_stop(self) -> None:
        if self.random.random() < 0.15:
            await self.command(pt.StopAsked(grace_s=self.random.choice([0.0, 10.0])))

    async def command(self, request: pt.Restart | pt.StopAsked) -> None:
        head, before = self.head, self.job
        if head is None or not head.parts.by_host or head.ended.is_set():
            return
        self.was_asked.add(type(request))
        try:
            await head._command(request)
        except ControlError as error:
            self.was_asked.discard(type(request))
            assert before.ending or before.phase == "restarting", f"it refuses: {error}"
            return
        if isinstance(request, pt.Restart):
            assert self.job.restart is not None, "nothing is restarted"
        else:
            assert self.job.ending is not None, "nothing is stopped"

    HAPPENS = (
        *(rank_fails, rank_fails, rank_fails, ranks_finish, link_breaks, link_breaks),
        *(link_returns, node_dies, nodes_return, nodes_return, head_dies, node_tells),
        *(disk_fills, heads_disk_fills, supervisor_hangs, supervisors_go_on),
        *(asked_to_restart, asked_to_stop),
    )

    async def happen(self, steps: tuple[Any, ...], count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(self.random.choice([0.0, 0.1, 1.0, 5.0, 20.0, 60.0]))
            step = self.random.choice(steps)
            self.happened.append(f"{self.loop.time() - 1000:.1f} {step.__name__}")
            await step(self)
            self.check()
            if self.job.is_over:
                return

    async def quiet(self) -> None:
        """Wait until nothing is in progress any more, neither here nor on a reachable node."""
        end_s, since_s = self.loop.time() + SETTLED_S, self.loop.time()
        while self.loop.time() < since_s + QUIET_S:
            await asyncio.sleep(0.7 * TICK_S)  # not in step with periodic tasks
            assert self.loop.time() < end_s, f"it does not come to rest: {self.busy}"
            if self.busy:
                since_s = self.loop.time()

    @property
    def busy(self) -> list[str]:
        """What is still in progress."""
        head = self.head
        assert head is not None and self._work is not None
        if head.ended.is_set():
            return [] if self._work.done() else ["the head"]
        busy = [] if self.is_patient else [str(order) for order in head._orders.under_way]
        for host, part in head.parts.by_host.items():
            node = self.nodes[host]
            if node.can_be_reached and (node.link is None or node.link.is_silent):
                busy.append(f"the broken link to {host}")
            if node.is_heard and (node.phase in ("starting", "stopping") or not part.is_reported):
                busy.append(f"{host}, which is {node.phase}")
            if node.is_heard and part.link.seq < len(node.log):
                busy.append(f"events of {host}")
            if node.loses_at_s > self.loop.time():
                busy.append(f"what {host} loses")
        return busy

    @property
    def is_patient(self) -> bool:
        """Whether a stop only waits for nodes without contact."""
        parts = () if self.head is None else self.head.parts.by_host.items()
        left = [host for host, part in parts if part.is_stale or not part.ended]
        is_away = left and all(self.nodes[host].back_s == math.inf for host in left)
        return bool(is_away) and self.job.stop is not None

    async def settle(self) -> None:
        """Some nodes return, some are gone for good: the job continues to train, or is over."""
        self.happened.append(f"{self.loop.time() - 1000:.1f} settle, with {self.fates}")
        for node in self.nodes.values():
            fate = self.fates.get(node.host)
            if fate == "off" and not node.is_off:
                node.die()
            node.is_full = fate == "full" or (fate is None and node.is_full)
            node.changes(
                is_off=fate == "off",
                is_cut=fate == "cut",
                is_wedged=fate == "wedged" and node.is_alive,
            )
            if fate == "cut":
                node.break_link()
        await self.quiet()
        self.check()
        if not self.job.is_over:
            if self.job.stop is None:
                self.check_rest()
                asked_s = self.loop.time()
                await self.command(pt.StopAsked(grace_s=5.0))
                await self.quiet()
                is_slow = self.ended_s is not None and self.ended_s - asked_s > STOPPED_S
                assert not is_slow, "a stop is slow"
            await self._outlive_patience()
        assert self._work is not None
        await asyncio.wait_for(self._work, SETTLED_S)
        self.check()
        left = {node.host for node in self.nodes.values() if node.is_alive}
        assert left <= self.away_at_end, f"left running on {sorted(left - self.away_at_end)}"
        if self.job.phase == "stopped":
            assert all(self.nodes[host].is_wedged for host in left), f"not stopped on {left}"
        unsaid = [host for host in left if host not in self.could_not_end]
        assert not unsaid, f"left running on {unsaid}, and nobody was told"
        await self._outlive_orphans()

    async def _outlive_patience(self) -> None:
        """A stop is carried out on nodes that return, and waits only for parts that may run."""
        if self.job.is_over:
            return
        assert self.is_patient, "a stop does not end"
        if self.random.random() < 0.5:
            for node in self.nodes.values():
                node.changes(is_off=False, is_cut=False, is_wedged=False)
            await self.quiet()
            left = [node.host for node in self.nodes.values() if node.is_alive]
            assert self.job.is_over and not left, f"a stop is not carried out on {left}"
        else:
            await asyncio.sleep(ORPHAN_TIMEOUT_S + parts.ORPHANED_S + 2 * TICK_S)
            assert self.job.is_over, "a stop waits in vain"

    async def _outlive_orphans(self) -> None:
        """What is left ends by itself in time, once its supervisor runs."""
        await self.supervisors_go_on()
        await asyncio.sleep(HEAD_SILENT_S + ORPHAN_TIMEOUT_S + ORPHAN_GRACE_S + 2 * TICK_S)
        left = [node.host for node in self.nodes.values() if node.is_alive]
        assert not left, f"left running on {left}, long after the job"

    def check_rest(self) -> None:
        """Nothing is in progress any more, but the job is not over."""
        taking_part = [one for one in self.nodes.values() if self.job.nodes[one.host].takes_part]
        assert self.job.phase in ("starting", "running"), f"it stays {self.job.phase}"
        heard = [one for one in taking_part if one.is_heard]
        for node in self.nodes.values():
            life = self.job.nodes[node.host]
            is_known = life.unknown_since is None
            assert is_known == node.is_heard, f"{node.host} is {node.phase}, and known: {is_known}"
            if node in taking_part:
                if not heard:  # their fate is unknown
                    continue
                assert node.phase in ("running", "ended"), f"{node.host} stays {node.phase}"
                assert node.attempt == self.job.attempt, f"{node.host} trains {node.attempt}"
            elif node.is_heard:
                assert life.refused or len(heard) < len(taking_part), f"{node.host} is left out"
                assert not node.is_alive, f"{node.host} is left out, and {node.phase}"
        assert not heard or self.job.phase == "running", f"it stays {self.job.phase}"
        assert not heard or any(one.phase == "running" for one in heard), "all have ended"

    async def close(self) -> None:
        if self.head is not None and self._work is not None:
            if self._work.done():
                self._close()
            else:
                await self.kill_head()


@contextlib.contextmanager
def simulated(world: World) -> Iterator[None]:
    """Make the head read and write only the simulation."""
    stands_in = {
        "HistoryWriter": lambda *_, **__: world.rows,
        "SteadyFile": lambda *_: _File(world),
        "ControlServer": lambda *_: _Server(),
        "Fetcher": lambda *_: _Fetcher(),
        "NodeLink": type("WorldLink", (Link,), {"world": world}),
        "read_past": world.read_past,
        "write_end": _nothing,
        "boottime_s": world.loop.time,
        "TICK_S": TICK_S,
        "POLL_S": POLL_S,
    }
    with contextlib.ExitStack() as stack:
        for name, value in stands_in.items():
            for module in (head_module, job_process, orders, parts):
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, value))
        yield


async def _nothing(*_: object) -> None:
    pass


def drive(
    seed: int,
    steps: tuple[Any, ...] = World.HAPPENS,
    count: int = STEPS,
    *,
    settles_first: bool = False,
) -> World:
    """One interleaving of everything that can happen.

    Args:
        seed: decides on all.
        steps: what can happen.
        count: how often something does, at most.
        settles_first: it trains before the first of them, and every node comes back.

    Raises:
        AssertionError: an invariant is broken.
    """
    loop = VirtualLoop()
    loop.set_exception_handler(lambda *_: None)
    world = World(seed, loop)
    if settles_first:
        world.fates = {}

    async def run() -> None:
        world.start_head()
        try:
            if settles_first:
                await asyncio.sleep(30.0)
            await world.happen(steps, count)
            await world.settle()
        finally:
            await world.close()

    try:
        with simulated(world):
            loop.run_until_complete(run())
    finally:
        loop.close()
    return world
