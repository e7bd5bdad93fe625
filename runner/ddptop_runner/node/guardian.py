"""The guardian: the small process that outlives everything else in a job.

It holds the launching shell's environment in memory, starts the supervisor and the agent, restarts
the supervisor if it dies, collects the exits of all orphans of the job (as a child subreaper), and
prints the job's events in its tmux pane. It ignores SIGHUP and a lost pane; Ctrl-C prints how to
stop the job.

SIGTERM only to the guardian (a user's `kill PID`) is handled like Ctrl-C. If SIGTERM ends the
supervisor at the same time, the login session or the machine is shutting down, and the guardian
exits too. A job whose guardian was killed is adopted by a new one (`adoption`), which relieves the
remaining supervisor and starts its own.

Channel to the supervisor: a SOCK_SEQPACKET pair, one message of `model/protocol.py` per packet.
The supervisor's first `LaunchAgent` starts a queued job's agent; its `env` names the devices.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.base.files import lock
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.base.start import PRIVATE, own_command, own_words
from ddptop_runner.host import handover as handover_file
from ddptop_runner.host import procs
from ddptop_runner.host.handover import NOTIFIER_MODULE, agent_command, agent_plan
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.spec import JobSpec, read_spec

PR_SET_CHILD_SUBREAPER = 36
RESTART_PAUSES_S = (0.0, 0.2, 1.0, 5.0)
"""Wait before the supervisor's next start, by the number of its deaths within a minute."""
PACKET_BYTES = 64 * 1024
SHUTDOWN_S = 5.0
"""SIGTERMs within this time belong together."""
RELIEF_S = 5.0
"""A supervisor that SIGKILL does not end within this time keeps its lock for now."""
NOTIFIER_PAUSE_S = 10.0
"""Wait before the notifier's next start after it died."""
EXITS_KEPT = 512
"""Exits sent to a restarted supervisor; they fit into one packet."""
STDOUT = 1


def relieve(folder: RunFolder, job_id: str) -> None:
    """Kill a supervisor without a guardian; returns once none is left or after `RELIEF_S`.

    A guardian that is killed while it restarts its supervisor leaves one that takes the lock late.

    Raises:
        OSError: the lock cannot be opened.
    """
    words = ["supervisor", str(folder.path)]
    deadline_s = time.monotonic() + RELIEF_S
    while (held := lock(folder.supervisor_lock)) is None:
        if time.monotonic() > deadline_s:
            return
        pids = procs.pids_of_job(job_id)
        found = [procs.identify(pid) for pid in pids if own_words(procs.argv(pid))[:2] == words]
        procs.signal_all(found, signal.SIGKILL)
        time.sleep(0.02)
    os.close(held)


