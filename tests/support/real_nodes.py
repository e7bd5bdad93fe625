"""Nodes of a job on this machine, and the head's end of their links, line by line."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddptop_runner.base.clock import boottime_s, utc_now
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.base.start import own_command
from ddptop_runner.host import procs
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.snapshot import Event, NodeSnapshot
from ddptop_runner.model.spec import JobSpec, Membership, Rendezvous
from ddptop_runner.node.remote import member_folder, node_job_id

JOB_ID = f"toy@{secrets.token_hex(8)}"
"""Processes are recognized by it, so other runs of these tests must not have the same."""


def free_port() -> int:
    """A port on the loopback interface that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def rendezvous(attempt: int, port: int, index: int, nodes: int) -> Rendezvous:
    """The spec of a node with one rank."""
    return Rendezvous(
        run_id=f"toy.{attempt}",
        address="127.0.0.1",
        port=port,
        node_rank=index,
        nodes=nodes,
        first_rank=index,
    )


class Node:
    """A node, with a link to it that can be cut and reestablished."""

    def __init__(self, script: Path, index: int = 0, nodes: int = 1, **more: Any) -> None:
        self.job_id = node_job_id(JOB_ID, index)
        self.events: list[Event] = []
        """All that came over any link, each once and in order."""
        self.state: NodeSnapshot | None = None
        self.facts: list[pt.Fact] = []
        """All that the node has reported, repetitions included."""
        self._nodes = nodes
        self._index = index if nodes > 1 else 0  # otherwise, it is a separate job
        self._script, self._more = script, more
        self._ids = itertools.count(1)
        self._told = 0
        self._answers: dict[int, pt.Reply] = {}
        self._answered = threading.Condition()
        self._link: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self.connect()

    @property
    def folder(self) -> RunFolder:
        return member_folder(self.job_id)

    @property
    def seq(self) -> int:
        return self.events[-1].seq if self.events else 0

    def connect(self) -> None:
        """Open a link, which continues after the last event."""
        self._link = subprocess.Popen(
            own_command("node"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._reader = threading.Thread(target=self._read, args=(self._link,), daemon=True)
        self._reader.start()
        self._put(pt.Follow(job_id=self.job_id, after_seq=self.seq))

    def cut(self) -> None:
        """End the link's command."""
        assert self._link is not None and self._link.stdin is not None
        self._link.kill()
        self._link.wait()
        assert self._reader is not None
        self._reader.join()
        with contextlib.suppress(OSError):
            self._link.stdin.close()

    def _read(self, link: subprocess.Popen[bytes]) -> None:
        assert link.stdout is not None
        with link.stdout:
            for line in link.stdout:
                if line.endswith(b"\n"):
                    self._take(pt.decode(line, pt.Report))

    def _take(self, report: pt.Report) -> None:
        if isinstance(report, pt.NodeEvent):
            self.events.append(report.event)
        elif isinstance(report, pt.NodeFact):
            self.facts.append(report.fact)
        elif isinstance(report, pt.NodeState):
            self.state = report.snapshot
        elif isinstance(report, pt.Answer):
            with self._answered:
                self._answers[report.id] = report.reply
                self._answered.notify_all()

    def _put(self, order: pt.ToNode) -> None:
        assert self._link is not None and self._link.stdin is not None
        self._link.stdin.write(pt.line(order))
        self._link.stdin.flush()

    def _answer(self, number: int) -> pt.Reply:
        with self._answered:
            assert self._answered.wait_for(lambda: number in self._answers, 60.0), "no answer"
        return self._answers[number]

    def ask(self, request: pt.NodeRequest) -> pt.Reply:
        """Send a request and return the reply."""
        number = next(self._ids)
        self._put(pt.Ask(id=number, request=request))
        return self._answer(number)

    def start(self, port: int, *arguments: str, attempt: int = 0) -> pt.Reply:
        """Start the node's part of the job."""
        spec = JobSpec(
            job="toy",
            job_id=self.job_id,
            host="a",
            created_at=utc_now(),
            kind="script",
            target=str(self._script),
            args=list(arguments),
            python=sys.executable,
            cwd=str(self._script.parent),
            nproc=1,
            backing="daemon",
            membership=Membership(
                job="toy",
                orphan_timeout_s=self._more.get("orphan_timeout_s", 600.0),
            ),
        )
        met = rendezvous(attempt, port, self._index, self._nodes)
        env = {"OMP_NUM_THREADS": "1"}
        reply = self.ask(pt.Start(spec=spec, env=env, attempt=attempt, rendezvous=met))
        if isinstance(reply, pt.Done):
            self._put(pt.Follow(job_id=self.job_id, after_seq=self.seq))
        return reply

    def tell(self, *sent: ev.JobEvent | pt.Order) -> None:
        """Send events and orders, as a head does."""
        self._told += 1
        events = [one for one in sent if isinstance(one, ev.EventBase)]
        orders = [one for one in sent if isinstance(one, pt.Message)]
        carried = self.ask(pt.Carry(events=events, orders=orders, seq=self._told))
        log = self.folder.path / "supervisor.log"
        assert carried == pt.Done(), (carried, log.read_text() if log.exists() else None)

    def begins(self, attempt: int, nodes: int = 1) -> pt.GroupStarted:
        """Have the node know that its ranks have started; returns what it has reported of them."""
        group = next(
            one
            for one in reversed(self.facts)
            if isinstance(one, pt.GroupStarted) and one.attempt == attempt
        )
        (worker,) = group.workers
        assert worker.rank is not None
        first = {"first_rank": worker.rank}
        self.tell(
            ev.AttemptStarted(attempt=attempt, world=nodes, at_s=boottime_s(), **first),
            ev.RankStarted(attempt=attempt, rank=worker.rank, pid=worker.pid),
        )
        return group

    def has_reported(self, fact: type[pt.Message], **fields: Any) -> bool:
        """Whether it has reported such a fact since `facts` was cleared."""
        return any(
            isinstance(one, fact) and all(getattr(one, k) == v for k, v in fields.items())
            for one in list(self.facts)
        )

    def kinds(self, attempt: int | None = None) -> list[str]:
        """The types of the events so far."""
        return [
            (one.data or {})["kind"]
            for one in list(self.events)
            if attempt is None or one.attempt == attempt
        ]

    def close(self) -> None:
        """End all of its remaining processes."""
        self.cut()
        for pid in procs.pids_of_job(self.job_id):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def nodes_of(*nodes: Node) -> Iterator[None]:
    """Nodes that leave no processes behind."""
    try:
        yield
    finally:
        for node in nodes:
            node.close()
