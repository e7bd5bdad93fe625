"""Real launchers on this machine: every rank's PID, compared with the rank's own report."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.foreign_scripts import MPI, SINGLE, SPAWN, TORCHRUN

from ddptop_runner.foreign.census import HostCensus
from ddptop_runner.foreign.types import Census, ForeignJob
from ddptop_runner.host import procs, tree
from ddptop_runner.model.snapshot import GpuProcess, GpuSample

pytestmark = pytest.mark.torch

ALL_UP_WITHIN_S = 400.0


def free_port(taken: set[int] = set()) -> str:  # noqa: B006 - no port twice
    """A port below those that the kernel assigns to connections, which can be taken at any time."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            if port not in taken:
                taken.add(port)
                return str(port)


@dataclass
class Training:
    """A training, and what its ranks reported about themselves."""

    folder: Path
    ranks: int
    roots: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *command: str) -> None:
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("DDPTOP_", "CUDA_", "OMPI_", "PMIX_"))
        }
        environ |= {
            "OMP_NUM_THREADS": "1",
            "DDPTOP_TEST_OUT": str(self.folder),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        with (self.folder / "output").open("ab") as output:
            self.roots.append(
                subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )

    def told(self) -> dict[int, dict[str, object]]:
        return {int(one.stem): json.loads(one.read_text()) for one in self.folder.glob("*.json")}

    @property
    def pids(self) -> dict[int, int]:
        """PID by rank, as reported by the ranks."""
        return {int(str(one["rank"])): pid for pid, one in sorted(self.told().items())}

    @property
    def workers(self) -> dict[int, list[int]]:
        """PIDs of data loader workers by rank."""
        return {int(str(one["rank"])): list(one["workers"]) for one in self.told().values()}

    def wait(self, until_s: float) -> None:
        while len(self.told()) < self.ranks:
            ended = [one for one in self.roots if one.poll() is not None]
            if ended or time.monotonic() > until_s:
                output = (self.folder / "output").read_text(errors="replace")
                pytest.fail(f"{self.roots[0].args}: not up ({ended}):\n{output[-2000:]}")
            time.sleep(0.1)

    def end(self) -> None:
        pids = [pid for root in self.roots for pid in (root.pid, *tree.descendants_of(root.pid))]
        found = [procs.identify(pid) for pid in [*pids, *self.told()]]
        procs.signal_all(found, signal.SIGKILL)
        for root in self.roots:
            root.wait(10)
        deadline_s = time.monotonic() + 10
        while any(procs.is_alive(one) for one in found) and time.monotonic() < deadline_s:
            time.sleep(0.05)


TRAININGS = {
    "torchrun": (2, TORCHRUN),
    "mp.spawn": (2, SPAWN),
    "mp.fork": (2, SPAWN),
    "mpirun": (2, MPI),
    "single": (1, SINGLE),
}


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Training]]:
    """All of them at once: they mostly wait for torch to be loaded."""
    found: dict[str, Training] = {}
    for name, (ranks, script) in TRAININGS.items():
        if name == "mpirun" and shutil.which("mpirun") is None:
            continue
        folder = tmp_path_factory.mktemp(name.replace(" ", "-"))
        (folder / "train.py").write_text(script)
        found[name] = Training(folder, ranks)
    python, run = sys.executable, [sys.executable, "-m", "torch.distributed.run"]
    try:
        found["torchrun"].start(*run, "--standalone", "--nproc-per-node=2", "train.py", "fork")
        found["mp.spawn"].start(python, "train.py", "spawn", free_port(), "fork")
        found["mp.fork"].start(python, "train.py", "fork", free_port(), "spawn")
        if "mpirun" in found:
            mpirun = ["mpirun", "--oversubscribe", "-np", "2"]
            found["mpirun"].start(*mpirun, python, "train.py", free_port())
        found["single"].start("timeout", "600", python, "train.py", "fork")
        until_s = time.monotonic() + ALL_UP_WITHIN_S
        for training in found.values():
            training.wait(until_s)
        yield found
    finally:
        for training in found.values():
            with suppress(subprocess.TimeoutExpired):
                training.end()


