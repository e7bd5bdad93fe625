"""Parses the progress bars of tqdm, rich, Keras, and Ultralytics, times left, and rates.

Every function takes one line as lowercase bytes, without control sequences, and is linear in its
length.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from msgspec.structs import replace

from ddptop_runner.reading.text.fields import Epoch, Reading, StepUnit, epoch, says_validation

_TQDM = re.compile(rb"%\|[^|]{0,2000}\|\s{0,8}(\d{1,18})/(\d{1,18}) \[([^\]]{0,2000})(\])?")
_ENDLESS = re.compile(  # of unknown length: 188it [00:47, ...], |   | 188/? [00:47<?, ...]
    rb"(?<![\w.])(\d{1,18})(?:it|/\?) \[\d{1,5}:\d\d(?::\d\d)?([^\]]{0,2000})(\])?"
)
_EMPTY_BAR = re.compile(rb"\|[^|]{0,200}\|\s{0,8}$")
_OF_EPOCHS = re.compile(rb"epochs?:?$")
_OF_STEPS = re.compile(rb"(?<![a-z])steps:?$")  # of the run, in Hugging Face's scripts
_EPOCH_RATE = re.compile(rb"epochs?/s|s/epoch")
_AFTER_GLYPHS = re.compile(rb"\s{1,4}(\d{1,18})/(\d{1,18})(?![\w./])")
_KERAS = re.compile(rb"\s{0,12}(\d{1,18})/(\d{1,18}) ")
_GLYPHS = (b"\xe2\x94\x81", b"\xe2\x95\xb8", b"\xe2\x95\xba")  # the parts of rich's bar
_PERCENT_END = re.compile(rb"\s{0,8}\d{0,3}$")
_TRAINING_BAR = re.compile(rb"epoch|train|iter|step|batch|(?<![a-z])it(?![a-z])")
_STEP_UNIT = rb"(?:it|its|iter|iters|step|steps|batch|batches)"
_BAR_RATE = re.compile(rb"(?:it|batch|batches|step|steps)/s|s/(?:it|batch|step)")

_NUMBER = rb"(\d{1,9}(?:\.\d{1,9})?)"
_CLOCK = rb"(\d{1,5}(?::\d\d){1,2})"
_RATE = re.compile(
    rb"(?<![\w.])"
    + _NUMBER
    + rb"(?:([kmg]?)"
    + _STEP_UNIT
    + rb"/s|(ms|us|s)/"
    + _STEP_UNIT
    + rb")\b"
)
_ANY_RATE = re.compile(rb", {1,8}" + _NUMBER + rb"([kmg]?)[a-z]{1,12}/s\b")
_LEFT = re.compile(
    rb"<" + _CLOCK  # tqdm: 00:24<01:10
    + rb"|\xe2\x80\xa2 " + _CLOCK  # rich: 0:00:07 - 0:00:01, with a bullet
    + rb"|<(\d{1,9}(?:\.\d{1,9})?)s(?!\w)"  # Ultralytics: 1.6s<0.9s
    + rb"|(?<![\w<:.])(?:(\d{1,9})s|" + _CLOCK + rb") (?:- )?\d{1,9}(?:ms|us|s)/step"  # Keras 3
    + rb"|- eta: (?:(\d{1,9})s|" + _CLOCK + rb")(?!\w)"  # Keras 2
)  # fmt: skip
_ETA = re.compile(rb"(?<![\w-])eta[:=]\s{0,4}((?:\d{1,4} days?, )?" + _CLOCK + rb")(?![\w:])")
_STEP_TIME = re.compile(
    rb"elapsed time per iteration \((ms)\): " + _NUMBER  # Megatron
    + rb"|, time " + _NUMBER + rb"(ms),"  # nanoGPT
    + rb"|(?<![\w-])time: " + _NUMBER + rb",? {1,4}data_time:"  # mmengine, detectron2
)  # fmt: skip
_UPDATES_PER_S = re.compile(rb"(?<![\w-])ups[\"=:]{1,2} ?\"?" + _NUMBER + rb"[\",]")  # fairseq
_SCALE = {b"": 1.0, b"k": 1e3, b"m": 1e6, b"g": 1e9}
_PER_S = {b"s": 1.0, b"ms": 1e3, b"us": 1e6}


class Bar(NamedTuple):
    """One redraw of a progress bar."""

    reading: Reading
    complete: bool
    """Whether it ended, so that what follows cannot change its values."""
    validation: bool
    training: bool
    """Whether it shows that it counts training, and not, say, files being loaded."""


def seconds(clock: bytes) -> float:
    """Seconds in `1:09`, `1:02:03`, or `1 day, 2:03:04`."""
    days, has_days, clock = clock.rpartition(b", ")
    total = 0
    for part in clock.split(b":"):
        total = total * 60 + int(part)
    return total + (86400.0 * int(days[: days.index(b" ")]) if has_days else 0.0)


def bar(line: bytes) -> Bar | None:
    """The progress bar in the line, if there is one."""
    percent = line.find(b"%|")
    if percent >= 0 and (found := _TQDM.match(line, percent)) is not None:
        before = _PERCENT_END.sub(b"", line[:percent])
        return _bar(before, found, found[4] is not None, found[3])
    if (b"it [" in line or b"/? [" in line) and (found := _ENDLESS.search(line)) is not None:
        before = _EMPTY_BAR.sub(b"", line[: found.start()])
        return _endless(before, int(found[1]), found[3] is not None, found[2])
    glyph = max(line.rfind(part) for part in _GLYPHS) if b"\xe2" in line else -1
    if glyph >= 0 and (found := _AFTER_GLYPHS.match(line, glyph + 3)) is not None:
        rest = line[found.end() : found.end() + 200]
        drawn = _bar(line[: line.find(b"\xe2")], found, True, rest)
        if b"epoch" in line[: line.find(b"\xe2")]:  # Lightning's, drawn by rich
            drawn = drawn._replace(reading=replace(drawn.reading, from_zero=True))
        return drawn
    if b"/step" in line or b"] - eta: " in line:
        found = _KERAS.match(line)
        if found is not None:
            reading = Reading(step=int(found[1]), total=int(found[2]), counts="epoch")
            return Bar(_timed(reading, line[:400]), True, False, True)
    return None


def _bar(before: bytes, found: re.Match[bytes], complete: bool, rest: bytes) -> Bar:
    of = epoch(before)
    described = before.strip()
    reading = Reading(step=int(found[1]), total=int(found[2]), epoch=of.number, epochs=of.of)
    if of.number is None and (_OF_EPOCHS.search(described) or _EPOCH_RATE.search(rest)):
        return Bar(replace(reading, counts="epochs"), complete, False, True)
    validation, training = _kinds(described, of, rest)
    if of.number is not None:
        reading = replace(reading, counts="epoch")
    elif _OF_STEPS.search(described) is None:
        reading = replace(reading, open=True)
    return Bar(_timed(reading, rest), complete, validation, training)


def _endless(before: bytes, step: int, complete: bool, rest: bytes) -> Bar:
    of = epoch(before)
    validation, training = _kinds(before.strip(), of, rest)
    counts: StepUnit = "run" if of.number is None else "epoch"
    reading = Reading(step=step, counts=counts, epoch=of.number, epochs=of.of)
    return Bar(_timed(reading, rest), complete, validation, training)


def _kinds(described: bytes, of: Epoch, rest: bytes) -> tuple[bool, bool]:
    """(counts a validation, counts training), as far as it shows."""
    validation = says_validation(described) or b"map50" in described
    training = _BAR_RATE.search(rest) is not None and (
        not described or of.number is not None or _TRAINING_BAR.search(described) is not None
    )
    return validation, training


def _timed(reading: Reading, rest: bytes) -> Reading:
    """Add the times that follow a bar's count to its reading."""
    left = _LEFT.search(rest)
    eta_s = None
    if left is not None:
        text = next(filter(None, left.groups()))
        eta_s = seconds(text) if b":" in text else float(text)
    return replace(reading, eta_s=eta_s, rate_per_s=_rate(rest, _ANY_RATE))


