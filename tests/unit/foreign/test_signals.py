"""Ending real foreign jobs, only by confirmed plans."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading

import msgspec
import pytest
from tests.support.foreign_toys import job_of, running

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import UsageError
from ddptop_runner.foreign import actions
from ddptop_runner.foreign.types import ForeignJob, ForeignView
from ddptop_runner.host import procs, tree
from ddptop_runner.model.snapshot import NodeSnapshot
from ddptop_runner.model.words import JobState

SLEEP = (sys.executable, "-c", "print('up', flush=True); import time; time.sleep(1000)")
QUIET = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}


def view_of(job: ForeignJob, state: JobState = "running") -> ForeignView:
    now = utc_now()
    snapshot = NodeSnapshot(
        job=job.name,
        job_id=job.name,
        host=procs.host_name(),
        seq=1,
        ts=now,
        state=state,
        started_at=now,
    )
    return ForeignView(job, snapshot, now)


def up(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"


def reaped(process: subprocess.Popen[bytes]) -> int:
    return process.wait(timeout=60)


def test_stopping_one_process_begins_as_ctrl_c_does():
    with running(*SLEEP, **QUIET) as process:
        up(process)
        confirmed = actions.plan(view_of(job_of(process.pid, launcher="python")), "stop")
        assert confirmed.sentence == (
            f"SIGINT to python {process.pid}; 15 s later, SIGTERM; 5 s later, SIGKILL"
        )
        assert process.poll() is None  # a plan sends nothing
        outcome = actions.send(confirmed)
        assert reaped(process) == -signal.SIGINT
        assert outcome.left == ()
        assert "SIGINT was enough" in outcome.sentence
        assert outcome.ended_by == "SIGINT"


def test_ranks_in_groups_of_their_own_are_reached(monkeypatch):
    """A launcher that does not forward the signal, as some do."""
    monkeypatch.setattr(actions, "TERM_GRACE_S", 5.0)
    with (
        running(*SLEEP, **QUIET) as launcher,
        running(*SLEEP, **QUIET, start_new_session=True) as rank,
    ):
        up(launcher)
        up(rank)
        job = job_of(rank.pid, root_pid=launcher.pid, launcher_pids=(launcher.pid,))
        confirmed = actions.plan(view_of(job), "stop", grace_s=0.3)
        assert [one.pid for one in confirmed.launchers] == [launcher.pid]
        assert sorted(one.pid for one in confirmed.processes) == sorted([launcher.pid, rank.pid])
        assert "to the rest of its 2 processes" in confirmed.sentence
        # otherwise, it remains a zombie, which also counts as gone
        threading.Thread(target=launcher.wait).start()
        outcome = actions.send(confirmed)
        assert reaped(rank) == -signal.SIGTERM
        assert outcome.left == ()


def test_ranks_without_a_launcher_are_each_reported():
    with (
        running(*SLEEP, **QUIET, start_new_session=True) as first,
        running(*SLEEP, **QUIET, start_new_session=True) as second,
    ):
        up(first)
        up(second)
        confirmed = actions.plan(view_of(job_of(first.pid, second.pid)), "stop")
        assert confirmed.sentence.startswith("SIGINT to its 2 ranks; 15 s later, SIGTERM to the")
        outcome = actions.send(confirmed)
        assert (reaped(first), reaped(second)) == (-signal.SIGINT, -signal.SIGINT)
        assert "SIGINT was enough" in outcome.sentence


def test_ranks_whose_launcher_has_ended_are_signalled_themselves():
    with running(*SLEEP, **QUIET, start_new_session=True) as rank:
        job = job_of(rank.pid, root_pid=2**22 + 1, launcher_pids=())  # above any pid
        assert [one.pid for one in actions.plan(view_of(job), "stop").launchers] == [rank.pid]


def test_the_group_hears_it_but_nobody_else_in_it(tmp_path):
    with (
        running(*SLEEP, **QUIET) as launcher,
        running(*SLEEP, **QUIET) as rank,
        running(*SLEEP, **QUIET) as stranger,  # all three are in this test's own group
    ):
        for process in (launcher, rank, stranger):
            up(process)
        job = job_of(rank.pid, root_pid=launcher.pid, launcher_pids=(launcher.pid,))
        confirmed = actions.plan(view_of(job), "stop")
        assert f"torchrun {launcher.pid} and 1 other process in its group" in confirmed.sentence
        actions.send(confirmed)
        assert reaped(launcher) == reaped(rank) == -signal.SIGINT
        assert stranger.poll() is None


FORKS = """
import subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
child = subprocess.Popen(sleep, start_new_session=True)
print(child.pid, flush=True)
time.sleep(1000)
"""


def test_killing_takes_descendants_that_no_census_has_seen(wait_until):
    with running(sys.executable, "-c", FORKS, **QUIET) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        identity = procs.identify(child)
        try:
            confirmed = actions.plan(view_of(job_of(process.pid)), "kill")
            assert (
                confirmed.sentence
                == f"SIGKILL to all 2 processes in the job (torchrun {process.pid})"
            )
            assert actions.send(confirmed).left == ()
            assert reaped(process) == -signal.SIGKILL
            wait_until(lambda: not procs.is_alive(identity))
        finally:
            procs.signal_process(identity, signal.SIGKILL)


def test_a_process_that_took_the_pid_is_never_signalled():
    with running(*SLEEP, **QUIET) as process:
        up(process)
        confirmed = actions.plan(view_of(job_of(process.pid)), "kill")
        other = [
            msgspec.structs.replace(one, start_ticks=(one.start_ticks or 0) - 1)
            for one in confirmed.processes
        ]
        stale = dataclasses.replace(confirmed, processes=tuple(other), launchers=tuple(other))
        assert actions.send(stale).left == ()
        assert process.poll() is None


def test_this_process_its_ancestors_and_their_other_children_are_spared():
    job = job_of(os.getpid(), root_pid=os.getppid(), launcher_pids=(os.getppid(),))
    with running(*SLEEP, **QUIET) as child, pytest.raises(UsageError, match="no processes left"):
        up(child)
        actions.plan(view_of(job), "kill")


def test_what_is_refused():
    with running(*SLEEP, **QUIET) as process:
        up(process)
        job = job_of(process.pid)
        with pytest.raises(UsageError, match="has already ended"):
            actions.plan(view_of(job, "lost"), "stop")
        with pytest.raises(UsageError, match="another ddptop"):
            actions.plan(view_of(msgspec.structs.replace(job, launcher="ddptop")), "stop")
        assert process.poll() is None


def test_another_users_job_is_refused(monkeypatch):
    with running(*SLEEP, **QUIET) as process:
        up(process)
        job = msgspec.structs.replace(job_of(process.pid), uid=4242, user="ada")
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        with pytest.raises(UsageError, match="belongs to ada"):
            actions.plan(view_of(job), "kill")


RANK = """
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
print(f"rank {dist.get_rank()} up", flush=True)
while True:
    dist.all_reduce(torch.ones(1))
    time.sleep(0.05)
"""


@pytest.mark.torch
@pytest.mark.slow
def test_real_torchrun_is_stopped_as_planned(tmp_path, wait_until):
    script = tmp_path / "train.py"
    script.write_text(RANK)
    log = tmp_path / "log"
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (
        log.open("wb") as file,
        running(
            *argv, os.fspath(script), stdout=file, stderr=file, env=environment,
            start_new_session=True,
        ) as agent,
    ):  # fmt: skip
        wait_until(lambda: log.read_bytes().count(b" up") == 2, timeout_s=300)
        ranks = [
            pid for pid in tree.descendants_of(agent.pid) if os.fspath(script) in procs.argv(pid)
        ]
        job = job_of(*ranks, root_pid=agent.pid, launcher_pids=(agent.pid,))
        identities = [procs.identify(pid) for pid in ranks]
        confirmed = actions.plan(view_of(job), "stop", grace_s=120.0)
        assert [one.pid for one in confirmed.launchers] == [agent.pid]
        outcome = actions.send(confirmed)
        assert outcome.left == ()
        assert "SIGINT was enough" in outcome.sentence
        assert not any(procs.is_alive(one) for one in identities)
        assert len(ranks) == 2
        reaped(agent)
