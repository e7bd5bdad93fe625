"""Parses one clean line of training output: its losses, step, epoch, rank, and progress bar.

Every function takes one line as lowercase bytes, without control sequences, and is linear in its
length. Text and event files share one rule for which names mean a training or a validation
loss.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

TRAIN = frozenset({b"train", b"training", b"trn", b"tr"})
VALIDATION = frozenset(
    {b"val", b"valid", b"validation", b"eval", b"evaluation", b"test", b"testing", b"dev"}
)
NEUTRAL = frozenset(
    {b"", b"total", b"lm", b"avg", b"average", b"mean", b"batch", b"running", b"step", b"iter"}
    | {b"mini", b"minibatch", b"cur", b"curr", b"current", b"global", b"reduced"}
)
"""Words beside `loss` that do not make it a different loss."""
_OF_TAGS = frozenset({b"loss", b"inner", b"dataloader", b"idx", b"0", b"vs", b"iterations"})
"""Further ones, in the names of logged series only."""
_PARTS = re.compile(rb"[_/.\-]")
_TAG_PARTS = re.compile(rb"[_/.\-\s:|]+")
_FOLDER_PARTS = re.compile(rb"[^a-z]+")


class Name(NamedTuple):
    """What the name of a loss means."""

    weight: int
    """Lower is better: 0 for the step's own loss, 1 for a mean over the epoch."""
    validation: bool
    training: bool
    """Whether the name alone makes it a training loss."""
    has_train: bool
    """Whether it contains a word for training, even beside one for validation."""


@lru_cache(maxsize=1024)
def around_loss(before: bytes, after: bytes) -> Name | None:
    """Interpret a name, given what adjoins the word `loss`; None if it is not the loss.

    Args:
        before: such as `train/` or `val_`.
        after: such as `_step`; with a letter right after `loss`, it is a different word.
    """
    if after and after[:1] not in b"_/.-":
        return None  # lossless, losses
    parts = set(_PARTS.split(before + after))
    if parts - TRAIN - VALIDATION - NEUTRAL - {b"epoch"}:
        return None  # a component of the loss, or its scale
    return _name(parts)


@lru_cache(maxsize=1024)
def of_tag(tag: str) -> Name | None:
    """Interpret the name of a logged series, such as `Loss/train` or `train_loss_step`.

    None if it is neither a training nor a validation loss.
    """
    lower = tag.lower().encode("utf-8", "replace")
    parts = set(_TAG_PARTS.split(lower))
    if b"loss" not in parts:  # trainLoss
        parts = set(_TAG_PARTS.split(lower.replace(b"loss", b"/loss/", 1)))
        if b"loss" not in parts:
            return None
    if parts - TRAIN - VALIDATION - NEUTRAL - _OF_TAGS - {b"epoch"}:
        return None
    return _name(parts)


def is_validation_folder(folder: str) -> bool:
    """Whether the folder's own name says that it holds logs of a validation."""
    return not VALIDATION.isdisjoint(_FOLDER_PARTS.split(folder.lower().encode("utf-8", "replace")))


def _name(parts: set[bytes]) -> Name:
    validation = not VALIDATION.isdisjoint(parts)
    has_train = not TRAIN.isdisjoint(parts)
    return Name(1 if b"epoch" in parts else 0, validation, has_train and not validation, has_train)


# -- one line --------------------------------------------------------------------------------------

_NAME_CHARS = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_/.-")
_MAX_NAME = 48

_NUMBER = (
    rb"[-+]?(?:\d{1,3}(?:,\d{3}){1,6}\.\d+|\d+(?:\.\d*)?(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?"
    rb"|nan|inf(?:inity)?)"
)
_DIGITS = re.compile(rb"[-+]?\d+")
_COMMA = re.compile(rb",\d")
_VALUE = re.compile(
    rb"(?P<suffix>[\w/.\-]{0,32})[\"']?(?P<sep>\s{0,8}(?:[:=|]|->)\s{0,16}|\s+is\s+|\s{1,16})"
    rb"[\"'(\[]?(?:tensor\()?(?P<number>" + _NUMBER + rb")(?![\w%]|\.\d)"
)
_END_OF_WORD = re.compile(rb"\s*(?:$|[,;|\t)\]}])")

_BEFORE = re.compile(rb"([a-z]+)[ ]$")
_OF_ANOTHER_STEP = frozenset(
    {b"best", b"(best", b"lowest", b"min", b"minimum", b"previous", b"prev", b"old", b"target"}
)
_VAL_WORD = re.compile(
    rb"(?<![\w./-])(?:val|valid|validation|validating|eval|evaluation|evaluating|test|testing)"
    rb"(?![\w./-])"
)


