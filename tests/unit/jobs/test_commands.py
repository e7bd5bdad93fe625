"""What a user can do to a job, with and without its supervisor."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.builders import gone, make_snapshot, make_spec, put_job
from tests.support.programs import piped

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import (
    ControlError,
    DdptopError,
    NoSuchJobError,
    UsageError,
)
from ddptop_runner.base.files import lock, write_atomic
from ddptop_runner.base.paths import RunFolder, run_folder
from ddptop_runner.host import procs
from ddptop_runner.host.handover import AGENT_MAIN
from ddptop_runner.job.registry import read_job
from ddptop_runner.jobs import commands
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.snapshot import encode
from ddptop_runner.node import control

pytestmark = pytest.mark.usefixtures("ddptop_home")
ALIVE = {"state": "running", "guardian": procs.identify(os.getpid())}
ENDED = {"state": "finished", "ended_at": utc_now()}
UNGUARDED = {"state": "running", "guardian": gone(), "supervisor": gone()}


@pytest.fixture
def asked(monkeypatch) -> list[pt.Message]:
    """The requests that the supervisor would have received."""
    requests: list[pt.Message] = []

    def request(folder: RunFolder, message: pt.Message, *_: object) -> pt.Message:
        requests.append(message)
        return pt.Stacks(stacks=[]) if isinstance(message, pt.GetStacks) else pt.Done()

    monkeypatch.setattr(control, "request", request)
    return requests


ACTIONS: dict[str, tuple[Callable[..., Any], pt.Message]] = {
    "stop": (commands.stop, pt.StopAsked(grace_s=30.0)),
    "stop soon": (lambda view: commands.stop(view, 2.5), pt.StopAsked(grace_s=2.5)),
    "kill": (lambda view: commands.stop(view, 0.0), pt.StopAsked(grace_s=0.0)),
    "restart": (commands.restart_group, pt.Restart()),
    "stacks": (commands.stacks, pt.GetStacks()),
    "stacks of one": (lambda view: commands.stacks(view, 3), pt.GetStacks(rank=3)),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_a_live_job_is_asked_through_its_supervisor(asked, name):
    action, request = ACTIONS[name]
    action(read_job(put_job("train", ALIVE)))
    assert asked == [request]


@pytest.mark.parametrize("name", ACTIONS)
def test_an_ended_job_is_not_asked(asked, name):
    with pytest.raises(UsageError, match=r"train has ended \(finished\)"):
        ACTIONS[name][0](read_job(put_job("train", ENDED)))
    assert asked == []


@pytest.mark.parametrize("name", ACTIONS)
def test_a_job_of_another_host_is_left_to_that_host(asked, name):
    view = read_job(put_job("train", ALIVE, host="elsewhere"))
    with pytest.raises(UsageError, match="train is on host elsewhere; run this command there"):
        ACTIONS[name][0](view)
    assert asked == []


@pytest.fixture
def processes() -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """A rank that ignores SIGTERM, its agent, and a shell in the job's tmux session."""
    code = {
        "rank": "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); input()",
        "agent": "print(1, flush=True); input()",
        "shell": "print(1, flush=True); input()",
    }
    words = {"rank": [], "agent": [str(AGENT_MAIN)], "shell": []}
    env = {**os.environ, "DDPTOP_JOB_ID": make_spec("train").job_id}
    started = {}
    for name in code:
        attempt = {"DDPTOP_ATTEMPT": "0"} if name == "rank" else {}
        started[name] = piped(
            sys.executable, "-S", "-c", code[name], *words[name], env=env | attempt, text=False
        )
    for process in started.values():
        assert process.stdout is not None
        process.stdout.readline()
    yield started
    for process in started.values():
        with contextlib.suppress(OSError):
            process.kill()
        process.communicate()


@pytest.mark.parametrize("action", ["stop", "kill"])
def test_a_job_without_guardian_and_supervisor_can_still_be_ended(processes, action):
    folder = put_job("train", UNGUARDED)
    view = read_job(folder)
    assert view.is_live and view.guarded is False
    if action == "stop":
        commands.stop(view, 0.2)
    else:
        commands.stop(view, 0.0)
    agent = signal.SIGTERM if action == "stop" else signal.SIGKILL
    assert processes["rank"].wait(5) == -signal.SIGKILL
    assert processes["agent"].wait(5) == -agent
    assert processes["shell"].poll() is None
    processes["shell"].communicate()
    assert read_job(folder).state == "lost"


