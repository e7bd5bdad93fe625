"""A census of this machine, and what a PID or name given by a user refers to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.support.builders import make_spec, put_job
from tests.support.foreign_trees import find, process, torch_process, torchrun

from ddptop_runner.base.errors import NoSuchJobError, UsageError
from ddptop_runner.base.paths import run_folder
from ddptop_runner.foreign.census import (
    HostCensus,
    devices_by_pid,
    find_again,
    is_own_job,
    resolve,
)
from ddptop_runner.foreign.types import Census, Unreadable
from ddptop_runner.host import procs
from ddptop_runner.model.snapshot import GpuProcess, GpuSample
from ddptop_runner.model.spec import Placement, write_spec

SLEEP = "import time; time.sleep(600)"


@pytest.fixture
def sleeper(ddptop_home, wait_until):
    """Starts processes that sleep, and ends them."""
    children = []

    def start(**variables: str) -> subprocess.Popen[bytes]:
        environ = {**os.environ, **variables}
        children.append(subprocess.Popen([sys.executable, "-c", SLEEP], env=environ))
        pid = children[-1].pid
        wait_until(lambda: procs.environ_value(pid, "DDPTOP_HOME"), what="its environment")
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.wait()


def census_of(*groups) -> Census:
    jobs, unreadable = find([one for group in groups for one in group])
    return Census(tuple(jobs), tuple(unreadable))


def gpu(index: int, *processes: GpuProcess, **values) -> GpuSample:
    return GpuSample(index=index, uuid=f"GPU-{index}", processes=list(processes), **values)


# --- devices ---------------------------------------------------------------------------------


def test_pids_hold_devices_in_the_order_of_the_machine():
    mine, other = GpuProcess(pid=5, user="ada"), GpuProcess(pid=6, user="bob")
    held, strangers = devices_by_pid([gpu(1, mine), gpu(0, other, mine)])
    assert held == {6: ["GPU-0"], 5: ["GPU-0", "GPU-1"]}
    assert strangers == []


def test_a_pid_of_another_namespace_is_no_process_of_this_one():
    stranger = GpuProcess(pid=1, note="pid of another pid namespace")
    held, [one] = devices_by_pid([gpu(0, stranger), gpu(1, stranger)])
    assert held == {}
    assert (one.pid, one.gpus) == (1, ("GPU-0", "GPU-1"))
    assert one.reason == "pid of another pid namespace"


def test_a_pid_that_one_device_knows_is_no_stranger_on_another():
    known, unknown = GpuProcess(pid=5, user="ada"), GpuProcess(pid=5)
    assert devices_by_pid([gpu(0, known), gpu(1, unknown)]) == ({5: ["GPU-0"]}, [])


def test_a_process_that_ended_on_its_device_is_not_training():
    assert devices_by_pid([gpu(0, GpuProcess(pid=5, has_exited=True))]) == ({}, [])


# --- taking ----------------------------------------------------------------------------------


def test_a_process_on_a_device_is_found(sleeper):
    pid = sleeper().pid
    census = HostCensus().scan([gpu(0, GpuProcess(pid=pid, user="ada"))])
    [job] = [job for job in census.jobs if job.root_pid == pid]
    assert (job.launcher, job.ranks[0].devices) == ("python", ("GPU-0",))
    assert abs(job.started_at.timestamp() - Path(f"/proc/{pid}").stat().st_ctime) < 5
    assert set(census.facts) == {pid for job in census.jobs for pid in job.pids}


def test_own_jobs_are_left_out_and_others_are_not(sleeper):
    spec = make_spec("mine")
    put_job("mine")
    own = sleeper(DDPTOP_JOB_ID=spec.job_id)
    other = sleeper(DDPTOP_JOB_ID="mine@another")
    gpus = [gpu(0, *(GpuProcess(pid=one.pid, user="ada") for one in (own, other)))]
    pids = {job.root_pid for job in HostCensus().scan(gpus).jobs}
    assert other.pid in pids and own.pid not in pids


def test_parts_of_a_job_on_several_nodes_are_its_own(ddptop_home):
    put_job("mine")
    spec = make_spec("mine")
    placement = Placement(by="pipe", nodes=[], min_nodes=1)
    of_nodes = [f"{spec.job_id}.{number}" for number in range(2)]
    assert not any(is_own_job(job_id, os.geteuid()) for job_id in of_nodes)
    write_spec(run_folder("mine"), msgspec.structs.replace(spec, placement=placement))
    assert all(is_own_job(job_id, os.geteuid()) for job_id in of_nodes)
    assert not is_own_job("mine@another.0", os.geteuid())


def test_whose_job_an_id_names(ddptop_home):
    spec = make_spec("mine")
    put_job("mine")
    uid = os.geteuid()
    assert is_own_job(spec.job_id, uid)
    assert not is_own_job(spec.job_id, uid + 1)
    wrong = ["mine@x", "other@x", "", "@", "../x@y", ".@a", "x" * 300 + "@x"]
    assert not any(is_own_job(job_id, uid) for job_id in wrong)
    (ddptop_home / "runs" / "mine" / "job.json").write_text("damaged")
    assert is_own_job(spec.job_id, uid)  # better not shown than shown as another user's


# --- naming ----------------------------------------------------------------------------------


def test_names_prefixes_and_scripts():
    other = [torch_process(300, 1, "python trainer.py"), torch_process(301, 1, "python fit.py")]
    census = census_of(torchrun(100, 0, 1), other)
    assert resolve("train:100", census).root_pid == 100
    assert resolve("train", census).root_pid == 100  # the script's full name comes first
    assert resolve("traine", census).root_pid == 300
    assert resolve("f", census).root_pid == 301


def test_what_could_be_several_is_refused_with_their_names():
    census = census_of(torchrun(100, 0, 1), torchrun(200, 0, 1, port=1))
    with pytest.raises(UsageError, match="train:100, train:200"):
        resolve("train", census)


def test_a_living_process_that_is_no_training(sleeper):
    with pytest.raises(NoSuchJobError, match="is not recognized as training"):
        resolve(str(sleeper().pid), Census())


def test_of_a_hidden_process_the_reason_is_named():
    hidden = Unreadable(50, "ada", None, (), "owned by ada")
    with pytest.raises(NoSuchJobError) as caught:
        resolve("50", Census(unreadable=(hidden,)))
    assert caught.value.hint == "owned by ada"


def test_the_script_that_started_a_job_is_that_job(sleeper):
    """`nohup bash run.sh &` gives the user the PID of the shell."""
    one, other = (torch_process(sleeper().pid, 1, "python x.py") for _ in range(2))
    assert resolve(str(os.getpid()), census_of([one])).root_pid == one.pid
    with pytest.raises(UsageError, match=f"started several training runs: .*x:{other.pid}"):
        resolve(str(os.getpid()), census_of([one], [other]))


# --- again -----------------------------------------------------------------------------------


def test_a_job_is_found_again_after_restart_and_without_its_launcher():
    job = census_of(torchrun(100, 0, 1)).jobs[0]
    agent, *ranks = torchrun(100, 0, 1)
    restarted = [replace(one, pid=one.pid + 50, start_ticks=9999) for one in ranks]
    assert find_again(job, census_of([agent, *restarted])).pids == (100, 151, 152)
    orphans = [replace(one, ppid=1) for one in ranks]
    assert find_again(job, census_of(orphans)).root_pid == 101


def test_another_process_of_the_same_pid_is_another_job():
    job = census_of(torchrun(100, 0, 1)).jobs[0]
    others = [replace(one, start_ticks=one.start_ticks + 7) for one in torchrun(100, 0, 1)]
    assert find_again(job, census_of(others)) is None
    assert find_again(job, census_of([process(5, 1, "sleep")])) is None
