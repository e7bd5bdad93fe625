"""Trees of real launchers, and of documented ones that could not be run: exact ranks."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace
from tests.foreign.builders import TREES, find, find_one, pid_by_rank, process, read_tree

EXPECTED = {
    "accelerate": ("accelerate", "acc:2977", 2, (2977,)),
    "accelerate_cpu": ("accelerate", "acc:3124", 1, (3124,)),
    "data_parallel": ("DataParallel", "train:7101", 1, ()),
    "deepspeed": ("deepspeed", "s:3345", 2, (3345, 3353)),
    "horovod": ("horovod", "mnist:5200", 2, (5200, 5202, 5204, 5203, 5207)),
    "imagenet": ("mp.spawn", "main:8100", 2, (8100, 8200)),
    "lightning": ("lightning", "lit:3206", 2, ()),
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


def test_lightnings_first_rank_is_known_by_its_port():
    tree = read_tree("lightning")
    ranks = find_one(tree.processes).ranks
    assert [rank.evidence for rank in ranks] == ["sockets", "environment"]
    assert [rank.helpers for rank in ranks] == [(3252,), (3251,)]


def test_lightning_on_its_second_host():
    tree = read_tree("lightning")
    processes = [
        replace(one, environ={**one.environ, "NODE_RANK": "1", "WORLD_SIZE": "4"})
        if one.environ
        else one
        for one in tree.processes
    ]
    job = find_one(processes)
    assert pid_by_rank(job) == {2: 3206, 3: 3234}
    assert [rank.local_rank for rank in job.ranks] == [0, 1] and job.world_size == 4


def test_a_spawned_worker_of_lightnings_first_rank_is_none():
    tree = read_tree("lightning")
    environ = {**tree.processes[1].environ, "LOCAL_RANK": "0"}
    worker = replace(tree.processes[1], pid=3299, ppid=3206, start_ticks=1303980, environ=environ)
    job = find_one([*tree.processes, worker])
    assert pid_by_rank(job) == tree.ranks
    assert 3299 in job.ranks[0].helpers


def test_lightning_without_its_first_rank():
    tree = read_tree("lightning")
    job = find_one([replace(one, ppid=1) for one in tree.processes if one.pid == 3234])
    assert pid_by_rank(job) == {1: 3234}
    assert "its first rank" in job.notes[0]


def test_accelerate_with_one_process_is_noted():
    assert "single process" in find_one(read_tree("accelerate_cpu").processes).notes[0]


def test_accelerate_is_known_after_its_end():
    processes = [one for one in read_tree("accelerate").processes if one.pid != 2977]
    job = find_one([replace(one, ppid=1) for one in processes])
    assert job.launcher == "accelerate" and "its launcher has exited" in job.notes[0]


def test_imagenet_on_two_machines_counts_the_hosts_before_it():
    tree = read_tree("imagenet")
    second = [one for one in tree.processes if one.pid >= 8200]
    job = find_one(second)
    assert pid_by_rank(job) == {1: 8203} and job.world_size == 2
