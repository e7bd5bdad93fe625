"""Plain torch, started by each launcher that needs no framework."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

STUBS = Path(__file__).parents[2] / "unit" / "probe" / "stubs"


def launched(mode: str, python: Path, port: int) -> tuple[list[str], int]:
    """The words of the launch, and its number of ranks."""
    if mode == "torchrun":
        return ["--", str(python.with_name("torchrun")), "--standalone", "--nproc-per-node=2"], 2
    if mode == "mpirun":
        if shutil.which("mpirun") is None:
            pytest.skip("mpirun is not installed")
        words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
        address = ["-x", "MASTER_ADDR=127.0.0.1", "-x", f"MASTER_PORT={port}"]
        return ["--", *words, *address, str(python)], 2
    if mode == "apex":
        return ["--env", "MODE=apex", "--nproc", "2", "--python", str(python)], 2
    return ["--env", f"MODE={mode}", "--", str(python)], 2 if mode == "spawn" else 1


@pytest.mark.parametrize("mode", ["torchrun", "spawn", "mpirun", "apex", "parallel", "plain"])
def test_every_rank_is_joined_restarted_and_stopped(
    mode, torch_python, start, free_port, monkeypatch
):
    if mode == "apex":
        monkeypatch.setenv("PYTHONPATH", str(STUBS))
    words, world_size = launched(mode, torch_python, free_port)
    run = start("torch_train.py", *words)
    run.until_ranks_step(world_size)
    run.compare(world_size)
    status = run.status()
    assert (status["total_steps"], status["progress"]["source"]) == (4000, "log")
    if mode != "apex":
        names = {"spawn": "python", "parallel": "python", "plain": "python"}
        assert status["launcher"]["name"] == names.get(mode, mode)
    run.kill_rank_and_see_restart(world_size - 1, world_size)
    run.compare(world_size, attempt=1, figures=2)
    run.stop_leaves_nothing()