@pytest.mark.parametrize("who", ["guardian", "supervisor"])
def test_nothing_is_ended_behind_the_back_of_a_guard_that_lives(monkeypatch, processes, who):
    monkeypatch.setattr(commands, "SUPERVISOR_START_S", 0.2)
    view = read_job(put_job("train", {**UNGUARDED, who: procs.identify(os.getpid())}))
    with pytest.raises(ControlError, match="cannot be reached"):
        commands.stop(view, 0.0)
    assert processes["rank"].poll() is None


@pytest.fixture
def guard(processes, tmp_path) -> subprocess.Popen[bytes]:
    """A process with the command line of the job's supervisor."""
    script = tmp_path / "ddptop_runner" / "base" / "start.py"
    script.parent.mkdir(parents=True)
    script.write_text("print(1, flush=True); input()")
    process = piped(
        sys.executable, str(script), "supervisor", str(run_folder("train").path), text=False
    )
    processes["guard"] = process
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.parametrize(
    ("op", "code", "is_ended"),
    [
        ("kill", "absent", True),
        ("stop", "absent", True),
        ("kill", "silent", True),
        ("stop", "silent", False),  # it may be stopping the job at this moment
        ("kill", None, False),  # it responded, and refused
    ],
)
def test_a_job_whose_supervisor_cannot_be_reached_is_ended_without_it(
    monkeypatch, processes, guard, op, code, is_ended
):
    def request(*args: Any, **arguments: Any) -> dict[str, Any]:
        raise ControlError("the supervisor cannot be reached", code=code)

    monkeypatch.setattr(control, "request", request)
    monkeypatch.setattr(commands, "SUPERVISOR_START_S", 0.0)
    view = read_job(put_job("train", {**UNGUARDED, "supervisor": procs.identify(guard.pid)}))
    end = functools.partial(commands.stop, grace_s=0.0 if op == "kill" else 0.1)
    if not is_ended:
        with pytest.raises(ControlError):
            end(view)
        assert guard.poll() is None and processes["rank"].poll() is None
        return
    assert "the job's processes have exited" in (end(view) or "")
    assert guard.wait(5) == processes["rank"].wait(5) == -signal.SIGKILL
    processes["agent"].wait(5)
    assert processes["shell"].poll() is None


@pytest.mark.parametrize("op", ["kill", "stop"])
def test_a_job_whose_supervisor_never_starts_is_ended_without_it(monkeypatch, processes, guard, op):
    monkeypatch.setattr(commands, "SUPERVISOR_START_S", 0.0)
    view = read_job(put_job("train", None, created_at=utc_now()))
    end = functools.partial(commands.stop, grace_s=0.0 if op == "kill" else 0.1)
    assert "the job's processes have exited" in (end(view) or "")
    assert guard.wait(5) == processes["rank"].wait(5) == -signal.SIGKILL


@pytest.mark.parametrize("snapshot", [None, ALIVE], ids=["starting", "started again"])
@pytest.mark.parametrize("name", ACTIONS)
def test_a_supervisor_that_does_not_listen_yet_is_waited_for(monkeypatch, asked, name, snapshot):
    action, request = ACTIONS[name]
    answer = control.request
    refusals = [1, 2]

    def not_yet(*args: Any, **arguments: Any) -> dict[str, Any]:
        if refusals:
            refusals.pop()
            raise ControlError("the supervisor cannot be reached", code="absent")
        return answer(*args, **arguments)

    monkeypatch.setattr(control, "request", not_yet)
    monkeypatch.setattr(commands, "POLL_S", 0.01)
    action(read_job(put_job("train", snapshot, created_at=utc_now())))
    assert asked == [request]


def test_a_supervisor_that_refuses_is_not_asked_again(monkeypatch):
    def refuse(*args: Any, **arguments: Any) -> dict[str, Any]:
        calls.append(args)
        raise ControlError("the job is stopping")

    calls: list[Any] = []
    monkeypatch.setattr(control, "request", refuse)
    with pytest.raises(ControlError, match="the job is stopping"):
        commands.restart_group(read_job(put_job("train", ALIVE)))
    assert len(calls) == 1


