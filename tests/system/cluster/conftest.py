"""Jobs on several machines: hosts in network namespaces, a real Slurm over them, and trainers.

`hosts`
    A `machines.Network` of three hosts, h1 to h3, for the session: `hosts.hosts["h1"].run("ls")`,
    `.cut()`, `.cut_from_head()`, `.die()`, `.start()`, `.kill("supervisor", job)`. Each test finds
    them whole.
`head`
    A `machines.Head` for the module: this machine, where `head.cli("launch", "--hosts", "h1,h2",
    ...)` reaches the hosts by ssh. Its jobs may serve several tests; what is left of them at the
    module's end fails it.
`slurm`
    A `slurm.Slurm` whose nodes are those hosts, for the session.
`trainer`
    A folder with `steps.py` (no torch) and `ddp.py` (torch), and `do(rank, word)`,
    `steps(attempt, rank)`.

A test that takes one of them is marked `slurm` or `cluster` by itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster.jobs import Job, launch
from tests.support.cluster.machines import Head, Network, running_network
from tests.support.cluster.slurm import Slurm, running_slurm
from tests.support.cluster.training import Trainer
from tests.support.real_jobs import wait_until

__all__ = ["wait_until"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "_slurm" in names:
            item.add_marker("slurm")
        elif "network" in names:
            item.add_marker("cluster")


@pytest.fixture(scope="session")
def network() -> Iterator[Network]:
    yield from running_network()


@pytest.fixture
def hosts(network: Network) -> Iterator[Network]:
    yield network
    network.restore()


@pytest.fixture(scope="session")
def _slurm(network: Network) -> Iterator[Slurm]:
    yield from running_slurm(network)


@pytest.fixture
def slurm(_slurm: Slurm, hosts: Network) -> Iterator[Slurm]:
    yield _slurm
    hosts.restore()
    _slurm.restore()


@pytest.fixture(scope="module")
def head(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    head = Head(network, network.folder / tmp_path_factory.mktemp("head").name)
    try:
        with pytest.MonkeyPatch.context() as patch:  # so that this process can read its jobs
            for name in ("PATH", "DDPTOP_HOME", "DDPTOP_TMUX_SOCKET", "XDG_CONFIG_HOME"):
                patch.setenv(name, head.environment[name])
            yield head
    finally:
        left = head.end() + network.end_processes()
        shutil.rmtree(head.folder, ignore_errors=True)
    if left:
        pytest.fail("processes outlived the tests:\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(tmp_path)


@pytest.fixture
def run(hosts: Network, head: Head, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """`run(*options)`: a job on h1 and h2 with a trainer of its own, stopped after the test."""
    started: list[Job] = []

    def start(*options: str, **more: Any) -> Job:
        folder = tmp_path / f"job-{len(started)}"
        folder.mkdir()
        job = launch(head, Trainer(folder), *options, **more)
        started.append(job)
        return job

    yield start
    hosts.restore()  # a machine that is gone may come back
    for job in started:
        job.stop()


@pytest.fixture
def submit(head, slurm, trainer, monkeypatch) -> Callable[..., tuple[Job, str]]:
    """`submit("--nodes", "2")`: the job and its Slurm ID."""
    for name, value in slurm.environment.items():
        monkeypatch.setitem(head.environment, name, value)

    def run(
        *options: str, sbatch: tuple[str, ...] = (), name: str = "job", script: str = "steps.py"
    ) -> tuple[Job, str]:
        output = f"--output={slurm.folder}/log/ddptop-%j.out"
        said = head.cli(
            *["launch", "--slurm", "--name", name, "--nproc", "1", "--gpus", "none", *options],
            *["--", output, *sbatch, str(trainer.folder / script), str(trainer.folder)],
        )
        assert said.returncode == 0, said.stderr
        assert said.stdout == f"{name}\n"
        number = said.stderr.split("submitted Slurm job ")[1].split(";")[0]
        return Job(head, name, trainer), number

    return run