class Loss(NamedTuple):
    """One loss in a line."""

    value: float
    validation: bool
    weight: int
    """Lower is better: 0 for the step's own, 1 for a mean over the epoch, 2 for an unknown name."""


def _named(line: bytes, at: int, suffix: bytes, validates_from: int) -> tuple[int, bool] | None:
    """(weight, is a validation's) of the name around `loss` at `at`; None if it is not the loss.

    `validates_from` is where the line's first word for validation ends.
    """
    start = at
    while start > 0 and line[start - 1] in _NAME_CHARS and at - start < _MAX_NAME:
        start -= 1
    name = around_loss(line[start:at], suffix)
    if name is None or _is_of_another_step(line, start):
        return None
    weight, validation = name.weight, name.validation
    if start == at and (before := _BEFORE.search(line, max(0, at - 24), at)) is not None:
        word = before[1]
        if word in VALIDATION:
            validation = True
        elif word not in TRAIN and word not in NEUTRAL:
            weight = 2
        if word in TRAIN:
            return weight, False
    elif name.has_train:
        return weight, False
    return weight, validation or validates_from <= start


def _is_of_another_step(line: bytes, start: int) -> bool:
    """Whether the two words before the name make it a record or a target."""
    return not _OF_ANOTHER_STEP.isdisjoint(line[max(0, start - 32) : start].split()[-2:])


def losses(line: bytes) -> list[Loss]:
    """At most one training loss and one validation loss, in this order."""
    best: dict[bool, Loss] = {}
    word = _VAL_WORD.search(line)
    validates_from = len(line) if word is None else word.end()
    at = line.find(b"loss")
    while at >= 0:
        found = _VALUE.match(line, at + 4)
        if found is not None and _is_value(line, found):
            named = _named(line, at, found["suffix"], validates_from)
            if named is not None:
                weight, validation = named
                known = best.get(validation)
                if known is None or weight < known.weight:
                    value = float(found["number"].replace(b",", b""))
                    best[validation] = Loss(value, validation, weight)
        at = line.find(b"loss", at + 4)
    return [best[key] for key in (False, True) if key in best]


def _is_value(line: bytes, found: re.Match[bytes]) -> bool:
    """Whether what follows is a value, not part of a sentence."""
    sep, number = found["sep"].strip(), found["number"]
    if _DIGITS.fullmatch(number) and _COMMA.match(line, found.end()):
        return False  # 0,52: a decimal comma, or the first of several numbers
    if sep in (b":", b"="):
        return True
    if number[-1:].isalpha():  # nan and inf, which may be part of a sentence
        return not sep and _END_OF_WORD.match(line, found.end()) is not None
    return any(char in b".e" for char in number)


_SCALAR = re.compile(
    rb"(?<![\w/.-])(?:(?P<lr>lr|learning[ _]rate)|(?P<norm>grad(?:ient)?[ _]?norm|gnorm))[\"']?"
    rb"\s{0,3}[:=|]?\s{0,3}[\"'(\[]?(?:tensor\()?(?P<value>" + _NUMBER + rb")(?![\w%]|\.\d)"
)


def scalars(line: bytes) -> tuple[tuple[str, float], ...]:
    """The first learning rate and gradient norm of a line, as (display name, value)."""
    if b"lr" not in line and b"learning" not in line and b"norm" not in line:
        return ()
    found: dict[str, float] = {}
    for match in _SCALAR.finditer(line):
        name = "learning rate" if match["lr"] else "gradient norm"
        found.setdefault(name, float(match["value"].replace(b",", b"")))
    return tuple(found.items())


ReadingKind = Literal["train", "val", "resume"]
StepUnit = Literal["run", "epoch", "samples", "epochs"]


