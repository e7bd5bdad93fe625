"""Lightning: its own processes, spawned ones, and ddptop's ranks."""

from __future__ import annotations

import pytest


@pytest.fixture
def python(torch_python, needs):
    needs(torch_python, "lightning")
    return torch_python


def test_two_ranks_of_ddptop(python, start):
    run = start("lightning_train.py", "--nproc", "2", "--python", python)
    run.until_ranks_step(2)
    run.compare(2, loss_parts=2)
    status = run.status()
    assert status["total_steps"] == 4000
    assert status["progress"]["source"] == "trainer"
    run.kill_rank_and_see_restart(1, 2)
    run.compare(2, attempt=1, figures=2)
    run.stop_leaves_nothing()


@pytest.mark.parametrize(("strategy", "bar"), [("ddp", "rich"), ("ddp_spawn", "tqdm")])
def test_processes_that_it_starts_itself(python, start, strategy, bar, needs):
    needs(python, bar)
    variables = ("--env", f"STRATEGY={strategy}", "--env", f"BAR={bar}")
    run = start("lightning_train.py", *variables, "--", python)
    run.until_ranks_step(2)
    run.compare(2, loss_parts=2)
    status = run.status()
    assert status["total_steps"] == 4000
    assert status["launcher"]["state"] == "running"
    run.kill_rank_and_see_restart(1, 2)
    run.compare(2, attempt=1, figures=2)
    run.stop_leaves_nothing()


def test_one_process_to_its_end(python, start):
    run = start("lightning_train.py", "--env", "DEVICES=1", "--", python, steps=80)
    run.until_ranks_step(1)
    run.compare(1, loss_parts=2)
    assert run.wait() == 0
    status = run.status()
    assert status["checkpoint"]["path"].endswith("last-step=80.ckpt")
    assert run.rank(0)["step"] == 80
