"""TensorFlow without a probe: Keras prints its progress, alone or with a MirroredStrategy."""

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
    row, progress = run.rank(0), run.status()["progress"]
    assert (row["loss_source"], row["step_source"]) == ("log", "log") and row["loss"] > 0
    assert (progress["epochs"], progress["source"]) == (2, "log")
    assert 0 < progress["fraction"] < 0.5
    run.stop_leaves_nothing()