class Reading(msgspec.Struct, frozen=True, gc=False):
    """What one line of output, or one redraw of a progress bar, says about training."""

    rank: int | None = None
    """From the line's own prefix, such as `[0]<stdout>:`; None without one."""
    local_rank: int | None = None
    """From a prefix with a local rank, such as torchrun's `[default0]:`."""
    step: int | None = None
    """As printed; see `counts`."""
    total: int | None = None
    """What `step` counts up to, in the whole run or in one epoch; see `counts`."""
    counts: StepUnit = "run"
    """What `step` counts: as far as the line shows, steps of the whole run; or steps of the epoch,
    samples of the epoch, or epochs."""
    loss: float | None = None
    """As printed, so it may be NaN or infinite; None if the line shows only progress."""
    epoch: float | None = None
    """As printed: the first is 0 or 1."""
    kind: ReadingKind = "train"
    """`resume`: the line names only the step at which the run resumes."""
    eta_s: float | None = None
    """Seconds until `total` is reached, as tqdm and rich estimate it."""
    epochs: int | None = None
    """After the slash of `epoch`: the number of epochs, or the number of the last epoch."""
    written_at_s: float | None = None
    """In Unix seconds; None if the output has no timestamp."""
    open: bool = False
    """Whether `counts` is a guess: `total` may be that of an epoch or of the run."""
    unnamed: bool = False
    """Whether no word says what is counted, so that it may be samples."""
    from_zero: bool = False
    """Whether the first epoch is 0 and `epochs` is the number of the last."""
    scalars: tuple[tuple[str, float], ...] = ()
    """Other named values, such as the learning rate."""


class Epoch(NamedTuple):
    """The epoch that a line belongs to."""

    number: float | None = None
    of: int | None = None
    """What follows its slash."""


_NO_EPOCH = Epoch()
_INT = rb"(\d{1,18})(?![\w]|\.\d)"
_OF = rb"(?:\s{0,8}(?:/|of)\s{0,8}" + _INT + rb")?"
_STEP = re.compile(
    rb"(?:global_step|num_updates|iteration|iter|steps?|it|batch|update)"
    rb"(?:\(train\))?[\"']?\s{0,4}[:=#]?\s{0,4}[\"'\[]?\s{0,12}" + _INT + _OF
)
_EPOCH = re.compile(
    rb"(?<![\w-])epoch(?:\(\w{1,8}\))?[\"']?\s{0,4}[:=#]?\s{0,4}[\"'\[]?\s{0,8}"
    rb"(\d{1,9}(?:\.\d{1,9})?)(?![\w.])(?:\s{0,2}(?:/|of)\s{0,2}(\d{1,9})(?![\w.]))?"
)
_EPOCH_ALONE = re.compile(
    rb"(?:\[\w{1,16}\] )?[\s=#*-]{0,80}(?:training )?epoch:?\s{1,4}"
    rb"\[?\d{1,9}(?:\s?(?:/|of)\s?\d{1,9})?\]?(?:[\s:.=#*-]*| \| .*)$"
)
_IN_EPOCH = re.compile(
    rb"epoch(?:\(\w{1,8}\))?:?\s{0,4}\[\s{0,8}(\d{1,9})\]\s{0,2}\[\s{0,12}(\d{1,18})/\s{0,12}"
    + _INT  # Epoch: [0][11/25], Epoch(train) [1][ 340/1563]
    + rb"|epoch\s{1,4}(\d{1,9}):\s{1,12}(\d{1,18})\s{0,4}/\s{0,4}"
    + _INT  # epoch 027:    267 / 1000
    + rb"|train:\s{0,4}(\d{1,9})\s{1,4}\[\s{0,12}(\d{1,18})/\s{0,12}(\d{1,18})\s"
    # Train: 0 [  50/625 (  8%)]
    + rb"|^\s{0,8}\[(\d{1,9}),\s{0,12}(\d{1,18})\]()"  # [1,  2000] loss: 2.173
)
"""Epoch, step, and, unless the last group is empty, total of the epoch."""
_SAMPLES = re.compile(  # Train Epoch: 1 [640/6400 (10%)]
    rb"train epoch:\s{0,4}(\d{1,9})\s{1,4}\[\s{0,12}(\d{1,18})/\s{0,12}(\d{1,18})\s"
)
_DEEPSPEED = re.compile(rb"(?:(?<![\w-])step=(\d{1,18}), skipped=|/global_step=(\d{1,18}),)")
_TABLE_EPOCH = re.compile(rb"^\s{0,12}(\d{1,9})/(\d{1,9})\s{1,12}[\d.]{1,8}g\s")  # Ultralytics


_NO_WORD_START = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")


_BRACKETS = re.compile(rb"\[\s{0,8}(\d{1,18})/\s{0,8}(\d{1,18})\]")  # [11/25]


def _find_step(line: bytes, begin: int = 0) -> re.Match[bytes] | None:
    found = _STEP.search(line, begin)
    while found is not None and found.start() and line[found.start() - 1] in _NO_WORD_START:
        found = _STEP.search(line, found.start() + 1)
    return found


