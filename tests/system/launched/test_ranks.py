"""Trainings with several ranks, all started by the launched command."""

from __future__ import annotations

import shutil
import sys

import pytest
from tests.support.command_jobs import gone

from ddptop_runner.host import procs, tree

pytestmark = [pytest.mark.torch, pytest.mark.tmux, pytest.mark.slow]


def test_mp_spawn_with_data_loaders_scaled_and_accumulated(start):
    """Workers of either kind are not ranks, and count toward their rank."""
    job = start("--gpus", "none", "--", sys.executable, "spawn.py")
    seen: dict[int, set[int]] = {0: set(), 1: set()}
    everyone: set[int] = set()

    def compared() -> bool:
        for row in job.told(0, 1):
            note = job.note(f"spawn-{row['rank']}", row["loss_step"])
            assert row["loss"] == pytest.approx(note["loss"], rel=1e-5)
            assert (row["loss_parts"], row["loss_is"]) == (2, "mean")
            assert (row["loss_source"], row["rank_source"]) == ("probe", "probe")
            assert row["pid"] == note["pid"]
            [worker] = note["workers"]
            assert tree.descends_from(worker, row["pid"])
            assert row["rss_bytes"] > rss_of(row["pid"]) + rss_of(worker) / 2 > 0
            everyone.update((row["pid"], worker))
            seen[row["rank"]].add(row["loss_step"])
        return min(map(len, seen.values())) >= 3

    job.wait_until(compared, what="three losses of each rank")
    assert job.status()["world_size"] == 2
    assert "loss is the mean of 2 backward passes" in job.cli("status", job.name).stdout
    assert job.cli("stop", job.name).returncode == 0
    assert gone([*everyone])


def test_mpirun(start):
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    job = start(
        *["--gpus", "none", "--", "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"],
        *[sys.executable, "mpi.py"],
    )
    rows = job.told(0, 1)
    for row in rows:
        note = job.note(f"mpi-{row['rank']}", row["loss_step"])
        assert (row["loss"], row["pid"]) == (pytest.approx(note["loss"], rel=1e-5), note["pid"])
        assert (row["loss_source"], row["rank_source"]) == ("probe", "probe")
    status = job.status()
    assert (status["world_size"], status["launcher"]["name"]) == (2, "mpirun")
    assert job.cli("stop", job.name).returncode == 0
    assert gone([status["launcher"]["pid"], *(row["pid"] for row in rows)])
    ends = {(row["exit_code"], row["signal"]) for row in job.status()["ranks"]}
    assert ends <= {(None, "SIGTERM"), (None, None)}  # older kernels report it only to the parent


def rss_of(pid: int) -> int:
    """Resident bytes of one process."""
    fields = procs.stat_fields(pid)
    assert fields is not None
    return int(fields[21]) * 4096
