"""Reads the length of a training from the arguments of its command. Pure.

An output often counts one epoch only, and how many there are stands in the command alone. What is
computed with it is an estimate: a script may take the option for something else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_EPOCHS = frozenset(
    {"epochs", "num_epochs", "n_epochs", "nepochs", "num_epoch", "nb_epochs", "niter"}
    | {"max_epochs", "total_epochs"}
)
_RUN_BAR_EPOCHS = frozenset({"num_train_epochs"})
"""Of Hugging Face's scripts, whose bars count the whole run."""
_STEPS = frozenset(
    {"max_steps", "max_iters", "max_train_steps", "train_iters", "total_steps", "max_update"}
    | {"num_train_steps"}
)
_RESUMES = re.compile(r"resume|start_epoch|from_checkpoint|ckpt_path|init_from")
_OFF = frozenset({"", "0", "none", "false", "no", "null", "scratch"})
MAX_WORDS = 4096
MOST = 10**9


class Said(NamedTuple):
    """What a command says; None where it does not, or says two things."""

    epochs: int | None = None
    run_bars: bool = False
    """Whether a bar that does not say what it counts is the run's, as is usual beside this word."""
    steps: int | None = None
    """Of the whole run."""
    resumes: bool = False
    """Whether it may begin in the middle of the training."""


def of_command(words: Sequence[str]) -> Said:
    """What the options tell: `--epochs 4`, `--epochs=4`, `trainer.max_epochs=4`."""
    epochs: set[int] = set()
    steps: set[int] = set()
    run_bars = resumes = False
    known = list(words[:MAX_WORDS])
    for word, following in zip(known, [*known[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if not word.startswith("-") and not equals:
            continue
        if not equals:
            value = "" if following.startswith("--") else following
        name = name.lstrip("-+").rpartition(".")[2].replace("-", "_").lower()
        if name in _EPOCHS or name in _RUN_BAR_EPOCHS:
            epochs.add(_count(value))
            run_bars |= name in _RUN_BAR_EPOCHS
        elif name in _STEPS:
            steps.add(_count(value))
        elif _RESUMES.search(name) and (value.lower() not in _OFF or not equals):
            resumes = True
    return Said(_only(epochs), run_bars, _only(steps), resumes)


def _count(text: str) -> int:
    """A whole number of at least 1; 0 for anything else."""
    whole = text.removesuffix(".0")
    known = whole.isascii() and whole.isdigit() and len(whole) <= 10
    return min(int(whole), MOST) if known else 0


def _only(found: set[int]) -> int | None:
    return found.pop() or None if len(found) == 1 else None