def epoch(line: bytes) -> Epoch:
    """The epoch that the line names, if any."""
    found = _EPOCH.search(line) if b"epoch" in line else None
    if found is None and b"g " in line:
        found = _TABLE_EPOCH.match(line)
    if found is None:
        return _NO_EPOCH
    return Epoch(float(found[1]), int(found[2]) if found[2] else None)


def names_epoch_alone(line: bytes) -> bool:
    """Whether the line names only an epoch, like the one Keras prints above each bar."""
    return _EPOCH_ALONE.match(line) is not None


def progress(line: bytes) -> Reading:
    """Step, total, and epoch of a line with a loss that is not a progress bar."""
    counts: StepUnit = "epoch"
    may_match = b"epoch" in line or b"train" in line or line[:1] in b" ["
    found = _IN_EPOCH.search(line) if may_match else None
    if found is None and b"train epoch" in line and (found := _SAMPLES.search(line)) is not None:
        counts = "samples"
    if found is not None:
        number, step_, total_ = (group for group in found.groups() if group is not None)
        updates = _find_step(line) if b"num_updates" in line else None  # fairseq prints both
        if updates is not None:
            return Reading(step=int(updates[1]), epoch=float(number))
        of = int(total_) if total_ else None
        return Reading(step=int(step_), total=of, counts=counts, epoch=float(number))
    epoch_, epochs = epoch(line)
    found = _find_step(line)
    if found is None:
        if b"/" not in line or (found := _BRACKETS.search(line)) is None:
            return Reading(epoch=epoch_, epochs=epochs)
        return Reading(
            step=int(found[1]),
            total=int(found[2]),
            counts="run" if epoch_ is None else "epoch",
            epoch=epoch_,
            epochs=epochs,
            open=True,
            unnamed=True,
        )
    step, total = int(found[1]), int(found[2]) if found[2] else None
    counts, is_open = "run", False
    if total is not None and epoch_ is not None:
        further = _find_step(line, found.end())
        if further is None or int(further[1]) < step:
            counts, is_open = "epoch", True
        elif further[2] and int(further[2]) > total:  # the run's, beside the epoch's
            step, total = int(further[1]), int(further[2])
        else:
            counts = "epoch"
    return Reading(step=step, total=total, counts=counts, epoch=epoch_, epochs=epochs, open=is_open)


_RESUMES = re.compile(
    rb"(?<![\w-])(?:resum\w+|restor(?:ed|ing)|continuing|(?:loaded|loading) checkpoint)(?![\w-])"
    rb".{0,400}?(?<![a-z])(?:step|steps|iteration|iter|iter_num)[\s:=#_]{1,3}(\d{1,12})(?![\w]|\.\d)"
)


def resumed_at(line: bytes) -> int | None:
    """The step in a line such as `=> resuming from ck.pt (step 200, epoch 2)`."""
    if not any(word in line for word in (b"resum", b"restor", b"continuing", b"checkpoint")):
        return None
    found = _RESUMES.search(line)
    return int(found[1]) if found else None


def lone_step(line: bytes) -> int | None:
    """The step in a line of DeepSpeed's, which has no loss."""
    if b"step=" not in line or (found := _DEEPSPEED.search(line)) is None:
        return None
    return int(found[1] or found[2])


class Prefix(NamedTuple):
    """The prefix that a launcher adds to a line."""

    rank: int | None
    local_rank: int | None
    start: int
    """Where the line itself begins."""
    at: int
    """Where the prefix begins."""


_PREFIX = re.compile(
    rb"\[(?:\d{1,9},)?(?P<out>\d{1,9})\]<std(?:out|err)>:"  # horovodrun, mpirun -tag-output
    rb"|\[(?:default|trainer|worker)(?P<role>\d{1,9})\]:"  # torchrun --tee
    rb"|\[(?:global[ _])?rank[ :_]{0,2}(?P<word>\d{1,9})\]:?"  # torch's own messages, DeepSpeed
)
_RANK_WORD = re.compile(rb"(?<![\w-])(?:global[ _])?rank[ :=#_]{0,3}(\d{1,9})(?![\w.]|/)")
_BARE = re.compile(rb"\[(\d{1,6})\][ :]{1,2}(?=(?:step|steps|iter|iteration|it|epoch|batch)\b)")


