"""What the words of a command reveal about the length of the training."""

from __future__ import annotations

import pytest

from ddptop_runner.reading.progress.from_text import CommandHints, of_command


@pytest.mark.parametrize(
    ("words", "hints"),
    [
        ("t.py --epochs 4", CommandHints(epochs=4)),
        ("t.py --epochs=4 --lr 0.1", CommandHints(epochs=4)),
        ("t.py --num-epochs 3.0", CommandHints(epochs=3)),
        ("t.py trainer.max_epochs=10 data.path=/x", CommandHints(epochs=10)),
        ("t.py --epochs 4 --epochs 4", CommandHints(epochs=4)),
        ("t.py --epochs 4 +trainer.max_epochs=10", CommandHints()),
        ("t.py --warmup-epochs 4 --epochs-per-save 2", CommandHints()),
        ("t.py --epochs", CommandHints()),
        ("t.py --epochs -1 --max_steps -1", CommandHints()),
        ("t.py --epochs 4x", CommandHints()),
        ("epochs 4", CommandHints()),
        ("run.py --num_train_epochs 3", CommandHints()),
        ("train.py --max_iters=2000", CommandHints(steps=2000)),
        ("t.py --epochs 4 --resume last.pt", CommandHints(epochs=4, resumes=True)),
        ("t.py --epochs 4 --start-epoch 2", CommandHints(epochs=4, resumes=True)),
        ("t.py --init_from=scratch", CommandHints()),
        ("t.py --init_from=resume", CommandHints(resumes=True)),
        ("", CommandHints()),
    ],
)
def test_options(words: str, hints: CommandHints) -> None:
    assert of_command(words.split()) == hints


def test_any_words() -> None:
    assert of_command(["--epochs", "9" * 5000, "=", "--=", "-"]) == CommandHints()
    assert of_command(["--x=1"] * 100_000 + ["--epochs=4"]) == CommandHints()
