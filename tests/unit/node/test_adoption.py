"""Adopting a job: which environment it gets, and when it is not adopted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from ddptop.commands import unguarded
from msgspec.structs import replace
from tests.support.builders import gone, make_spec, put_job
from tests.support.programs import piped

from ddptop_runner.base.files import lock
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.host import handover, procs
from ddptop_runner.host.handover import AGENT_MAIN, PROBE_DIR
from ddptop_runner.job.registry import read_job
from ddptop_runner.model.spec import Device, JobSpec, read_spec, write_spec
from ddptop_runner.node import adoption
from ddptop_runner.node.adoption import adopt, variables
from ddptop_runner.node.guardian_start import starting

SHELL = {"HOME": "/home/ann", "PATH": "/bin"}
SUPERVISOR = {**SHELL, "DDPTOP_JOB_ID": "train@1"}
AGENT = {**SHELL, "DDPTOP_JOB_ID": "train@1", "PATH": "/opt/bin", "CUDA_VISIBLE_DEVICES": "1"}
RANK = {
    **AGENT,
    "PYTHONPATH": f"{PROBE_DIR}{os.pathsep}/own",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "4711",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "DDPTOP_ATTEMPT": "0",
    "DDPTOP_LOG": "/x",
}
CALLING = {"HOME": "/home/ann", "NEW": "1"}
JOBS = {"PATH": "/opt/bin", "CUDA_VISIBLE_DEVICES": "1"}
ONLY_AGENT = {**SHELL, **JOBS}


@pytest.mark.parametrize(
    ("living", "expected"),
    [
        ({"supervisor": SUPERVISOR, "agent": AGENT, "rank": RANK}, (SHELL, JOBS)),
        ({"supervisor": SUPERVISOR, "agent": AGENT}, (SHELL, JOBS)),
        ({"supervisor": SUPERVISOR, "rank": RANK}, (SHELL, {**JOBS, "PYTHONPATH": "/own"})),
        ({"supervisor": SUPERVISOR}, (SHELL, {})),
        ({"agent": AGENT, "rank": RANK}, (ONLY_AGENT, {})),
        ({"rank": RANK}, ({**ONLY_AGENT, "PYTHONPATH": "/own"}, {})),
        ({}, (CALLING, {})),
    ],
)
def test_variables_come_from_whoever_lives(living, expected):
    told = {"supervisor": None, "agent": None, "rank": None, **living}
    assert variables(**told, shell={**CALLING, "DDPTOP_ATTEMPT": "3"}) == expected


@pytest.fixture
def agent(tmp_path) -> Iterator[subprocess.Popen[bytes]]:
    """What is left of the job: a process that runs the agent's program, with its environment."""
    env = {**os.environ, "DDPTOP_JOB_ID": make_spec("train").job_id, "OF_THE_JOB": "yes"}
    code = "import os, resource; os.umask(0o037); print(1, flush=True); input()"
    process = piped(sys.executable, "-S", "-c", code, str(AGENT_MAIN), env=env, text=False)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.communicate()


@pytest.fixture
def brought_up(monkeypatch) -> list[handover.Handover]:
    """The handovers with which guardians would have been started."""
    given: list[handover.Handover] = []

    def bring_up(folder: RunFolder, spec, one: handover.Handover, wrap) -> None:
        given.append(one)

    monkeypatch.setattr(adoption, "bring_up", bring_up)
    monkeypatch.setattr(adoption, "SEEN_WITHIN_S", 0.05)
    return given


def unguarded_job(agent: subprocess.Popen[bytes], **snapshot) -> RunFolder:
    state = {"state": "running", "attempt": 2, "guardian": gone()}
    state["agent"] = procs.identify(agent.pid)
    return put_job("train", {**state, **snapshot}, env_names=["HOME", "LOST"], env_overrides=["K"])


def test_the_agent_hands_the_job_over(ddptop_home, agent, brought_up):
    view = read_job(unguarded_job(agent))
    assert view.needs_guardian
    done = adopt(view, {"SHELL_ONLY": "1"})
    assert done is not None and done.missing == ("K", "LOST")
    (given,) = brought_up
    assert (given.adopts, given.agent_pid, given.attempt) == (True, agent.pid, 2)
    assert (given.env["OF_THE_JOB"], given.umask) == ("yes", 0o037)
    assert "SHELL_ONLY" not in given.env and "DDPTOP_JOB_ID" not in given.env
    assert given.soft_limits == handover.capture({}, 0).soft_limits


