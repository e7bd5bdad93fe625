"""An event log that only stores what was emitted."""

from __future__ import annotations

from typing import Any

from ddptop_runner.base.clock import utc_now
from ddptop_runner.job.event_text import text
from ddptop_runner.job.state import JobState
from ddptop_runner.job.transition import apply
from ddptop_runner.model.events import JobEvent
from ddptop_runner.model.snapshot import SILENT


class EmittedLog:
    def __init__(self) -> None:
        self.all: list[JobEvent] = []
        self.state = JobState()

    def emit(self, event: JobEvent) -> None:
        self.all.append(event)
        self.state = apply(self.state, event, utc_now())

    def memory(self) -> dict[str, Any]:
        return {}

    @property
    def events(self) -> list[JobEvent]:
        """The events that have a sentence."""
        return [event for event in self.all if event.type != SILENT]

    @property
    def texts(self) -> list[str]:
        return [text(event) for event in self.events]

    @property
    def lines(self) -> list[tuple[str, str]]:
        return [(event.type, text(event)) for event in self.events]
