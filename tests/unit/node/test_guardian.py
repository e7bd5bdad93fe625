"""The guardian on a real pty, with an agent that only waits: how a user's keys affect it."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.builders import put_job

from ddptop_runner.base.errors import ControlError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.host import handover, procs
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.snapshot import NodeSnapshot, decode_snapshot
from ddptop_runner.model.spec import read_spec
from ddptop_runner.node import control, guardian
from ddptop_runner.node.guardian_start import guardian_argv

HOW_TO_STOP = "train keeps running. To stop it: ddptop stop train."


class Pane:
    """A guardian in its own pane."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        job_env = {"DDPTOP_JOB_ID": read_spec(folder).job_id}
        handover.write(folder.handover_file, handover.capture(job_env, attempt=0))
        argv = guardian_argv(folder)
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(job_env)
            os.execv(argv[0], argv)
        self.shown = ""
        self.status: int | None = None

    def read(self) -> str:
        while select.select([self.fd], [], [], 0)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            self.shown += data.decode()
        return self.shown

    def keys(self, data: bytes) -> None:
        os.write(self.fd, data)

    def snapshot(self) -> NodeSnapshot | None:
        try:
            return decode_snapshot(self.folder.node_file(procs.host_name()).read_bytes())
        except OSError:
            return None

    def supervisor(self) -> int | None:
        """The PID of the live supervisor that wrote the snapshot."""
        snapshot = self.snapshot()
        if snapshot is None or not procs.is_alive(snapshot.supervisor):
            return None
        return snapshot.supervisor.pid if snapshot.supervisor else None

    def answers(self) -> bool:
        """Whether the supervisor is listening; it publishes its state a moment before."""
        try:
            control.request(self.folder, pt.Ping(), pt.Done)
        except ControlError:
            return False
        return True

    def ended(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.read()
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None


@pytest.fixture
def make_pane(ddptop_home, tmp_path) -> Iterator[Callable[..., Pane]]:
    panes: list[Pane] = []

    def make(agent: str | None = "exec sleep 600") -> Pane:
        python = tmp_path / "python"
        if agent is not None:
            python.write_text(f"#!/bin/sh\n{agent}\n")
            python.chmod(0o755)
        folder = put_job("train", python=str(python))
        folder.logs_dir.mkdir()
        folder.evidence_dir.mkdir()
        panes.append(Pane(folder))
        return panes[0]

    yield make
    for pane in panes:
        if not pane.ended():
            control.request(pane.folder, pt.StopAsked(grace_s=0.0), pt.Done)
            deadline = time.monotonic() + 15
            while not pane.ended() and time.monotonic() < deadline:
                time.sleep(0.02)
        os.close(pane.fd)


def test_no_key_in_its_pane_ends_or_stops_the_guardian(make_pane, wait_until):
    pane = make_pane()
    wait_until(pane.supervisor, what="the supervisor")
    for count, key in enumerate((b"\x03", b"\x1c", b"\x1a"), start=1):
        pane.keys(key)
        wait_until(lambda n=count: pane.read().count(HOW_TO_STOP) == n, what=f"a word on {key!r}")

    # Ctrl-S: the pane no longer accepts output
    pane.keys(b"\x13")
    for _ in range(400):  # far more text than a pty holds
        os.kill(pane.pid, signal.SIGINT)
        time.sleep(0.0005)
    first = pane.supervisor()
    assert first is not None
    os.kill(first, signal.SIGKILL)
    second = wait_until(
        lambda: (pid := pane.supervisor()) != first and pid, what="another supervisor"
    )
    assert second != first
    control.request(pane.folder, pt.StopAsked(grace_s=0.0), pt.Done)
    wait_until(pane.ended, what="the guardian to end with its job")
    assert pane.status == 1
    snapshot = pane.snapshot()
    assert snapshot is not None and snapshot.state == "stopped"


def test_a_lost_pane_is_not_the_end(make_pane, wait_until):
    pane = make_pane()
    supervisor = wait_until(pane.supervisor, what="the supervisor")
    reader = os.dup(pane.fd)
    os.close(pane.fd)
    pane.fd = os.open(os.devnull, os.O_RDONLY)
    os.close(reader)  # the kernel sends SIGHUP
    os.kill(supervisor, signal.SIGKILL)  # and its successor has nowhere to print
    wait_until(lambda: pane.supervisor() not in (None, supervisor), what="another supervisor")
    wait_until(pane.answers, what="its socket")
    assert procs.state_letter(pane.pid) in ("S", "R")


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (None, "exited with status 127 before starting any rank"),
        ("echo 'no torch in here' >&2; exit 3", "exited with status 3 before starting any rank"),
    ],
    ids=["no interpreter", "no torch"],
)
def test_an_agent_that_cannot_start_fails_the_job_with_its_words(
    make_pane, wait_until, agent, words
):
    pane = make_pane(agent)
    wait_until(pane.ended, what="the guardian to end")
    assert pane.status != 0
    snapshot = pane.snapshot()
    assert snapshot is not None and snapshot.cause is not None
    assert (snapshot.state, snapshot.cause.kind, snapshot.requeue) == ("failed", "launch", False)
    assert words in snapshot.cause.summary
    assert "failed in attempt 0: no rank could be started" in pane.read()


def test_a_supervisor_that_cannot_be_started_is_tried_again(ddptop_home, monkeypatch):
    folder = put_job("train")
    given = handover.capture({}, attempt=0)
    one = guardian.Guardian(folder, read_spec(folder), given)

    def no_process(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", no_process)
        open_before = set(os.listdir("/proc/self/fd"))
        one._start_supervisor()
        assert one._restart_at_s is not None
        assert set(os.listdir("/proc/self/fd")) <= open_before
        assert "the supervisor cannot start" in folder.supervisor_log.read_text()
        patched.setattr(guardian, "lock", no_process)  # this user has no files left
        one._restart_at_s = None
        one._start_supervisor()
        assert one._restart_at_s is not None
        shutil.rmtree(folder.path)
        with pytest.raises(BlockingIOError):  # nothing would ever report that the job has ended
            one._start_supervisor()
    one._log.close()
    one._selector.close()


def test_the_end_of_a_job_is_read_although_its_supervisor_left_a_message_unread(
    ddptop_home, monkeypatch
):
    folder = put_job("train")
    one = guardian.Guardian(folder, read_spec(folder), handover.capture({}, attempt=0))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(one, "_spawn_supervisor", lambda: ours)
    one._start_supervisor()  # sends a message
    theirs.send(b'{"type": "done", "exit_code": 93}')
    theirs.close()
    one._supervisor_ended(0)
    assert (one._exit_code, one._restart_at_s) == (93, None)
    one._log.close()
    one._selector.close()


def test_a_second_guardian_is_refused(make_pane, wait_until, ddptop_home):
    pane = make_pane()
    wait_until(pane.supervisor, what="the supervisor")
    second = subprocess.run(
        guardian_argv(pane.folder), capture_output=True, text=True, check=False, timeout=60
    )
    assert second.returncode == 1
    assert "train already has a guardian" in second.stderr
    assert Path(pane.folder.guardian_lock).exists()