@pytest.fixture(scope="module")
def census(trainings: dict[str, Training]) -> Census:
    taker = HostCensus()
    taker.scan()
    return taker.scan(gpus_of(trainings))


def gpus_of(trainings: dict[str, Training]) -> list[GpuSample]:
    """Two devices, both used by the single process, as with DataParallel."""
    [pid] = trainings["single"].pids.values()
    process = GpuProcess(pid=pid, user="someone")
    return [GpuSample(index=i, uuid=f"GPU-{i}", processes=[process]) for i in range(2)]


def job_of(census: Census, training: Training) -> ForeignJob:
    jobs = [job for job in census.jobs if set(training.pids.values()) & set(job.pids)]
    assert len(jobs) == 1, jobs
    return jobs[0]


def pid_by_rank(job: ForeignJob) -> dict[int, int]:
    return {rank.rank: rank.pid for rank in job.ranks}


def helpers_by_rank(job: ForeignJob) -> dict[int, list[int]]:
    return {rank.rank: list(rank.helpers) for rank in job.ranks}


def test_torchrun(trainings, census):
    training = trainings["torchrun"]
    job = job_of(census, training)
    root = training.roots[0].pid
    assert pid_by_rank(job) == training.pids
    assert (job.launcher, job.root_pid, job.name) == ("torchrun", root, f"train:{root}")
    assert (job.launcher_pids, job.world_size, job.notes) == ((root,), 2, ())
    assert job.rendezvous and job.rendezvous.startswith("localhost:")


def test_forked_data_loader_workers_are_no_ranks(trainings, census):
    training = trainings["torchrun"]
    assert helpers_by_rank(job_of(census, training)) == training.workers


@pytest.mark.parametrize("name", ["mp.spawn", "mp.fork"])
def test_ranks_without_any_variable(trainings, census, name):
    training = trainings[name]
    job = job_of(census, training)
    root = training.roots[0].pid
    assert pid_by_rank(job) == training.pids
    assert (job.launcher, job.root_pid, job.name) == ("mp.spawn", root, f"train:{root}")
    assert job.world_size == 2 and len(job.notes) == 1
    assert set(training.workers[1]) <= set(helpers_by_rank(job)[1])
    manager = set(tree.descendants_of(root)) - set(job.pids)
    assert manager == set()  # all of its child processes belong to it


def test_mpirun(trainings, census):
    if "mpirun" not in trainings:
        pytest.skip("mpirun is not installed")
    training = trainings["mpirun"]
    job = job_of(census, training)
    assert pid_by_rank(job) == training.pids
    assert (job.launcher, job.root_pid) == ("mpirun", training.roots[0].pid)
    assert (job.world_size, job.notes) == (2, ())


def test_one_process_on_two_devices(trainings, census):
    training = trainings["single"]
    job = job_of(census, training)
    [pid] = training.pids.values()
    assert (job.launcher, job.root_pid, job.world_size) == ("DataParallel", pid, 1)
    assert [(rank.pid, rank.devices) for rank in job.ranks] == [(pid, ("GPU-0", "GPU-1"))]
    assert list(job.ranks[0].helpers) == training.workers[0]
    assert job.launcher_pids == (training.roots[0].pid,)  # timeout


def test_ranks_outlive_their_launcher_as_one_job(trainings, wait_until):
    """Comes last, because it ends the launcher of the first training."""
    training = trainings["torchrun"]
    launcher = training.roots[0]
    launcher.kill()
    launcher.wait()
    job = job_of(HostCensus().scan(), training)
    assert pid_by_rank(job) == training.pids
    assert job.launcher == "torchrun" and "its launcher has exited" in job.notes[0]
    assert job.name == f"train:{training.pids[0]}"
