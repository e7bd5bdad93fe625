"""The head's links to the nodes of a job, each a long-running command."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from ddptop_runner.base.clock import boottime_s, utc_now
from ddptop_runner.base.errors import ControlError, DdptopError
from ddptop_runner.launch import slurm, ssh
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.spec import NodeSpec, Placement
from ddptop_runner.node.control import R, expect
from ddptop_runner.store.log_clean import one_line

RECONNECT_S = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Wait before each attempt to reconnect; the last value repeats."""
PING_S = 5.0
SILENT_S = 15.0
"""A link without any message for this long, not even the answer to a ping, is broken."""
STABLE_S = 10.0
"""A link that was up for this long reconnects without delay if it breaks."""
STDERR_WAIT_S = 1.0
CONNECT_S = 20.0
"""ssh itself gives up sooner."""
ANSWER_S = 90.0
LINE_BYTES = 32 << 20
ERROR_BYTES = 4096


def link_argv(placement: Placement, node: NodeSpec) -> list[str]:
    """The command that runs ddptop-node on a node."""
    if placement.by == "ssh":
        return ssh.on_host(node.host, node.command)
    if placement.by == "slurm":
        return slurm.link_argv(placement.slurm_job or "", node.host, node.command)
    return node.command


class LinkError(ControlError):
    """A node is unreachable or does not answer; it is unknown whether it received the order."""


