"""A job's log that only remembers what was emitted."""

from __future__ import annotations

from ddptop_runner.job.event_text import text
from ddptop_runner.model.events import JobEvent


class EmittedLog:
    def __init__(self) -> None:
        self.events: list[JobEvent] = []

    def emit(self, event: JobEvent) -> None:
        self.events.append(event)

    @property
    def texts(self) -> list[str]:
        return [text(event) for event in self.events]

    @property
    def lines(self) -> list[tuple[str, str]]:
        return [(event.type, text(event)) for event in self.events]
