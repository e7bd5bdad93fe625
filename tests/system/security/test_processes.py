"""Processes of another user that pretend to belong to a job, as root sees them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.accounts import Account
from tests.support.builders import gone, make_spec, put_job
from tests.support.foreign_toys import job_of, running
from tests.unit.foreign.test_signals import QUIET, SLEEP, view_of

from ddptop_runner.foreign import actions
from ddptop_runner.foreign.census import is_own_job
from ddptop_runner.foreign.process_table import ProcessTable
from ddptop_runner.host import procs
from ddptop_runner.host.handover import AGENT_MAIN
from ddptop_runner.job.registry import read_job
from ddptop_runner.node import adoption

JOB_ID = make_spec("train").job_id


@contextlib.contextmanager
def pretender(attacker: Account, how: str = "plain") -> Iterator[int]:
    """The pid of a process that carries what only processes of the job know.

    Args:
        attacker: who starts it.
        how: `setuid`: by a program that runs as root, as `su` does while it asks for a password.
    """
    program = attacker.home / f"cat-{how}"
    shutil.copy("/bin/cat", program)
    program.chmod(0o4755 if how == "setuid" else 0o755)
    process = attacker.popen(
        [str(program), str(AGENT_MAIN), "-"],
        env=attacker.environment(DDPTOP_JOB_ID=JOB_ID, DDPTOP_ATTEMPT="0"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        if how == "setuid" and Path(f"/proc/{process.pid}").stat().st_uid != 0:
            pytest.skip("the setuid bit has no effect on this file system")
        yield process.pid
    finally:
        process.kill()
        process.communicate(timeout=60)


@pytest.mark.parametrize("how", ["plain", "setuid"])
def test_a_pretender_is_no_process_of_the_job(ddptop_home, attacker, how):
    folder = put_job("train", {"state": "running", "guardian": gone(), "agent": gone()})
    with pretender(attacker, how) as pid:
        assert procs.environ_value(pid, "DDPTOP_JOB_ID") == JOB_ID  # root may read it
        assert pid not in procs.pids_of_job(JOB_ID)
        view = read_job(folder)
        assert view.state == "lost"
        assert not adoption.living_processes(view)


def test_root_sees_the_processes_of_a_users_own_job(ddptop_home, attacker, victim):
    folder = put_job("train", {"state": "running", "guardian": gone(), "agent": gone()})
    os.chown(folder.path, victim.uid, victim.gid)
    with pretender(attacker):
        assert read_job(folder).state == "lost"
        with pretender(victim) as pid:
            assert procs.pids_of_job(JOB_ID, victim.uid) == [pid]
            assert read_job(folder).state == "running"


@pytest.mark.parametrize("how", ["plain", "setuid"])
def test_a_pretender_is_not_hidden_as_one_of_our_own(ddptop_home, attacker, how):
    put_job("train")
    with pretender(attacker, how) as pid:
        (facts,) = (one for one in ProcessTable().scan() if one.pid == pid)
        assert facts.uid == attacker.uid
        assert is_own_job(JOB_ID, os.geteuid())
        assert not is_own_job(JOB_ID, facts.uid)


def test_no_signal_goes_to_another_user_than_the_jobs(attacker):
    with running(*SLEEP, **QUIET) as ours, pretender(attacker) as theirs:
        job = job_of(ours.pid, root_pid=theirs, launcher_pids=(theirs,))
        plan = actions.plan(view_of(job), "kill")
        assert [process.pid for process in plan.processes] == [ours.pid]
        assert os.geteuid() == job.uid and "job of" not in plan.sentence


def test_root_is_told_whose_job_it_signals(attacker):
    with pretender(attacker) as pid:
        job = job_of(pid, uid=attacker.uid, user=attacker.name)
        plan = actions.plan(view_of(job), "kill")
        assert plan.sentence.startswith(f"{attacker.name}'s job: SIGKILL")
        assert procs.signal_process(plan.processes[0], signal.SIGKILL)
