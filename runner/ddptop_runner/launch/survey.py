"""Queries all hosts of a job at once, each through its own `ddptop-node`, in bounded time."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from ddptop_runner.base.start import own_command
from ddptop_runner.launch import device_check, preflight, readiness
from ddptop_runner.launch.readiness import Surveyed, Wanted
from ddptop_runner.launch.request import HostRequest
from ddptop_runner.launch.slurm import link_argv, step_environment
from ddptop_runner.launch.ssh import (
    Unreachable,
    decode_report,
    is_here,
    node_command,
    ssh_argv,
    why_unreachable,
)
from ddptop_runner.model import protocol as pt
from ddptop_runner.store.log_clean import one_line
from ddptop_runner.version import __version__

LIMIT_S = 30.0
"""How long connecting may take, and each query."""
MOST_LINE_BYTES = 8 << 20
MOST_NOISE_BYTES = 256 << 10
"""How much a login shell may print before the first message, and ssh to stderr."""
MOST_TARGETS = 16
"""How many other hosts each host tries to connect to: its neighbors and the first host."""
CLOSE_S = 1.0
FAILED_TOGETHER_S = 2.0
"""How long after one host's ranks have failed in `--check` those of the others may still report."""

T = TypeVar("T")


class HostError(Exception):
    """A host did not answer."""

    def __init__(self, why: Unreachable) -> None:
        super().__init__(why.problem)
        self.why = why


class HostLink:
    """A `ddptop-node` on a host, for one request at a time."""

    def __init__(self, host: str, limit_s: float = LIMIT_S, slurm_job: str | None = None) -> None:
        """Start `ddptop-node`: here, through ssh, or as a step of a Slurm job.

        Raises:
            HostError: it did not start in time.
        """
        self.host = host
        own = own_command("node")
        env = dict(os.environ)
        if slurm_job is not None:
            argv, env = link_argv(slurm_job, host, own), step_environment(env)
        else:
            argv = own if is_here(host) else ssh_argv(host, node_command(__version__, own))
        self._ids = itertools.count(1)
        self._err = b""
        self._is_killed = False
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # ctrl+c is for us, and ssh has no terminal to prompt on
                env={**env, "LC_ALL": "C"},
            )
        except OSError as error:
            why = f"{argv[0]} cannot be run ({error.strerror})"
            raise HostError(Unreachable("ssh", why, "install the OpenSSH client")) from None
        self._errors = threading.Thread(target=self._keep_errors, daemon=True)
        self._errors.start()
        self._limit_s = limit_s
        try:
            report = self._read(time.monotonic() + limit_s)
            if not isinstance(report, pt.Hello):
                raise HostError(
                    Unreachable("ssh", "ddptop-node sent no greeting", f"see `ssh {host} true`")
                )
        except BaseException:
            self.close()
            raise
        self.ddptop = report.ddptop
        self.answered_s = time.time()
        """When the last answer arrived, in seconds since the epoch."""

    def ask(self, limit_s: float, question: preflight.Question, kind: type[T]) -> T:
        """Return the answer to a question, which has that type.

        Raises:
            HostError: no answer came, the question was refused, or the answer has another form.
        """
        reply = self.request(pt.Preflight(question=msgspec.to_builtins(question)), limit_s)
        try:
            return msgspec.convert(reply.data if isinstance(reply, pt.Found) else {}, kind)
        except msgspec.ValidationError:
            problem = f"the answer of ddptop {self.ddptop} there cannot be read"
            raise HostError(Unreachable("version", problem, "")) from None

    def request(self, message: pt.NodeRequest, limit_s: float) -> pt.Reply:
        """Return the reply to a request that needs no job.

        Raises:
            HostError: no answer came, or the request was refused.
        """
        request = pt.Ask(id=next(self._ids), request=message)
        assert self._process.stdin is not None
        self._limit_s = limit_s
        try:
            self._process.stdin.write(pt.line(request))
            self._process.stdin.flush()
        except OSError:
            raise HostError(self._why_ended()) from None
        deadline_s = time.monotonic() + limit_s
        while True:
            report = self._read(deadline_s)
            self.answered_s = time.time()
            if isinstance(report, pt.Answer) and report.id == request.id:
                reply = report.reply
                if isinstance(reply, pt.Refused):
                    hint = one_line(reply.hint or "run ddptop doctor there")
                    raise HostError(Unreachable("ssh", one_line(reply.error), hint))
                return reply

    def end(self) -> None:
        """Kill the process; a pending request then fails."""
        self._is_killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # a ProxyJump is a separate process

    def close(self) -> None:
        """End the process. May be called twice, and from another thread."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(timeout=CLOSE_S)
        except subprocess.TimeoutExpired:
            self.end()
            process.wait()
        process.stdout.close()

    def _read(self, deadline_s: float) -> pt.Report:
        """Return the next message; other lines, such as a login shell's output, are skipped."""
        assert self._process.stdout is not None
        skipped, is_late = 0, threading.Event()

        def give_up() -> None:
            is_late.set()
            self.end()

        timer = threading.Timer(max(0.0, deadline_s - time.monotonic()), give_up)
        timer.start()
        try:
            while line := self._process.stdout.readline(MOST_LINE_BYTES):
                try:
                    return decode_report(line)
                except msgspec.MsgspecError:
                    skipped += len(line)
                if skipped > MOST_NOISE_BYTES:
                    self.end()
        finally:
            timer.cancel()
        raise HostError(self._why_ended(is_late=is_late.is_set()))

    def _keep_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as errors:
            while data := os.read(errors.fileno(), 65536):
                self._err = (self._err + data)[-MOST_NOISE_BYTES:]

    def _why_ended(self, *, is_late: bool = False) -> Unreachable:
        status = None
        if not self._is_killed:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._process.wait(timeout=0.5)
        self._errors.join(0.5)
        output = self._err.decode("utf-8", "replace")
        return why_unreachable(self.host, status, output, self._limit_s if is_late else None)


