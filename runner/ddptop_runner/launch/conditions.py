"""Reads what a launch has to wait for besides devices: `--after`, `--after-any`, and `--at`."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddptop_runner.base.clock import LATEST_YEAR, utc_now
from ddptop_runner.base.errors import UsageError
from ddptop_runner.job.registry import resolve
from ddptop_runner.launch.gpus.choice import DeviceChoice
from ddptop_runner.launch.gpus.waiting import reason_in_words
from ddptop_runner.launch.request import LaunchRequest
from ddptop_runner.model.snapshot import WaitedFor, WaitReason
from ddptop_runner.model.spec import Predecessor, Waiting

AT_FORMS = "use HH:MM, as in --at 22:00, or a date and time, as in --at 2027-01-31T22:00"
_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Conditions:
    """What has to be true before a job starts."""

    after: tuple[Predecessor, ...] = ()
    not_before: dt.datetime | None = None

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.after or self.not_before)

    def queued(self, choice: DeviceChoice) -> DeviceChoice:
        """The choice of a job that also waits for them, and takes its devices only then."""
        queue = choice.queue or Waiting(since=utc_now())
        waits = [WaitReason(kind="time", until=self.not_before)] if self.not_before else []
        if self.after:
            jobs = [WaitedFor(job=one.job) for one in self.after]
            waits.append(WaitReason(kind="after", jobs=jobs))
        choice = choice.queued_as(queue, after=list(self.after), not_before=self.not_before)
        return replace(choice, notes=tuple(map(reason_in_words, waits)))


def conditions_of(request: LaunchRequest) -> Conditions:
    """What a request has to wait for.

    Raises:
        NoSuchJobError: a job of `--after` does not exist.
        UsageError: one did not finish, or the time cannot be read.
    """
    after = _predecessors("--after", request.after, any_end=False)
    after += _predecessors("--after-any", request.after_any, any_end=True)
    return Conditions(tuple(after), None if request.at is None else parse_at(request.at))


def _predecessors(option: str, names: Sequence[str], *, any_end: bool) -> list[Predecessor]:
    found = []
    for name in names:
        view = resolve(name)
        if not (view.is_live or any_end or view.state == "finished"):
            hint = f"restart it first, or use --after-any {view.job} to start nevertheless"
            raise UsageError(f"{option} {name}: {view.job} did not finish ({view.state})", hint)
        one = Predecessor(job=view.job, job_id=view.spec.job_id, any_end=any_end)
        found.append(one)
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
