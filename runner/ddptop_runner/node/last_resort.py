"""Keeps a bug in ddptop from ending a job: reports it once and lets the rest continue."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

from ddptop_runner.job.event_log import EventLog
from ddptop_runner.model import events as ev

T = TypeVar("T")


class LastResort:
    """Catches errors that should never be raised.

    Args:
        log: receives each defect once.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._reported: set[str] = set()

    def report(self, error: Exception) -> None:
        """Write the traceback to the supervisor's log and raise an alert, once per location."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "nowhere"
        if place in self._reported:
            return
        self._reported.add(place)
        traceback.print_exception(error, file=sys.stderr)
        self._log.emit(ev.InternalError(error=type(error).__name__, place=place))

    def call(self, look: Callable[[], T], otherwise: T) -> T:
        """The result of `look`, or `otherwise` if it raises."""
        try:
            return look()
        except Exception as error:
            self.report(error)
            return otherwise