@pytest.mark.parametrize("name", ACTIONS)
def test_a_supervisor_that_breaks_off_is_asked_again_for_what_may_be_done_twice(
    monkeypatch, asked, name
):
    action, request = ACTIONS[name]
    answer, failures = control.request, [1, 2, 3]

    def breaks_off(*args: Any, **arguments: Any) -> dict[str, Any]:
        if failures:
            failures.pop()
            raise ControlError("broke off", code="broken_off")
        return answer(*args, **arguments)

    monkeypatch.setattr(control, "request", breaks_off)
    monkeypatch.setattr(commands, "POLL_S", 0.01)
    view = read_job(put_job("train", ALIVE))
    if name == "restart":
        with pytest.raises(ControlError, match="broke off"):
            action(view)
    else:
        action(view)
        assert asked == [request]


def test_waiting_ends_with_the_job_and_its_guardian(monkeypatch, wait_until):
    monkeypatch.setattr(commands, "POLL_S", 0.01)
    guardian = subprocess.Popen(["sleep", "60"])
    state = {**ALIVE, "guardian": procs.identify(guardian.pid)}
    folder = put_job("train", state)
    ended: list[str] = []
    view = read_job(folder)
    waiting = threading.Thread(
        target=lambda: ended.append(commands.wait_until_ended(view, 20.0).state)
    )
    waiting.start()
    # the job has ended, and its guardian is about to exit
    stopped = make_snapshot(view.spec, **{**state, "state": "stopped"})
    write_atomic(folder.node_file(view.spec.host), encode(stopped))
    waiting.join(0.2)
    assert waiting.is_alive()
    guardian.kill()
    guardian.wait()
    waiting.join(10)
    assert ended == ["stopped"]


def test_only_an_ended_job_is_removed():
    live = put_job("live", ALIVE)
    ended = put_job("ended", ENDED)
    (ended.logs_dir / "attempt-0").mkdir(parents=True)
    with pytest.raises(UsageError, match="live is running; stop it first: ddptop stop live"):
        commands.remove(read_job(live))
    commands.remove(read_job(ended))
    assert live.spec_file.exists() and not ended.path.exists()


def test_a_folder_is_removed_while_others_write_and_delete_there(monkeypatch):
    folder = put_job("train", ENDED)
    (folder.logs_dir / "attempt-0").mkdir(parents=True)
    unlink, rmdir, meanwhile = os.unlink, os.rmdir, [0, 0]

    def deleted_by_both(name: Any, *args: Any, **options: Any) -> None:
        unlink(name, *args, **options)
        meanwhile[0] += 1
        if meanwhile[0] == 1:
            unlink(name, *args, **options)

    def written_to_first(name: Any, *args: Any, **options: Any) -> None:
        meanwhile[1] += 1
        if meanwhile[1] == 1:
            (folder.path / "late").touch()
        rmdir(name, *args, **options)

    monkeypatch.setattr(os, "unlink", deleted_by_both)
    monkeypatch.setattr(os, "rmdir", written_to_first)
    commands.remove(read_job(folder))
    assert not folder.path.exists()


def test_two_may_remove_the_same_job_at_once(monkeypatch):
    view = read_job(put_job("train", ENDED))
    for number in range(500):
        (view.folder.path / str(number)).touch()
    failed: list[DdptopError] = []
    both = threading.Barrier(2, timeout=60)
    waited: set[int] = set()
    rmtree = shutil.rmtree

    def at_once(path: Any, **options: Any) -> None:
        if threading.get_ident() not in waited:
            waited.add(threading.get_ident())
            both.wait()
        rmtree(path, **options)

    def one() -> None:
        try:
            commands.remove(view)
        except DdptopError as error:
            failed.append(error)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", at_once)
        threads = [threading.Thread(target=one) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert failed == [] and not view.folder.path.exists()


def test_a_damaged_job_is_removed_unless_it_lives():
    folder = put_job("train", ENDED)
    folder.spec_file.write_text("{")
    held = lock(folder.guardian_lock)
    assert held is not None
    with pytest.raises(UsageError, match="train is still running"):
        commands.remove_damaged(folder)
    assert folder.spec_file.exists()
    os.close(held)
    commands.remove_damaged(folder)
    assert not folder.path.exists()


def test_waiting_for_a_job_that_is_removed_once_it_has_ended(monkeypatch):
    view = read_job(put_job("train", ALIVE))
    monkeypatch.setattr(commands, "POLL_S", 0.0)
    shutil.rmtree(view.folder.path)
    with pytest.raises(NoSuchJobError, match="train has ended and been removed"):
        commands.wait_until_ended(view)
