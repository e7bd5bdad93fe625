"""`ddptop replay`: a job at any time in its history."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

from ddptop.commands import watch
from ddptop.output import is_terminal
from ddptop_runner.base.errors import DdptopError, NoSuchJobError, UsageError
from ddptop_runner.job.registry import JobView, resolve

_TIME_OF_DAY = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?$")
_SINCE = re.compile(r"([+-])(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?$")
FORMS = "14:05, 14:05:30, 2026-03-14T14:05:30, +90m (after the start), or -10m (before the end)"


def moment(text: str, first: float, last: float) -> float:
    """Return the time that the user specified, in Unix seconds.

    A time of day refers to the last day of the history that includes it.

    Args:
        text: one of FORMS.
        first: start of the history, in unix seconds.
        last: end of the history.

    Raises:
        UsageError: it matches none of FORMS, or is outside the history.
    """
    found = _parsed(text.strip(), first, last)
    if found is None:
        raise UsageError(f"--at {text} is not a valid time", f"use {FORMS}")
    if not first - 1 <= found <= last + 1:
        begin, end = (_local(at).strftime("%Y-%m-%d %H:%M:%S") for at in (first, last))
        raise UsageError(
            f"--at {text} is outside the history", f"the history runs from {begin} to {end}"
        )
    return min(max(found, first), last)


def _parsed(text: str, first: float, last: float) -> float | None:
    if (since := _SINCE.match(text)) and any(since.groups()[1:]):
        days, hours, minutes, seconds = (float(part or 0) for part in since.groups()[1:])
        offset = days * 86400 + hours * 3600 + minutes * 60 + seconds
        return first + offset if since[1] == "+" else last - offset
    if of_day := _TIME_OF_DAY.match(text):
        hour, minute, second = (int(part or 0) for part in of_day.groups())
        if hour > 23 or minute > 59 or second > 59:
            return None
        wanted = _local(last).replace(hour=hour, minute=minute, second=second, microsecond=0)
        at = wanted.timestamp()
        return at - 86400 if at > last + 1 and at - 86400 >= first - 1 else at
    try:
        return dt.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return None


def _local(at: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(at, dt.timezone.utc).astimezone()


def span_of(view: JobView) -> tuple[float, float]:
    """Return when a job's history starts and ends, in Unix seconds.

    Raises:
        DdptopError: the job has no history, or it cannot be read.
    """
    from ddptop_runner.job.moment import MomentReader

    span = MomentReader(view.folder, view.spec).span()
    if span is None:
        raise DdptopError(
            f"{view.job} has no history", f"run ddptop logs {view.job} to show its output"
        )
    return span


def run(job: str, at: str | None, **screen: Any) -> int:
    """Show a job as it was, until the user quits.

    Raises:
        NoSuchJobError: there is no such job.
        UsageError: there is no terminal, or `at` is not in the job's history.
        DdptopError: the job has no history.
    """
    try:
        view = watch.find(job)
    except NoSuchJobError:
        view = resolve(job)  # its error names only ddptop's own jobs: no others can be replayed
    if not isinstance(view, JobView):
        raise DdptopError(
            f"{view.name} has no history: ddptop did not start it",
            f"run ddptop watch {view.name} to see it live",
        )
    span = span_of(view)
    moment_s = None if at is None else moment(at, *span)
    if not is_terminal():
        raise UsageError(
            "replay needs a terminal", f"use ddptop events {view.job} --json in scripts"
        )
    from ddptop.commands import attach
    from ddptop.tui.messages import ScreenWanted

    wanted = ScreenWanted("replay", view.job, moment_s)
    return attach.run(None, opening=wanted, **screen)
