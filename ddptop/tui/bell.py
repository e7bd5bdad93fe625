"""Rings the terminal's bell, and sends it a notification (OSC 9), for news of the jobs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ddptop.export.incidents import Kind, Notice, first_line, reported_as, restart_kind
from ddptop_runner.store.log_clean import sanitized_line

if TYPE_CHECKING:
    from ddptop.export.settings import NotifyTable
    from ddptop.job.record import Job

MOST_CHARS = 200
ENDS: dict[str, Kind] = {"failed": "failed", "finished": "finished", "lost": "lost"}


class Bell:
    """Knows what has happened to the jobs; the first look at them is no news."""

    def __init__(self, table: NotifyTable) -> None:
        self._table = table
        self._known: set[tuple[object, ...]] | None = None

    def rings(self, jobs: Iterable[Job]) -> list[str]:
        """What to write to the terminal for what is new."""
        found = {(job.job_id, *key): (job, one) for job in jobs for key, one in _news(job)}
        before, self._known = self._known, (self._known or set()) | found.keys()
        if before is None or not self._table.bell:
            return []
        new = [one for key, one in found.items() if key not in before]
        return [_escapes(*one) for one in new if one[1].kind not in self._table.off]


def _news(job: Job) -> Iterable[tuple[tuple[object, ...], Notice]]:
    """What has happened to a job, each with what distinguishes it."""
    snapshot, at = job.snapshot, job.read_at
    kind = "preempted" if job.in_slurm_queue else ENDS.get(job.state)
    if kind is not None:
        text = "" if snapshot.cause is None else first_line(snapshot.cause)
        yield (kind, snapshot.attempt, job.ended_at), Notice(kind=kind, at=at, text=text)
    if (cause := snapshot.previous_cause) is not None and job.is_live:
        notice = Notice(kind=restart_kind(cause), at=at, text=first_line(cause))
        yield ("restart", snapshot.attempt), notice
    for alert in snapshot.alerts if job.is_live else ():
        reported = reported_as(alert)
        if reported is not None and at - alert.since >= reported[1]:
            notice = Notice(kind=reported[0], at=at, text=alert.message)
            yield (alert.id, alert.since), notice


def _escapes(job: Job, notice: Notice) -> str:
    from ddptop.export import message

    text = f"{message.title(job, [notice])}{': ' * bool(notice.text)}{notice.text}"
    osc = f"\x1b]9;{sanitized_line(text)[:MOST_CHARS]}\x07"
    if os.environ.get("TMUX"):  # passed on where allow-passthrough is on
        osc = "\x1bPtmux;" + osc.replace("\x1b", "\x1b\x1b") + "\x1b\\"
    return f"\x07{osc}"
