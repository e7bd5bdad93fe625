"""Ranks identified by the variables of Slurm, MPI, and Horovod."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.support.foreign_trees import (
    find,
    find_one,
    pid_by_rank,
    process,
    torch_process,
    torchrun,
)
from tests.support.tables import table

SLURM = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"}


def test_a_batch_script_is_no_rank():
    processes = [
        process(70, 1, ("slurmstepd: [7.batch]",), environ=None, uid=0),
        process(71, 70, "/bin/bash /var/spool/slurmd/job7/slurm_script", environ=SLURM),
        torch_process(72, 71, "python train.py", environ=SLURM),
    ]
    job = find_one(processes)
    assert (job.launcher, job.world_size, pid_by_rank(job)) == ("python", 1, {0: 72})
    assert job.launcher_pids == ()


def test_torchrun_in_a_batch_script_stays_torchrun():
    agent, *ranks = torchrun(100, 0, 1, **SLURM)
    processes = [
        process(70, 1, ("slurmstepd: [7.batch]",), environ=None, uid=0),
        process(71, 70, "/bin/bash /var/spool/slurmd/job7/slurm_script", environ=SLURM),
        replace(agent, ppid=71, environ=SLURM),
    ]
    job = find_one([*processes, *ranks])
    assert (job.launcher, job.root_pid, job.launcher_pids) == ("torchrun", 100, (100,))


def test_srun_may_start_torchrun():
    step = {**SLURM, "SLURM_STEP_ID": "0"}
    agent, *ranks = torchrun(100, 0, 1, **step)
    stepd = process(70, 1, ("slurmstepd: [7.0]",), environ=None, uid=0)
    job = find_one([stepd, replace(agent, ppid=70, environ=step), *ranks])
    assert (job.launcher, job.root_pid, job.launcher_pids) == ("torchrun", 100, (100,))
    assert pid_by_rank(job) == {0: 101, 1: 102}


@pytest.mark.parametrize(
    "task",
    [
        {**SLURM, "SLURM_STEP_ID": "0", "SLURM_PROCID": "1"},
        {"PMI_RANK": "1", "PMI_SIZE": "2"},
    ],
)
def test_ranks_below_a_task_of_their_host_have_numbers_of_their_own(task):
    environ = {**task, "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    processes = [process(50, 1, "bash run_all.sh", environ=task)]
    for rank in (2, 3):
        one = torch_process(
            50 + rank, 50, "python train.py", environ={**environ, "RANK": str(rank)}
        )
        processes.append(one)
    job = find_one(processes)
    assert pid_by_rank(job) == {2: 52, 3: 53} and job.world_size == 4


def test_two_mpiruns_are_told_apart_by_their_launchers():
    processes = []
    for root in (80, 90):
        processes.append(process(root, 1, "mpirun -np 2 python train.py"))
        for rank in range(2):
            environ = mpi_environ(rank)
            command = "python train.py"
            processes.append(torch_process(root + 1 + rank, root, command, environ=environ))
    jobs, _ = find(processes)
    assert [pid_by_rank(job) for job in jobs] == [{0: 91, 1: 92}, {0: 81, 1: 82}]
    assert [job.launcher_pids for job in jobs] == [(90,), (80,)]


def mpi_environ(rank: int, **more: str) -> dict[str, str]:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
        "PMIX_RANK": str(rank),
        **more,
    }


def test_mpirun_in_an_allocation_of_slurm():
    processes = [process(80, 1, "mpirun -np 2 python train.py", environ=SLURM)]
    for rank in range(2):
        environ = mpi_environ(rank, PMIX_NAMESPACE="5", **SLURM)
        processes.append(torch_process(81 + rank, 80, "python train.py", environ=environ))
    job = find_one(processes)
    assert (job.launcher, job.world_size, pid_by_rank(job)) == ("mpirun", 2, {0: 81, 1: 82})


@pytest.mark.parametrize("environ", table(__file__, "say_nothing"))
def test_variables_that_say_nothing(environ):
    """In that case, a single process."""
    job = find_one([torch_process(60, 1, "python train.py", environ=environ)])
    assert (job.launcher, job.world_size, pid_by_rank(job)) == ("python", 1, {0: 60})