def _rate(text: bytes, other: re.Pattern[bytes] | None = None) -> float | None:
    found = _RATE.search(text)
    if found is None:
        found = other.search(text) if other is not None else None
        return _or_none(float(found[1]) * _SCALE[found[2]]) if found is not None else None
    if found[3] is not None:
        return _inverse(float(found[1]), _PER_S[found[3]])
    return _or_none(float(found[1]) * _SCALE[found[2]])


def _or_none(rate: float) -> float | None:
    """None for 0, which is shown until the rate is known."""
    return rate if rate > 0 else None


def _inverse(time_of_step: float, per_s: float) -> float | None:
    return per_s / time_of_step if time_of_step > 0 else None


def with_timing(reading: Reading, line: bytes) -> Reading:
    """Add the times on a line that is not a bar to its reading."""
    eta_s = run_eta_s = rate = None
    if b"eta" in line and (found := _ETA.search(line)) is not None:
        eta_s = seconds(found[1])
        if b"data_time" in line:  # mmengine and detectron2: of the whole run
            eta_s, run_eta_s = None, eta_s
    if b"time" in line and (found := _STEP_TIME.search(line)) is not None:
        if found[5] is not None:
            rate = _inverse(float(found[5]), 1.0)
        else:
            rate = _inverse(float(found[2] or found[3]), 1e3)
    elif b"ups" in line and (found := _UPDATES_PER_S.search(line)) is not None:
        rate = _or_none(float(found[1]))
    elif b"/s" in line or b"s/" in line:
        rate = _rate(line)
    if eta_s is None and run_eta_s is None and rate is None:
        return reading
    return replace(reading, eta_s=eta_s, rate_per_s=rate, run_eta_s=run_eta_s)
