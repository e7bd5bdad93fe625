"""Horovod with gloo, whose distributed optimizer runs the step's hooks twice."""

from __future__ import annotations

import pytest


@pytest.fixture
def python(horovod_python, needs):
    needs(horovod_python, "horovod")
    return horovod_python


def test_two_ranks_of_its_launcher(python, start):
    launcher = python.with_name("horovodrun")
    run = start("horovod_train.py", "--", launcher, "--gloo", "-np", "2", python)
    run.until_ranks_step(2)
    run.compare(2)
    assert run.status()["launcher"]["name"] == "horovod"
    run.kill_rank_and_see_restart(1, 2)
    run.compare(2, attempt=1, figures=2)
    run.stop_leaves_nothing()
