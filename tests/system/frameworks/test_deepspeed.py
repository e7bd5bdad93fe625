"""DeepSpeed's own launcher, with ZeRO stage 1. Its first run compiles for two minutes."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture
def python(torch_python, needs, monkeypatch):
    needs(torch_python, "deepspeed")
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed: DeepSpeed compiles a part of itself")
    # ninja, which came with deepspeed
    monkeypatch.setenv("PATH", str(torch_python.parent), prepend=":")
    compiled = torch_python.parents[1] / "extensions"
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(compiled))
    for lock in compiled.rglob("lock"):  # of a run that was ended; DeepSpeed would wait for good
        lock.unlink()
    return torch_python


def test_two_ranks_of_its_launcher(python, start, free_port):
    launcher = python.with_name("deepspeed")
    run = start(
        "deepspeed_train.py",
        *["--env", "DS_ACCELERATOR=cpu", "--", launcher, "--num_gpus", "2"],
        *["--master_port", free_port],
    )
    run.until_ranks_step(2)
    run.compare(2, loss_parts=2)
    assert run.status()["launcher"]["name"] == "deepspeed"
    run.kill_rank_and_see_restart(1, 2)
    run.compare(2, attempt=1, figures=2)
    run.stop_leaves_nothing()
