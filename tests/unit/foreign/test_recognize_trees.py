"""Trees of real launchers, and of documented ones that could not be run: exact ranks."""

from __future__ import annotations

import random

import pytest
from tests.support.foreign_trees import (
    TREES,
    find,
    find_one,
    pid_by_rank,
    process,
    read_tree,
    torch_process,
)

EXPECTED = {
    "accelerate": ("accelerate", "acc:2977", 2, (2977,)),
    "accelerate_cpu": ("accelerate", "acc:3124", 1, (3124,)),
    "data_parallel": ("DataParallel", "train:7101", 1, ()),
    "deepspeed": ("deepspeed", "s:3345", 2, (3345, 3353)),
    "horovod": ("horovod", "mnist:5200", 2, (5200, 5202, 5204, 5203, 5207)),
    "imagenet": ("mp.spawn", "main:8100", 2, (8100,)),
    "mirrored": ("MirroredStrategy", "train:7001", 1, ()),
    "mpirun": ("mpirun", "mpi:3481", 2, (3481,)),
    "srun": ("srun", "train:6101", 4, (6102,)),
}


def test_every_tree_is_expected_to_be_something():
    assert {file.stem for file in TREES.glob("*.json")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_tree_is_one_job(name):
    launcher, title, world_size, launchers = EXPECTED[name]
    tree = read_tree(name)
    shuffled = random.Random(7).sample(tree.processes, len(tree.processes))
    job = find_one(shuffled, tree.devices)
    assert pid_by_rank(job) == tree.ranks
    assert (job.launcher, job.name, job.world_size) == (launcher, title, world_size)
    assert job.launcher_pids == launchers
    # Slurm's daemon belongs to root, and so not to anyone's job
    assert set(job.pids) == {one.pid for one in tree.processes if one.uid == job.uid == 1000}
    assert all(rank.devices == tuple(tree.devices.get(rank.pid, ())) for rank in job.ranks)


@pytest.mark.parametrize("name", EXPECTED)
def test_tree_is_found_among_all_others(name):
    """One machine may run everything at once, along with daemons and shells."""
    others = [read_tree(other) for other in EXPECTED]
    processes = [one for tree in others for one in tree.processes]
    processes += [
        process(1, 0, "/sbin/init", uid=0),
        process(900, 1, "/usr/bin/python3 /usr/bin/networkd-dispatcher", uid=0, environ=None),
        process(901, 1, "-bash"),
        process(902, 901, "python3 -m http.server"),
    ]
    devices = {pid: uuids for tree in others for pid, uuids in tree.devices.items()}
    jobs, unreadable = find(processes, devices)
    assert unreadable == []
    assert len(jobs) == len(EXPECTED)
    assert read_tree(name).ranks in [pid_by_rank(job) for job in jobs]


def test_the_ranks_of_lightning_are_one_process_and_its_helpers():
    """Its first rank is the script, and has no variables; the others have no RANK."""
    environ = {"NODE_RANK": "0", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    script = torch_process(10, 1, "python lit.py", threads={"pt_gloo_runloop"})
    other = torch_process(
        11, 10, "python /home/ada/lit.py", environ=environ, threads={"pt_gloo_runloop"}
    )
    job = find_one([script, other], {10: ["GPU-a"], 11: ["GPU-b"]})
    assert (job.launcher, pid_by_rank(job), job.ranks[0].helpers) == ("python", {0: 10}, (11,))
