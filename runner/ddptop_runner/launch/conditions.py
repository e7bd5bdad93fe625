"""Reads what a launch has to wait for besides devices: `--after`, `--after-any`, and `--at`."""

from __future__ import annotations

import datetime as dt
import itertools
import re
from collections.abc import Sequence
from dataclasses import replace

from ddptop_runner.base.clock import LATEST_YEAR, utc_now
from ddptop_runner.base.errors import UsageError
from ddptop_runner.job.registry import group_of, resolve
from ddptop_runner.launch.gpus.choice import DeviceChoice
from ddptop_runner.launch.gpus.waiting import reason_in_words
from ddptop_runner.launch.request import LaunchRequest
from ddptop_runner.model.snapshot import WaitedFor, WaitReason
from ddptop_runner.model.spec import Predecessor

AT_FORMS = "use HH:MM, as in --at 22:00, or a date and time, as in --at 2027-01-31T22:00"
_DAY = dt.timedelta(days=1)


def with_conditions(choice: DeviceChoice, request: LaunchRequest) -> DeviceChoice:
    """The choice of a job that also waits for these; the same if the request has none.

    Such a job takes its devices only then.

    Raises:
        NoSuchJobError: a job of `--after` does not exist.
        UsageError: one did not finish, or the time cannot be read.
    """
    after = _predecessors("--after", request.after, any_end=False)
    after += _predecessors("--after-any", request.after_any, any_end=True)
    until = None if request.at is None else parse_at(request.at)
    waits = [] if until is None else [WaitReason(kind="time", until=until)]
    if after:
        waits.append(WaitReason(kind="after", jobs=[WaitedFor(job=one.job) for one in after]))
    if not waits:
        return choice
    choice = choice.queued(after=after, not_before=until)
    return replace(choice, notes=tuple(map(reason_in_words, waits)))


def _predecessors(option: str, names: Sequence[str], *, any_end: bool) -> list[Predecessor]:
    found = []
    for view in itertools.chain.from_iterable(group_of(name) or [resolve(name)] for name in names):
        if not (view.is_live or any_end or view.state == "finished"):
            hint = f"restart it first, or use --after-any {view.job} to start nevertheless"
            raise UsageError(f"{option}: {view.job} did not finish ({view.state})", hint)
        found.append(Predecessor(job=view.job, job_id=view.spec.job_id, any_end=any_end))
    return found


def parse_at(text: str, now: dt.datetime | None = None) -> dt.datetime:
    """The next local time `22:00`, or a date and time, which is local without an offset.

    Args:
        text: as typed.
        now: the current time; None for the clock's.

    Raises:
        UsageError: it is in no such form, or has passed.
    """
    now, value = now or utc_now(), text.strip()
    try:
        if re.fullmatch(r"[0-9]{1,2}:[0-9]{2}", value):
            hour, minute = map(int, value.split(":"))
            today = dt.datetime.combine(now.astimezone().date(), dt.time(hour, minute))
            moment = today.astimezone()
            return moment if moment > now else (today + _DAY).astimezone()
        moment = dt.datetime.fromisoformat(value.replace("Z", "+00:00")).astimezone()
    except (ValueError, OverflowError):
        raise UsageError(f"--at {text[:40]}: not a time of day", AT_FORMS) from None
    if not now < moment or moment.year > LATEST_YEAR:
        raise UsageError(f"--at {text} is not a time between now and {LATEST_YEAR}", AT_FORMS)
    return moment