def prefixes(line: bytes) -> list[Prefix]:
    """All prefixes in the line, which two ranks that write to one pipe can share."""
    found = []
    if b"]<std" in line or b"]:" in line or b"rank" in line:
        for match in _PREFIX.finditer(line):
            texts = match["out"] or match["word"], match["role"]
            rank, local = (int(text) if text else None for text in texts)
            found.append(Prefix(rank, local, match.end(), match.start()))
    if not found and line[:1] == b"[":
        found = [Prefix(int(m[1]), None, m.end(), m.start()) for m in _BARE.finditer(line)]
        if found and found[0].at != 0:
            return []
    return found


def rank_in_words(line: bytes) -> int | None:
    """The rank that the text names, as in `rank 3: step 10`."""
    if b"rank" not in line:
        return None
    found = _RANK_WORD.search(line)
    return int(found[1]) if found else None


# -- progress bars ---------------------------------------------------------------------------------

_TQDM = re.compile(rb"%\|[^|]{0,2000}\|\s{0,8}(\d{1,18})/(\d{1,18}) \[([^\]]{0,2000})(\])?")
_LEFT = re.compile(rb"(?:<|\xe2\x80\xa2 )(\d{1,5}(?::\d\d){1,2})(?!\w)")  # 00:24<01:10
_OF_EPOCHS = re.compile(rb"epochs?:?$")
_OF_STEPS = re.compile(rb"(?<![a-z])steps:?$")  # of the run, in Hugging Face's scripts
_EPOCH_RATE = re.compile(rb"epochs?/s|s/epoch")
_AFTER_GLYPHS = re.compile(rb"\s{1,4}(\d{1,18})/(\d{1,18})(?![\w./])")
_KERAS = re.compile(rb"\s{0,12}(\d{1,18})/(\d{1,18}) ")
_GLYPHS = (b"\xe2\x94\x81", b"\xe2\x95\xb8", b"\xe2\x95\xba")  # the parts of rich's bar
_PERCENT_END = re.compile(rb"\s{0,8}\d{0,3}$")
_TRAINING_BAR = re.compile(rb"epoch|train|iter|step|batch|(?<![a-z])it(?![a-z])")
_BAR_RATE = re.compile(rb"(?:it|batch|batches|step|steps)/s|s/(?:it|batch|step)")


class Bar(NamedTuple):
    """One redraw of a progress bar."""

    reading: Reading
    complete: bool
    """Whether it ended, so that what follows cannot change its values."""
    validation: bool
    training: bool
    """Whether it shows that it counts training, and not, say, files being loaded."""


def bar(line: bytes) -> Bar | None:
    """The progress bar of tqdm, rich, Keras, or Ultralytics in the line, if there is one."""
    percent = line.find(b"%|")
    if percent >= 0 and (found := _TQDM.match(line, percent)) is not None:
        before = _PERCENT_END.sub(b"", line[:percent])
        return _bar(before, found, found[4] is not None, found[3])
    glyph = max(line.rfind(part) for part in _GLYPHS) if b"\xe2" in line else -1
    if glyph >= 0 and (found := _AFTER_GLYPHS.match(line, glyph + 3)) is not None:
        before, rest = line[: line.find(b"\xe2")], line[found.end() : found.end() + 200]
        drawn = _bar(before, found, True, rest)
        is_lightnings = b"epoch" in before
        return drawn._replace(reading=replace(drawn.reading, from_zero=is_lightnings))
    if (b"/step" in line or b"] - eta: " in line) and (found := _KERAS.match(line)) is not None:
        reading = Reading(step=int(found[1]), total=int(found[2]), counts="epoch")
        return Bar(reading, True, False, True)
    return None


def _bar(before: bytes, found: re.Match[bytes], complete: bool, rest: bytes) -> Bar:
    of = epoch(before)
    described = before.strip()
    reading = Reading(step=int(found[1]), total=int(found[2]), epoch=of.number, epochs=of.of)
    if of.number is None and (_OF_EPOCHS.search(described) or _EPOCH_RATE.search(rest)):
        return Bar(replace(reading, counts="epochs"), complete, False, True)
    validation = _VAL_WORD.search(described) is not None or b"map50" in described
    training = _BAR_RATE.search(rest) is not None and (
        not described or of.number is not None or _TRAINING_BAR.search(described) is not None
    )
    if of.number is not None:
        reading = replace(reading, counts="epoch")
    elif _OF_STEPS.search(described) is None:
        reading = replace(reading, open=True)
    if (left := _LEFT.search(rest)) is not None:
        reading = replace(reading, eta_s=_seconds(left[1]))
    return Bar(reading, complete, validation, training)


def _seconds(clock: bytes) -> float:
    total = 0
    for part in clock.split(b":"):
        total = total * 60 + int(part)
    return float(total)
