"""Times: wall clock for people, CLOCK_BOOTTIME for durations.

CLOCK_BOOTTIME continues while the machine is suspended and is the same in all processes of one
boot, so timestamps from the probe, the agent, and the supervisor can be compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TypeVar

T = TypeVar("T")


def boottime_s() -> float:
    """Seconds since boot, including time spent suspended."""
    clock_id = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock_id is None else time.clock_gettime(clock_id)


def poll(found: Callable[[], T], timeout_s: float, every_s: float) -> T:
    """The first true result of `found`; after `timeout_s`, its last one."""
    deadline_s = time.monotonic() + timeout_s
    while not (result := found()) and time.monotonic() < deadline_s:
        time.sleep(every_s)
    return result


def utc_now() -> datetime:
    """The current time, as an aware datetime in UTC."""
    return datetime.now(timezone.utc)


def utc_from_unix(unix_s: float) -> datetime:
    """An aware datetime in UTC, from seconds since 1970."""
    return datetime.fromtimestamp(unix_s, timezone.utc)


EARLIEST_YEAR, LATEST_YEAR = 1970, 2200
LATEST_UNIX_S = int(datetime(LATEST_YEAR, 1, 1, tzinfo=timezone.utc).timestamp())


def is_time(moment: datetime | None) -> bool:
    """Whether a time that was read can be used in calculations; an unknown one cannot."""
    return moment is None or EARLIEST_YEAR <= moment.year <= LATEST_YEAR


def utc_from_boottime(stamp_s: float) -> datetime:
    """The wall-clock time of a CLOCK_BOOTTIME timestamp from this boot."""
    return utc_from_unix(time.time() - (boottime_s() - stamp_s))
