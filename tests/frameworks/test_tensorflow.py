"""TensorFlow: one process, alone or with a MirroredStrategy over two logical CPUs."""

from __future__ import annotations

import pytest


@pytest.fixture
def python(tensorflow_python, needs):
    needs(tensorflow_python, "tensorflow")
    return tensorflow_python


@pytest.mark.parametrize("replicas", [1, 2])
def test_keras_fit(python, start, replicas):
    run = start("mirrored_train.py", "--env", f"REPLICAS={replicas}", "--", python)
    run.until_ranks_step(1)
    run.compare(1)
    assert run.rank(0)["replicas"] == (replicas if replicas > 1 else None)
    status = run.status()
    assert (status["progress"]["epochs"], status["progress"]["source"]) == (2, "trainer")
    assert 0 < status["progress"]["fraction"] < 0.5
    if replicas > 1:
        run.kill_rank_and_see_restart(0, 1)
        run.compare(1, attempt=1, figures=2)
    run.stop_leaves_nothing()
