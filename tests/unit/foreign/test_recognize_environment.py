"""Ranks identified by their variables, and processes that only inherited these."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.support.foreign_trees import (
    find,
    find_one,
    pid_by_rank,
    process,
    rank_environ,
    spawned,
    torch_process,
    torchrun,
)
from tests.support.tables import table


def test_each_agent_has_a_job_of_its_own():
    jobs, _ = find(torchrun(100, 0, 1, size=4) + torchrun(200, 2, 3, size=4))
    assert [pid_by_rank(job) for job in jobs] == [{2: 201, 3: 202}, {0: 101, 1: 102}]
    assert [job.world_size for job in jobs] == [4, 4]
    assert [rank.local_rank for rank in jobs[0].ranks] == [0, 1]


@pytest.mark.parametrize(
    "more",
    [{"port": 29501}, {"TORCHELASTIC_RUN_ID": "other"}, {"MASTER_ADDR": "10.0.0.9"}],
    ids=["port", "run id", "address"],
)
def test_orphans_of_different_addresses_are_two_jobs(more):
    both = [torchrun(100, 0, 1), torchrun(200, 0, 1, **more)]
    orphans = [replace(one, ppid=1) for _, *ranks in both for one in ranks]
    jobs, _ = find(orphans)
    assert [pid_by_rank(job) for job in jobs] == [{0: 201, 1: 202}, {0: 101, 1: 102}]


def test_nothing_below_a_rank_is_a_rank():
    environ = rank_environ(0)
    below = [
        spawned(150, 101, environ=environ, libraries={"torch"}),
        process(151, 101, "python -c from_multiprocessing.resource_tracker", environ=environ),
        process(152, 101, "/usr/bin/ninja -v", environ=environ),
        process(153, 152, "/bin/sh -c c++", environ=environ),
        process(154, 153, "/usr/lib/gcc/cc1plus -quiet", environ=environ),
        torch_process(155, 101, "python /t/_inductor/compile_worker/__main__.py", environ=environ),
        torch_process(156, 101, "python evaluate.py", environ=environ, threads={"pt_gloo_runloop"}),
    ]
    job = find_one([*torchrun(100, 0, 1), *below])
    assert pid_by_rank(job) == {0: 101, 1: 102}
    assert job.ranks[0].helpers == tuple(range(150, 157))


def test_a_rank_behind_shells_is_found():
    environ = rank_environ(0, 1)
    processes = [
        torch_process(100, 1, "python /venv/bin/torchrun --no-python bash run.sh"),
        process(101, 100, "bash run.sh", environ=environ),
        process(102, 101, "/bin/sh -c wrapped", environ=environ),
        torch_process(103, 102, "python train.py", environ=environ),
    ]
    job = find_one(processes)
    assert pid_by_rank(job) == {0: 103}
    assert job.launcher_pids == (100, 101, 102)


def test_a_rank_that_renamed_itself_is_known_by_its_file():
    processes = torchrun(100, 0, 1)
    processes[1] = replace(processes[1], argv=("step", "12"), comm="step", program="python3.11")
    processes[2] = replace(processes[2], argv=("step 12",), comm="step", libraries=frozenset())
    assert pid_by_rank(find_one(processes)) == {0: 101}


def test_the_agent_may_be_a_persons_own_program():
    processes = torchrun(100, 0, 1)
    processes[0] = replace(processes[0], argv=("python", "sweep.py"), comm="python")
    job = find_one(processes)
    assert (job.launcher, job.root_pid, job.notes) == ("torchrun", 100, ())


def test_wrappers_belong_to_the_launchers_and_are_not_the_root():
    agent, *ranks = torchrun(100, 0, 1)
    wrappers = [
        process(90, 89, "/usr/bin/time -v uv run torchrun train.py"),
        process(91, 90, "uv run torchrun train.py"),
    ]
    job = find_one([process(89, 1, "-bash"), *wrappers, replace(agent, ppid=91), *ranks])
    assert (job.root_pid, job.launcher_pids) == (100, (90, 91, 100))
    assert job.command == "torchrun train.py"


def test_ranks_without_agent_are_one_job():
    orphans = [replace(one, ppid=1) for one in torchrun(100, 0, 1)[1:]]
    job = find_one([process(1, 0, "/sbin/init", uid=0), *orphans])
    assert pid_by_rank(job) == {0: 101, 1: 102}
    assert (job.launcher, job.root_pid, job.launcher_pids) == ("torchrun", 101, ())
    assert "its launcher has exited" in job.notes[0]


def test_a_zombie_that_was_known_before_stays_a_rank():
    agent, first, second = torchrun(100, 0, 1)
    job = find_one([agent, first, replace(second, is_zombie=True)])
    assert pid_by_rank(job) == {0: 101, 1: 102}


@pytest.mark.parametrize(("command", "launcher", "name"), table(__file__, "launchers"))
def test_a_launcher_between_two_attempts_stays_a_job(command, launcher, name):
    processes = [process(99, 1, "uv run it"), torch_process(100, 99, command)]
    job = find_one(processes)
    assert (job.launcher, job.name, job.root_pid) == (launcher, name, 100)
    assert (job.ranks, job.launcher_pids) == ((), (99, 100))
    assert "no ranks yet" in job.notes[0]


def test_launcher_that_started_another_job_does_not_belong_to_this_one():
    agent, *ranks = torchrun(100, 0, 1)
    processes = [
        torch_process(90, 1, "python /venv/bin/accelerate launch outer.py"),
        process(91, 90, "bash inner.sh"),
        replace(agent, ppid=91),
        *ranks,
    ]
    assert find_one(processes).name == "train:100"


@pytest.mark.parametrize(
    "command", ["mpirun -np 8 ./solver", "srun --pty bash", "python /venv/bin/accelerate config"]
)
def test_launchers_of_something_else_are_no_training(command):
    assert find([process(100, 1, command)]) == ([], [])


def test_ranks_that_were_started_by_hand():
    environ = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    shell = process(50, 1, "bash run_all.sh")
    ranks = [
        torch_process(51 + rank, 50, "python train.py", environ={**environ, "RANK": str(rank)})
        for rank in range(2)
    ]
    job = find_one([shell, *ranks])
    assert pid_by_rank(job) == {0: 51, 1: 52}
    assert (job.launcher, job.launcher_pids, job.root_pid) == ("python", (), 51)
    assert job.rendezvous == "127.0.0.1:29500"


def test_variables_of_a_host_are_not_those_of_its_spawned_ranks():
    """A Kubernetes pod has the RANK and WORLD_SIZE of hosts in every process."""
    environ = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "pod-0",
        "MASTER_PORT": "23456",
    }
    ranks = [
        spawned(61 + index, 60, environ=environ, libraries={"torch"}, threads={"pt_nccl_watchdg"})
        for index in range(4)
    ]
    job = find_one([torch_process(60, 1, "python train.py", environ=environ), *ranks])
    assert pid_by_rank(job) == {0: 61, 1: 62, 2: 63, 3: 64}
    assert (job.launcher, job.world_size, job.rendezvous) == ("mp.spawn", None, "pod-0:23456")


def ddptop_job(guardian: int, **more: str) -> list:
    environ = {"DDPTOP_JOB_ID": "mine@abc", **more}
    python = "/venv/bin/python"
    return [
        process(guardian, 1, f"{python} -m ddptop_runner.node.guardian mine", environ=environ),
        process(
            guardian + 1, guardian, f"{python} -m ddptop_runner.node.supervisor", environ=environ
        ),
        torch_process(
            guardian + 2,
            guardian + 1,
            f"{python} /s/ddptop_runner/agent/__main__.py",
            environ=environ,
        ),
        *(
            torch_process(
                guardian + 3 + rank,
                guardian + 2,
                f"{python} -u train.py",
                environ=rank_environ(rank, **environ),
            )
            for rank in range(2)
        ),
    ]


def test_ddptops_own_jobs_are_left_out_with_all_below_them():
    stray = torch_process(700, 603, "python evaluate.py", environ={})
    jobs, unreadable = find([*ddptop_job(600), stray], {603: ["GPU-a"]}, range(600, 605))
    assert (jobs, unreadable) == ([], [])


def test_a_job_of_another_ddptop_is_shown_as_such():
    job = find_one(ddptop_job(600))
    assert (job.launcher, job.root_pid) == ("ddptop", 600)
    assert job.command == "python -u train.py"
    assert pid_by_rank(job) == {0: 603, 1: 604}
    assert job.launcher_pids == (600, 601, 602)
    assert job.notes == ("ddptop job mine in another state folder",)


def test_the_process_that_forks_the_ranks_of_another_ddptop_is_no_job_of_its_own():
    zygote = torch_process(650, 602, "python -u train.py", environ={"DDPTOP_JOB_ID": "mine@abc"})
    job = find_one([*ddptop_job(600), zygote])
    assert pid_by_rank(job) == {0: 603, 1: 604}


def test_a_part_of_a_job_on_several_machines_is_shown_as_such():
    job = find_one(ddptop_job(600, DDPTOP_JOB_ID="mine@abc.1"))
    assert job.notes == ("ddptop job mine on several machines: attach to it where it was launched",)


def test_when_it_was_started_and_what_is_printed():
    agent, *ranks = torchrun(100, 0, 1)
    argv = ("/venv/bin/python", "/venv/bin/torchrun", "a b.py", "\x1b[2J\nx", "\udcff")
    job = find_one([replace(agent, argv=argv), *ranks])
    assert job.started_at.timestamp() == pytest.approx(1_700_000_000 + 10.0)
    assert "\n" not in job.command and "\x1b" not in job.command
    assert job.command.startswith("torchrun 'a b.py'")
    assert job.command.encode()
    assert job.user == "user1000"
