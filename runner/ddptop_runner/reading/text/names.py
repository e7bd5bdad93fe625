"""Which names mean the loss of the training, or of a validation: one rule for text, CSV and events.

Pure. Names are lowercase bytes where nothing else is said.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

TRAIN = frozenset({b"train", b"training", b"trn", b"tr"})
VALIDATION = frozenset(
    {b"val", b"valid", b"validation", b"eval", b"evaluation", b"test", b"testing", b"dev"}
)
NEUTRAL = frozenset(
    {b"", b"total", b"lm", b"avg", b"average", b"mean", b"batch", b"running", b"step", b"iter"}
    | {b"mini", b"minibatch", b"cur", b"curr", b"current", b"global", b"reduced"}
)
"""Words that may stand beside `loss` without making it another loss."""
_OF_TAGS = frozenset({b"loss", b"inner", b"dataloader", b"idx", b"0", b"vs", b"iterations"})
"""The same in the names of logged series only."""
_PARTS = re.compile(rb"[_/.\-]")
_TAG_PARTS = re.compile(rb"[_/.\-\s:|]+")
_FOLDER_PARTS = re.compile(rb"[^a-z]+")
MAX_TAG_CHARS = 96


class Name(NamedTuple):
    """What the name of a loss says."""

    weight: int
    """Less is better: 0 the step's own, 1 a mean over the epoch."""
    validation: bool
    training: bool
    """Whether it says by itself that it is the training's."""
    has_train: bool
    """Whether a word for a training is in it, be there one for a validation too."""
    counts_epochs: bool = False
    """Whether it is logged by the number of the epoch, as Keras does."""


@lru_cache(maxsize=1024)
def around_loss(before: bytes, after: bytes) -> Name | None:
    """What a name says, given what is glued to the word `loss` on both sides; None: not the loss.

    Args:
        before: such as `train/` or `val_`.
        after: such as `_step`; a letter right after the word makes it another word.
    """
    if after and after[:1] not in b"_/.-":
        return None  # lossless, losses
    parts = set(_PARTS.split(before + after))
    if parts - TRAIN - VALIDATION - NEUTRAL - {b"epoch"}:
        return None  # a part of the loss, or its scale
    return _name(parts)


@lru_cache(maxsize=1024)
def of_tag(tag: str) -> Name | None:
    """What the name of a logged series says, such as `Loss/train` or `train_loss_step`.

    None: it is not the loss of a training or of a validation.
    """
    if len(tag) > MAX_TAG_CHARS:
        return None
    lower = tag.lower().encode("utf-8", "replace")
    parts = set(_TAG_PARTS.split(lower))
    if b"loss" not in parts:  # trainLoss
        parts = set(_TAG_PARTS.split(lower.replace(b"loss", b"/loss/", 1)))
        if b"loss" not in parts:
            return None
    if parts - TRAIN - VALIDATION - NEUTRAL - _OF_TAGS - {b"epoch"}:
        return None
    return _name(parts)._replace(counts_epochs=lower.startswith(b"epoch_"))


def is_validation_folder(folder: str) -> bool:
    """Whether the folder's own name says that what is logged there is of a validation."""
    return not VALIDATION.isdisjoint(_FOLDER_PARTS.split(folder.lower().encode("utf-8", "replace")))


def _name(parts: set[bytes]) -> Name:
    validation = not VALIDATION.isdisjoint(parts)
    has_train = not TRAIN.isdisjoint(parts)
    return Name(1 if b"epoch" in parts else 0, validation, has_train and not validation, has_train)
