"""accelerate, with its own launcher and with ddptop's."""

from __future__ import annotations

import pytest

ON_CPU = ("--env", "ACCELERATE_USE_CPU=true")
"""Without a GPU, accelerate starts no process group unless this is set."""


@pytest.fixture
def python(torch_python, needs):
    needs(torch_python, "accelerate")
    return torch_python


def test_two_ranks_of_ddptop(python, start):
    run = start("accelerate_train.py", *ON_CPU, "--nproc", "2", "--python", python, steps=200)
    run.until_ranks_step(2)
    run.compare(2, loss_parts=2)
    assert run.wait() == 0
    assert [row["step"] for row in run.status()["ranks"]] == [200, 200]


def test_its_own_launcher(python, start, free_port):
    launcher = python.with_name("accelerate")
    run = start(
        "accelerate_train.py",
        *[*ON_CPU, "--", launcher, "launch", "--multi_gpu", "--num_processes", "2"],
        *["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"],
        *["--main_process_port", free_port],
    )
    run.until_ranks_step(2)
    run.compare(2, loss_parts=2)
    assert run.status()["launcher"]["name"] == "accelerate"
    run.kill_rank_and_see_restart(1, 2)
    run.compare(2, attempt=1, figures=2)
    run.stop_leaves_nothing()
