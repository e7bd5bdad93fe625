"""Ranks that no variable identifies: workers of a script, connected processes, and single ones."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.support.foreign_trees import find, find_one, pid_by_rank, process, spawned, torch_process
from tests.support.tables import table

from ddptop_runner.foreign.types import ProcessFacts

GLOO = {"python", "gloo_tcp_loop", "pt_gloo_runloop"}
OWNER = {*GLOO, "pt_tcpstore_uv"}


def script(command: str = "python train.py", **values) -> ProcessFacts:
    return torch_process(10, 1, command, **values)


def tracker() -> ProcessFacts:
    code = "from multiprocessing.resource_tracker import main;main(4)"
    return process(11, 10, ("python", "-c", code), libraries=())


def rank(pid: int, **values) -> ProcessFacts:
    return spawned(pid, 10, **{"libraries": {"torch"}, "threads": GLOO, **values})


def test_ranks_in_the_order_of_their_start():
    ranks = [
        rank(14, start_ticks=141),
        rank(13, start_ticks=142),
        rank(12, start_ticks=140, threads=OWNER),
    ]
    job = find_one([script(), tracker(), *ranks])
    assert pid_by_rank(job) == {0: 12, 1: 14, 2: 13}
    assert (job.launcher, job.world_size, job.helper_pids) == ("mp.spawn", 3, (11,))
    assert [one.local_rank for one in job.ranks] == [0, 1, 2]


def test_a_process_of_another_user_joins_nobodys_job():
    intruder = rank(14, uid=1001)
    jobs = {job.uid: job for job in find([script(), rank(12), rank(13), intruder])[0]}
    assert jobs[1000].pids == (10, 12, 13) and jobs[1001].pids == (14,)


def test_what_another_user_runs_in_a_jobs_tree_is_not_the_jobs():
    daemon = process(9, 1, "slurmstepd: [7.0]", uid=0)
    below = process(15, 13, "sudo nvidia-smi -pm 1", uid=0)
    job = find_one([daemon, replace(script(), ppid=9), rank(12, threads=OWNER), rank(13), below])
    assert (job.uid, job.root_pid, set(job.pids)) == (1000, 10, {10, 12, 13})


def test_a_manager_is_no_rank_and_no_job():
    manager = rank(12, threads={"python"})
    job = find_one([script(), tracker(), manager, rank(13, threads=OWNER), rank(14)])
    assert pid_by_rank(job) == {0: 13, 1: 14}
    assert job.helper_pids == (11, 12)


def test_a_rank_that_is_not_at_work_yet_has_its_number_already():
    late = rank(14, threads={"python"})
    job = find_one([script(), rank(12, threads=OWNER), rank(13), late])
    assert pid_by_rank(job) == {0: 12, 1: 13, 2: 14}


def test_before_anyone_is_at_work_there_is_one_process():
    job = find_one([script(), tracker(), rank(12, threads={"python"})])
    assert (job.launcher, job.name, pid_by_rank(job)) == ("python", "train:10", {0: 10})
    assert job.ranks[0].helpers == (11, 12)


def test_workers_on_devices_are_ranks_without_threads_that_tell():
    ranks = [rank(12, threads={"python"}), rank(13, threads={"python"})]
    job = find_one([script(), *ranks], {12: ["GPU-a"], 13: ["GPU-b"]})
    assert (job.launcher, pid_by_rank(job)) == ("mp.spawn", {0: 12, 1: 13})
    assert [one.devices for one in job.ranks] == [("GPU-a",), ("GPU-b",)]


def test_workers_of_a_rank_with_a_device_are_its_data_loaders():
    workers = [rank(12, threads={"python"}), rank(13, comm="pt_data_worker")]
    job = find_one([script(), *workers], {10: ["GPU-a"]})
    assert (job.launcher, pid_by_rank(job)) == ("python", {0: 10})
    assert job.ranks[0].helpers == (12, 13)


def test_workers_of_one_that_trains_itself_are_its_helpers():
    job = find_one([script(threads=OWNER), rank(12), rank(13)])
    assert (job.launcher, pid_by_rank(job)) == ("python", {0: 10})
    assert job.ranks[0].helpers == (12, 13)


def test_forked_ranks():
    ranks = [
        torch_process(pid, 10, "python train.py", threads=threads)
        for pid, threads in ((12, OWNER), (13, GLOO))
    ]
    job = find_one([script(), *ranks])
    assert (job.launcher, pid_by_rank(job), job.world_size) == ("mp.spawn", {0: 12, 1: 13}, 2)


def test_two_scripts_are_two_jobs():
    first = [script(), rank(12, threads=OWNER), rank(13)]
    second = [
        replace(one, pid=one.pid + 100, ppid=one.ppid + 100 if one.ppid > 1 else 1) for one in first
    ]
    jobs, _ = find(first + second)
    assert sorted(job.name for job in jobs) == ["train:10", "train:110"]


# --- single processes ------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "stem"), table(__file__, "names"))
def test_the_name_of_a_single_process(command, stem):
    job = find_one([torch_process(40, 1, command)])
    assert (job.name, job.launcher, job.world_size) == (f"{stem}:40", "python", 1)


@pytest.mark.parametrize("command", table(__file__, "servers"))
def test_servers_are_no_training(command):
    assert find([process(40, 1, command, libraries=())]) == ([], [])


@pytest.mark.parametrize("command", table(__file__, "tools"))
def test_tools_that_load_a_framework_are_no_training(command):
    assert find([torch_process(40, 1, command)]) == ([], [])


def test_a_notebook_counts_once_it_holds_a_device():
    kernel = torch_process(40, 1, "python -m ipykernel_launcher -f k.json")
    job = find_one([kernel], {40: ["GPU-a"]})
    assert (job.name, job.ranks[0].devices) == ("notebook:40", ("GPU-a",))


def test_python_with_a_device_counts_without_a_framework():
    assert find_one([process(40, 1, "python x.py")], {40: ["GPU-a"]}).launcher == "python"


def test_another_program_with_a_device_is_no_training():
    assert find([process(40, 1, "/usr/lib/xorg/Xorg :0")], {40: ["GPU-a"]}) == ([], [])


@pytest.mark.parametrize(
    ("libraries", "launcher"),
    [({"torch"}, "DataParallel"), ({"tensorflow"}, "MirroredStrategy"), ({"jax"}, "python")],
)
def test_one_process_on_several_devices(libraries, launcher):
    held = {40: ["GPU-a", "GPU-b", "GPU-c"]}
    job = find_one([process(40, 1, "python x.py", libraries=libraries)], held)
    assert job.launcher == launcher and "3 devices" in job.notes[0]
    assert [one.devices for one in job.ranks] == [("GPU-a", "GPU-b", "GPU-c")]


def test_a_single_process_has_its_workers_and_its_wrapper():
    processes = [
        process(39, 1, "timeout 9h python train.py"),
        torch_process(40, 39, "python train.py"),
        torch_process(41, 40, "python train.py", comm="pt_data_worker"),
        process(42, 40, "nvcc x.cu"),
    ]
    job = find_one(processes, {40: ["GPU-a"]})
    assert (job.root_pid, job.launcher_pids) == (40, (39,))
    assert job.ranks[0].helpers == (41, 42)


def test_a_sweep_is_not_its_trainings():
    processes = [
        torch_process(40, 1, "python sweep.py"),
        torch_process(41, 40, "python train.py --lr 1"),
        torch_process(42, 40, "python train.py --lr 2"),
    ]
    jobs, _ = find(processes, {41: ["GPU-a"], 42: ["GPU-b"]})
    assert [job.name for job in jobs] == ["train:42", "train:41"]
    assert len(find(processes)[0]) == 1  # without devices, nothing distinguishes them


def test_zombies_and_the_dead_are_no_training():
    assert find([torch_process(40, 1, "python x.py", is_zombie=True)]) == ([], [])


def test_a_circle_of_parents_ends():
    """A PID may be reused by another process while /proc is read."""
    find([torch_process(40, 41, "python a.py"), torch_process(41, 40, "python b.py")])


# --- what may not be looked into -------------------------------------------------------------


def hidden(pid: int, command: str, **values) -> ProcessFacts:
    return process(pid, 1, command, **{"uid": 1001, "environ": None, **values})


def test_another_users_processes_on_a_device_are_named_with_reason_and_remedy():
    processes = [hidden(50, "python train.py", threads=GLOO), hidden(54, "./solver")]
    jobs, [other] = find(processes, {54: ["GPU-a"]})
    assert jobs == []
    assert (other.pid, other.user, other.command) == (54, "user1001", "./solver")
    assert other.gpus == ("GPU-a",)
    assert other.reason == "owned by user1001; run ddptop as user1001 or root to inspect it"