def become_subreaper() -> None:
    """Become the parent of orphaned descendants (prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Guardian:
    """One job's guardian. Construct, then `run`."""

    def __init__(self, folder: RunFolder, spec: JobSpec, given: handover_file.Handover) -> None:
        self._folder = folder
        self._spec = spec
        self._given = given
        self._log = folder.supervisor_log.open("ab", buffering=0)
        self._selector = selectors.DefaultSelector()
        self._channel: socket.socket | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._supervisor_starts: list[float] = []
        self._restart_at_s: float | None = None
        self._notifier_pid: int | None = None
        self._notify_at_s: float | None = None
        self._agent_pid: int | None = given.agent_pid
        self._terminated_at_s: dict[str, float] = {}
        self._exits: list[pt.Exited] = []
        self._exit_code: int | None = None

    def run(self) -> int:
        """Guard the job until the supervisor reports its end; returns the job's exit code."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(wake_read, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for typed in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):  # Ctrl-C, Ctrl-\, Ctrl-Z
            signal.signal(typed, lambda *_: self._print(self._how_to_stop()))
        signal.signal(signal.SIGTERM, self._on_terminate)
        self._selector.register(wake_read, selectors.EVENT_READ, None)
        is_head = self._spec.placement is not None  # its agents are on the nodes
        if not (self._spec.is_queued or self._given.adopts or is_head):
            self._start_agent(self._first_plan())
        self._start_supervisor()
        self._start_notifier()
        while self._exit_code is None:
            if self._all_is_ended():
                if self._supervisor is not None and self._supervisor.returncode is None:
                    self._supervisor.terminate()  # started in between
                return 128 + signal.SIGTERM
            due = [at for at in (self._restart_at_s, self._notify_at_s) if at is not None]
            timeout_s = max(0.0, min(due) - time.monotonic()) if due else None
            for key, _ in self._selector.select(timeout_s):
                if key.data is None:
                    os.read(wake_read, 4096)
                else:
                    self._receive()
            self._reap()
            is_due = self._restart_at_s is not None and time.monotonic() >= self._restart_at_s
            if is_due and not self._all_is_ended():
                self._restart_at_s = None
                self._start_supervisor()
            if self._notify_at_s is not None and time.monotonic() >= self._notify_at_s:
                self._start_notifier()
        return self._exit_code

    def _on_terminate(self, *_: object) -> None:
        self._terminated_at_s["guardian"] = time.monotonic()
        self._print(self._how_to_stop())

    def _all_is_ended(self) -> bool:
        """Whether guardian and supervisor got SIGTERM together: a shutdown, or a login's end."""
        at_s = self._terminated_at_s
        return len(at_s) == 2 and abs(at_s["guardian"] - at_s["supervisor"]) < SHUTDOWN_S

    def _first_plan(self) -> dict[str, Any]:
        return agent_plan(self._spec, self._folder, self._given.attempt)

    def _how_to_stop(self) -> str:
        job = self._spec.job
        return f"{job} keeps running. To stop it: ddptop stop {job}. To detach: Ctrl-B d."

    def _print(self, text: str) -> None:
        # one unbuffered write: a signal handler may interrupt, and a pane stopped with Ctrl-S
        # accepts nothing
        try:
            os.write(STDOUT, f"{text}\n".encode("utf-8", "replace"))
        except OSError:
            pass  # the pane is full or gone; the job is not

    def _note(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a full disk must not end the guardian
            self._log.write(f"ddptop: {text}\n".encode())

    def _start_agent(self, plan: dict[str, Any]) -> None:
        env = {**self._given.env, **self._given.job_env}
        try:
            agent = subprocess.Popen(
                agent_command(self._spec),
                cwd=self._spec.cwd,
                env=env,
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
                umask=self._given.umask,
            )
        except OSError as error:
            self._note(f"the agent cannot start: {error}")
            self._exits.append(pt.Exited(pid=0, returncode=127, at_boottime_s=boottime_s()))
            self._agent_pid = 0
            self._send(pt.AgentStarted(pid=0))
            self._send(self._exits[-1])
            return
        assert agent.stdin is not None  # requested as a pipe
        try:
            with agent.stdin:
                agent.stdin.write(json.dumps(plan).encode())
        except OSError:
            pass  # it died at once, and its exit is reported
        agent.returncode = 0  # reaped by pid in _reap, never by this handle
        self._agent_pid = agent.pid
        self._send(pt.AgentStarted(pid=agent.pid))

    def _start_supervisor(self) -> None:
        try:
            relieve(self._folder, self._spec.job_id)
            ours = self._spawn_supervisor()
        except OSError as error:  # this user has no processes, memory, or files left
            if not self._folder.path.is_dir():
                raise
            self._note(f"the supervisor cannot start: {error}; retrying")
            self._restart_at_s = time.monotonic() + RESTART_PAUSES_S[-1]
            return
        self._supervisor_starts.append(time.monotonic())
        self._channel = ours
        self._selector.register(ours, selectors.EVENT_READ, "channel")
        self._send(
            pt.GuardianHello(
                attempt=self._given.attempt,
                agent_pid=self._agent_pid,
                guardian_pid=os.getpid(),
                exits=self._exits,
                supervisor_restarts=len(self._supervisor_starts) - 1,
                adopted=self._given.adopts,
            )
        )

    def _start_notifier(self) -> None:
        """Start what sends messages about the job, if anyone wants them."""
        self._notify_at_s = None
        if not self._folder.notify_file.exists():
            return
        env = {name: self._given.env[name] for name in self._given.env if name != "DDPTOP_JOB_ID"}
        try:
            notifier = subprocess.Popen(
                own_command(NOTIFIER_MODULE, str(self._folder.path)),
                env=env,  # without the job's id: it outlives the job
                cwd=self._folder.path,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        except OSError as error:
            self._note(f"the notifier cannot start: {error}")
            self._notify_at_s = time.monotonic() + NOTIFIER_PAUSE_S
            return
        notifier.returncode = 0  # reaped by pid in _reap, never by this handle
        self._notifier_pid = notifier.pid

    def _spawn_supervisor(self) -> socket.socket:
        """Start the supervisor's process; returns the guardian's end of the channel."""
        self._supervisor = None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = own_command("supervisor", str(self._folder.path), str(theirs.fileno()))
        # from a queued job's supervisor, a later guardian gets the variables for its ranks
        needs_all = self._spec.placement is not None or self._spec.queue is not None
        job_env = self._given.job_env if needs_all else {}
        try:
            self._supervisor = subprocess.Popen(
                argv,
                env={**self._given.env, **job_env, "DDPTOP_JOB_ID": self._spec.job_id},
                cwd=self._folder.path,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    def _send(self, message: pt.GuardianHello | pt.ToSupervisor) -> None:
        if self._channel is not None:
            try:
                self._channel.send(pt.encode(message))
            except OSError:
                pass  # the supervisor died; the next one gets this in its hello

    def _receive(self) -> None:
        assert self._channel is not None  # only a registered channel is read
        try:
            packet = self._channel.recv(PACKET_BYTES)
        except ConnectionResetError:
            return  # it exited with a message unread; its own can still be read
        except OSError:
            packet = b""
        if not packet:
            self._drop_channel()
            return
        try:
            message: pt.ToGuardian = pt.decode(packet, pt.ToGuardian)
        except msgspec.MsgspecError:
            return  # longer than a packet can be
        if isinstance(message, pt.Print):
            self._print(message.text)
        elif isinstance(message, pt.LaunchAgent):
            self._given.job_env.update(message.env)
            self._start_agent(message.plan)
        else:
            self._exit_code = message.exit_code

    def _drop_channel(self) -> None:
        if self._channel is not None:
            self._selector.unregister(self._channel)
            self._channel.close()
            self._channel = None

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            returncode = os.waitstatus_to_exitcode(status)
            if self._supervisor is not None and pid == self._supervisor.pid:
                self._supervisor.returncode = returncode
                self._supervisor_ended(returncode)
                continue
            if pid == self._notifier_pid:
                self._notify_at_s = time.monotonic() + NOTIFIER_PAUSE_S if returncode else None
                continue
            exited = pt.Exited(pid=pid, returncode=returncode, at_boottime_s=boottime_s())
            self._exits = [*self._exits[1 - EXITS_KEPT :], exited]
            self._send(exited)

    def _supervisor_ended(self, returncode: int) -> None:
        while self._channel is not None:  # read its last messages: it may be done
            self._receive()
        if self._exit_code is not None:
            return
        if returncode == -signal.SIGTERM:
            self._terminated_at_s["supervisor"] = time.monotonic()
        recent = [at for at in self._supervisor_starts if time.monotonic() - at < 60.0]
        pause_s = RESTART_PAUSES_S[min(len(recent) - 1, len(RESTART_PAUSES_S) - 1)]
        self._note(f"the supervisor exited ({returncode}); restarting it")
        self._restart_at_s = time.monotonic() + pause_s


def main(run_dir: str) -> int:
    """Guard the job of that run folder until it has ended."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.umask(PRIVATE)
    folder = RunFolder(Path(run_dir))
    held = lock(folder.guardian_lock)
    if held is None:
        print(f"{folder.job} already has a guardian", file=sys.stderr)  # noqa: T201
        return 1
    spec = read_spec(folder)
    try:
        given = handover_file.take(folder.handover_file)
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError), folder.supervisor_log.open("a") as log:
            log.write(f"ddptop: {error}\n")
        return 1
    handover_file.apply_limits(given.soft_limits)
    become_subreaper()
    os.set_blocking(STDOUT, False)
    if given.adopts:
        from ddptop_runner.job.registry import read_job  # only adopted jobs need it

        relieve(folder, spec.job_id)
        if not read_job(folder).is_live:
            return 0  # it has ended in the meantime
    return Guardian(folder, spec, given).run()
