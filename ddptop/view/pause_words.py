"""A job that takes no step, in words: the same on every screen and in every verb. Pure."""

from __future__ import annotations

import datetime as dt

from ddptop_runner.base.units import duration_in_words
from ddptop_runner.model.snapshot import Pause

_LONG = {"no_step": "no step for", "stalled": "stalled for", "hung": "hung for"}
_SHORT = {"no_step": "no step", "stalled": "stalled", "hung": "hung"}


def _for(pause: Pause, now: dt.datetime) -> str:
    return duration_in_words((now - pause.since).total_seconds())


def in_words(pause: Pause, now: dt.datetime) -> str:
    """`no step for 25 s`."""
    return f"{_LONG[pause.state]} {_for(pause, now)}"


def short(pause: Pause, now: dt.datetime) -> str:
    """`no step 25 s`, for a narrow column."""
    return f"{_SHORT[pause.state]} {_for(pause, now)}"


def sentence(pause: Pause, now: dt.datetime) -> str:
    """`no step for 25 s: rank 0 is saving a checkpoint`."""
    why = "" if pause.reason is None else f": {pause.reason}"
    return f"{in_words(pause, now)}{why}"