class NodeLink:
    """The link to one node.

    Args:
        placement: how to reach nodes.
        node: the node.
        job_id: the ID of its part of the job.
        after_seq: the number of its last known event.
        take: receives each event, fact, and state, and absences.
        made: called when the link is up, before any states and events.
        broken: called with the reason when the link is down.
    """

    def __init__(
        self,
        placement: Placement,
        node: NodeSpec,
        job_id: str,
        after_seq: int,
        take: Callable[[NodeLink, pt.NodeEvent | pt.NodeFact | pt.NodeState], None],
        made: Callable[[NodeLink], None],
        broken: Callable[[NodeLink, str], None],
    ) -> None:
        self.node = node
        self.job_id = job_id
        self.seq = after_seq
        """The number of the last event received."""
        self.shift_s = 0.0
        """The head's CLOCK_BOOTTIME minus the node's."""
        self.clock_offset_s: float | None = None
        """The node's wall clock minus the head's."""
        self.is_up = False
        self._placement = placement
        self._take, self._made, self._broken = take, made, broken
        self._process: asyncio.subprocess.Process | None = None
        self._answers: dict[int, asyncio.Future[pt.Reply]] = {}
        self._id = 0
        self._received_s = self._up_s = 0.0

    @property
    def host(self) -> str:
        """The node's name."""
        return self.node.host

    async def run(self) -> None:
        """Connect and reconnect until cancelled."""
        tries = 0
        while True:
            why = one_line(await self._connect_once())
            was_stable = self.is_up and boottime_s() - self._up_s >= STABLE_S
            tries = 0 if was_stable else tries + 1
            self.is_up = False
            self._fail_all(why)
            self._broken(self, why)
            await asyncio.sleep(RECONNECT_S[min(tries, len(RECONNECT_S) - 1)])

    async def _connect_once(self) -> str:
        """Run one connection to its end; returns why it ended."""
        env = slurm.step_environment(os.environ)
        try:
            argv = link_argv(self._placement, self.node)
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=env,
                limit=LINE_BYTES,
                start_new_session=True,
            )
        except OSError as error:
            return f"{argv[0]} cannot be started ({error.strerror})"
        self._process = process
        self._received_s = boottime_s()
        watch = asyncio.ensure_future(self._watch(process))
        errors = asyncio.ensure_future(_last_bytes(process.stderr))
        try:
            await self._read(process)
        except (ArithmeticError, DdptopError, OSError, TypeError, ValueError) as error:
            return f"the link broke ({error})"
        finally:
            watch.cancel()
            with contextlib.suppress(ProcessLookupError):  # a ProxyJump is a separate process
                os.killpg(process.pid, signal.SIGKILL)
            self._process = None
            status = await process.wait()
            stderr = ""
            with contextlib.suppress(
                asyncio.TimeoutError
            ):  # processes outside of the group may hold stderr
                stderr = await asyncio.wait_for(errors, STDERR_WAIT_S)
        return self._why(status, stderr)

    def _why(self, status: int, stderr: str) -> str:
        if self._placement.by == "slurm":
            if status < 0:  # ended by `_watch`
                return f"{self.host} does not respond"
            return slurm.step_problem(stderr) or f"the step ended with status {status}"
        if self._placement.by == "ssh" and not ssh.is_here(self.host):
            known = None if status < 0 else status
            return ssh.why_unreachable(self.host, known, stderr, SILENT_S).problem
        lines = stderr.strip().splitlines()
        return lines[-1] if lines else f"the link ended with status {status}"

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None  # requested as a pipe
        while line := await process.stdout.readline():
            if not line.startswith(b"{"):  # a login shell may print a greeting
                continue
            try:
                report = ssh.decode_report(line)
            except msgspec.MsgspecError:
                if self.is_up:
                    raise
                continue
            self._received_s = boottime_s()
            self._receive(report)

    def _receive(self, report: pt.Report) -> None:
        if isinstance(report, pt.Hello):
            self.shift_s = boottime_s() - report.boottime_s
            self.clock_offset_s = (report.now - utc_now()).total_seconds()
            self.is_up, self._up_s = True, boottime_s()
            self.follow()
            self._made(self)
        elif isinstance(report, pt.Answer):
            waiting = self._answers.pop(report.id, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(report.reply)
        elif isinstance(report, pt.NodeEvent):
            if report.event.seq > self.seq:
                self.seq = report.event.seq
                self._take(self, report)
        else:
            self._take(self, report)

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """End a connection that no longer receives anything."""
        while True:
            await asyncio.sleep(PING_S)
            limit_s = SILENT_S if self.is_up else CONNECT_S
            if boottime_s() - self._received_s > limit_s:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                return
            if self.is_up:
                self._id += 1
                self._send(pt.Ask(id=self._id, request=pt.Ping()))

    def _send(self, order: pt.ToNode) -> None:
        process = self._process
        if process is None or process.stdin is None or process.stdin.is_closing():
            raise LinkError(f"{self.host} cannot be reached")
        process.stdin.write(pt.line(order))

    def _fail_all(self, why: str) -> None:
        waiting, self._answers = self._answers, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(LinkError(f"{self.host} cannot be reached", why))

    async def ask(self, request: pt.NodeRequest, kind: type[R], timeout_s: float = ANSWER_S) -> R:
        """Send a request to the node; returns its reply.

        Raises:
            ControlError: the request is refused; `LinkError` if the node is unreachable.
        """
        if not self.is_up:
            raise LinkError(f"{self.host} cannot be reached")
        self._id += 1
        number = self._id
        future: asyncio.Future[pt.Reply] = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        try:
            self._send(pt.Ask(id=number, request=request))
            reply = await asyncio.wait_for(future, timeout_s)
        except asyncio.TimeoutError:
            raise LinkError(f"{self.host} did not answer within {timeout_s:g} s") from None
        finally:
            self._answers.pop(number, None)
        if isinstance(reply, pt.Refused):  # its code is about the node's supervisor, not the head
            reply = replace(reply, code=None)
        return expect(reply, kind)

    def follow(self) -> None:
        """Have the node send what it has reported since the last event received, and its state."""
        self._send(pt.Follow(job_id=self.job_id, after_seq=self.seq))


async def _last_bytes(stream: asyncio.StreamReader | None) -> str:
    kept = b""
    while stream is not None and (data := await stream.read(ERROR_BYTES)):
        kept = (kept + data)[-ERROR_BYTES:]
    return kept.decode("utf-8", "replace")