@pytest.mark.usefixtures("ddptop_home", "brought_up")
def test_devices_that_a_waiting_job_takes_meanwhile_are_kept(agent, monkeypatch):
    def bring_up(folder: RunFolder, spec: JobSpec, *_: object) -> None:
        write_spec(folder, replace(read_spec(folder), devices=[Device(index=1)]))

    monkeypatch.setattr(adoption, "bring_up", bring_up)
    monkeypatch.setattr(adoption.tmux, "why_unusable", lambda: None)
    monkeypatch.setattr(adoption.tmux, "socket_name", lambda: "new")
    folder = unguarded_job(agent)
    adopt(read_job(folder), {})
    now = read_spec(folder)
    assert (now.devices, now.tmux_socket) == ([Device(index=1)], "new")


def test_a_store_keeper_is_not_taken_for_the_agent(ddptop_home, agent):
    words, env = procs.argv(agent.pid), procs.environ_of(agent.pid)
    with piped(*words, env=env, text=False) as keeper:
        assert keeper.stdout is not None and keeper.stdout.readline()
        living = adoption.living_processes(read_job(unguarded_job(agent)))
        keeper.communicate()
    assert living.agents == (agent.pid,)


@pytest.mark.parametrize("held", ["guardian_lock", "start_lock"])
def test_where_another_is_at_it_nothing_is_started(ddptop_home, agent, brought_up, held):
    folder = unguarded_job(agent)
    fd = lock(getattr(folder, held))
    assert fd is not None
    assert adopt(read_job(folder), {}) is None
    os.close(fd)
    assert brought_up == []
    with starting(folder) as mine:
        assert mine


def test_what_is_no_unguarded_job_is_left_alone(ddptop_home, agent, brought_up, monkeypatch):
    here = procs.identify(os.getpid())
    for change in (
        {"guardian": here},  # has a guardian
        {"guardian": None},  # never had a known one
        {"state": "finished"},
        {"host": "elsewhere", "guardian": gone()},
    ):
        folder = unguarded_job(agent, **{k: v for k, v in change.items() if k != "host"})
        if "host" in change:
            spec = folder.spec_file.read_text().replace(procs.host_name(), "elsewhere")
            folder.spec_file.write_text(spec)
        view = read_job(folder)
        assert not view.needs_guardian
        assert adopt(view, {}) is None
        subprocess.run(["rm", "-r", str(folder.path)], check=True)
    just_launched = read_job(put_job("train"))
    assert not just_launched.needs_guardian
    subprocess.run(["rm", "-r", str(just_launched.folder.path)], check=True)
    removed = read_job(unguarded_job(agent))
    subprocess.run(["rm", "-r", str(removed.folder.path)], check=True)
    assert not removed.needs_guardian
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert not read_job(unguarded_job(agent)).needs_guardian
    assert brought_up == []


def test_a_shell_in_the_jobs_old_window_is_no_life(ddptop_home, brought_up):
    env = {**os.environ, "DDPTOP_JOB_ID": make_spec("train").job_id}
    shell = subprocess.Popen(
        [sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, env=env
    )
    try:
        view = read_job(put_job("train", {"state": "running", "guardian": gone()}))
        assert view.needs_guardian
        assert adopt(view, {}) is None
    finally:
        shell.communicate()
    assert brought_up == []


def test_failure_is_reported_and_the_command_continues(ddptop_home, agent, monkeypatch, capsys):
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(adoption, "bring_up", refuse)
    view = read_job(unguarded_job(agent))
    assert unguarded.adopt_if_unguarded(view) is view
    said = capsys.readouterr().err
    assert said.startswith("ddptop: train is unguarded and cannot be adopted: ")
    assert said.count("\n") == 1


def test_where_all_is_guarded_nothing_is_imported(ddptop_home):
    put_job("train", {"state": "running", "guardian": procs.identify(os.getpid())})
    code = (
        "import sys; sys.argv[1:] = ['ls']\n"
        "from ddptop.__main__ import main\n"
        "main()\n"
        "assert 'ddptop_runner.node.adoption' not in sys.modules\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert "train" in answer.stdout