def at_once(things: Sequence[T], do: Callable[[T], object]) -> None:
    """Call `do` with each thing, all at the same time; it must handle its own errors."""
    if things:
        with ThreadPoolExecutor(max_workers=len(things)) as pool:
            list(pool.map(do, things))


class Survey:
    """All hosts of a job, with a link to each that responds; as a context manager, closes them."""

    def __init__(self, hosts: Sequence[HostRequest], slurm_job: str | None = None) -> None:
        """With `slurm_job`, the hosts are nodes of its allocation."""
        self.hosts = hosts
        self._slurm_job = slurm_job
        self.links: dict[str, HostLink] = {}
        self.found: dict[str, Surveyed] = {one.host: Surveyed(one) for one in hosts}

    def __enter__(self) -> Survey:
        return self

    def __exit__(self, *_: object) -> None:
        at_once(list(self.links.values()), HostLink.close)

    def _note(self, host: str, **known: Any) -> None:
        # one thread at a time works on a host
        self.found[host] = msgspec.structs.replace(self.found[host], **known)

    def connect(self) -> None:
        """Open a link to each host."""

        def open_link(one: HostRequest) -> None:
            try:
                link = HostLink(one.host, slurm_job=self._slurm_job)
            except HostError as error:
                self._note(one.host, unreachable=error.why)
                return
            self.links[one.host] = link
            if link.ddptop != __version__:
                there = f"ddptop {one_line(link.ddptop)} is installed there"
                problem = f"{there}, but {__version__} here"
                self._drop(one.host, Unreachable("version", problem, ""))

        at_once(self.hosts, open_link)

    def _drop(self, host: str, why: Unreachable) -> None:
        self._note(host, unreachable=why, facts=None)
        self.links.pop(host).close()

    def ask_all(
        self, limit_s: float, questions: Mapping[str, preflight.Question], kind: type[T]
    ) -> dict[str, T]:
        """Return the answers by host; a host that does not answer is recorded as unreachable."""
        answers: dict[str, T] = {}

        def ask(host: str) -> None:
            try:
                answers[host] = self.links[host].ask(limit_s, questions[host], kind)
            except HostError as error:
                self._drop(host, error.why)

        at_once([host for host in questions if host in self.links], ask)
        return answers

    def collect(self, wanted: Wanted, gpus: str | None, env: Mapping[str, str]) -> readiness.Judged:
        """Collect all facts, and judge them."""
        self.connect()
        asked = {name: getattr(wanted, name) for name in preflight.JobWanted.__struct_fields__}
        questions = {
            one.host: preflight.FactsWanted(
                **{**asked, "nproc": one.slots or wanted.nproc},
                gpus=one.gpus if one.gpus is not None else gpus,
                in_slurm=self._slurm_job is not None,
                env=dict(env),
            )
            for one in self.hosts
        }
        for host, facts in self.ask_all(LIMIT_S, questions, preflight.HostFacts).items():
            ahead_s = facts.now_s - self.links[host].answered_s
            self._note(host, facts=facts, clock_offset_s=ahead_s)
        self._test_connections()
        return readiness.judge([self.found[one.host] for one in self.hosts], wanted)

    def _test_connections(self) -> None:
        facts = [(one.host, self.found[one.host].facts) for one in self.hosts]
        there = [(host, known) for host, known in facts if known is not None and known.ports]
        questions = {}
        for place, (host, _) in enumerate(there):
            ring = [there[(place + step) % len(there)] for step in range(1, len(there))]
            others = [*ring[: MOST_TARGETS - 1], *there[:1], *ring[-1:]]
            targets = {
                name: preflight.Target(
                    host=name,
                    addresses=known.addresses,
                    port=known.ports[-1],
                    nonce=known.nonce,
                )
                for name, known in others
                if name != host
            }
            if targets:
                questions[host] = preflight.ReachWanted(targets=list(targets.values()))
        for host, answer in self.ask_all(LIMIT_S, questions, preflight.Reached).items():
            self._note(host, reached=answer.reached)

    def check(self, judged: readiness.Judged, env: Mapping[str, str]) -> device_check.Findings:
        """Measure each rank's device and the network between the hosts."""
        nodes = judged.nodes
        first_ranks = [sum(node.nproc for node in nodes[:place]) for place in range(len(nodes))]
        results: dict[str, device_check.HostResult | None] = dict.fromkeys(
            node.host for node in nodes
        )

        def measure(place: int) -> None:
            node = nodes[place]
            rendezvous = device_check.Rendezvous(
                python=node.python,
                address=nodes[0].address,
                port=nodes[0].ports[-1],
                address_here=node.address,
                first_ranks=first_ranks,
                world=sum(one.nproc for one in nodes),
                node=place,
                nproc=node.nproc,
                devices=node.devices,
                env=dict(env),
            )
            question = preflight.CheckWanted(rendezvous=rendezvous)
            try:
                result = self.links[node.host].ask(
                    device_check.LIMIT_S + 15, question, device_check.HostResult
                )
            except (HostError, KeyError):
                result = None
            results[node.host] = result
            if result is None or any(one.error for one in result.ranks):
                time.sleep(FAILED_TOGETHER_S)
                for other in nodes:  # they wait for it in vain
                    if results[other.host] is None and other is not node:
                        self.links[other.host].end()

        at_once(range(len(nodes)), measure)
        return device_check.judge(results, {node.host: node.devices for node in nodes})
