"""What the words of a command tell of how long it trains."""

from __future__ import annotations

import pytest

from ddptop_runner.reading.progress.from_text import Said, of_command


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("t.py --epochs 4", Said(epochs=4)),
        ("t.py --epochs=4 --lr 0.1", Said(epochs=4)),
        ("t.py --num-epochs 3.0", Said(epochs=3)),
        ("t.py trainer.max_epochs=10 data.path=/x", Said(epochs=10)),
        ("t.py --epochs 4 --epochs 4", Said(epochs=4)),
        ("t.py --epochs 4 +trainer.max_epochs=10", Said()),
        ("t.py --warmup-epochs 4 --epochs-per-save 2", Said()),
        ("t.py --epochs", Said()),
        ("t.py --epochs -1 --max_steps -1", Said()),
        ("t.py --epochs 4x", Said()),
        ("epochs 4", Said()),
        ("run.py --num_train_epochs 3", Said(epochs=3, run_bars=True)),
        ("train.py --max_iters=2000", Said(steps=2000)),
        ("t.py --epochs 4 --resume last.pt", Said(epochs=4, resumes=True)),
        ("t.py --epochs 4 --start-epoch 2", Said(epochs=4, resumes=True)),
        ("t.py --init_from=scratch", Said()),
        ("t.py --init_from=resume", Said(resumes=True)),
        ("", Said()),
    ],
)
def test_options(words: str, said: Said) -> None:
    assert of_command(words.split()) == said


def test_any_words() -> None:
    assert of_command(["--epochs", "9" * 5000, "=", "--=", "-"]) == Said()
    assert of_command(["--x=1"] * 100_000 + ["--epochs=4"]) == Said()
