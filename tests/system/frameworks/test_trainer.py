"""The Trainer of Hugging Face transformers."""

from __future__ import annotations

import pytest


@pytest.fixture
def python(torch_python, needs):
    needs(torch_python, "transformers")
    return torch_python


def test_two_ranks_of_ddptop(python, start):
    run = start("trainer_train.py", "--nproc", "2", "--python", python)
    run.until_ranks_step(2)
    run.compare(2, loss_parts=2)
    assert "transformers" in run.rank(0)["frameworks"]
    status = run.status()
    assert status["total_steps"] == 4000
    assert status["progress"]["source"] == "trainer"
    assert 0 < status["progress"]["fraction"] < 0.5
    assert status["eta_s"] > 60
    run.kill_rank_and_see_restart(1, 2)
    run.compare(2, attempt=1, figures=2)
    run.stop_leaves_nothing()


def test_one_process_that_is_a_command(python, start):
    run = start("trainer_train.py", "--", python, steps=200)
    run.until_ranks_step(1)
    run.compare(1, loss_parts=2)
    assert run.status()["total_steps"] == 200
    assert run.wait() == 0
    assert (run.rank(0)["step"], run.rank(0)["exit_code"]) == (200, 0)
    assert run.rank(0)["loss"] == pytest.approx(run.notes(0)[200]["loss"], rel=1e-4)
