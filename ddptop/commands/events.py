"""`ddptop events`: a job's story, one event per line."""

from __future__ import annotations

from pathlib import PurePath

from ddptop.plain.output import put_folded, put_json
from ddptop.view.attempts import in_order
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.model.snapshot import Event
from ddptop_runner.store.history_reader import HistoryReader
from ddptop_runner.store.log_clean import sanitize

CONTINUED = 14
"""Indentation of continuation lines, which align with the text after the time."""


def run(folder: RunFolder, json_output: bool) -> int:
    """Print every event in order: as text in local time, or as one JSON object per line.

    Raises:
        DamagedFileError: the history cannot be read.
    """
    events = HistoryReader(folder.history_db).events()
    if json_output:
        for event in events:
            put_json(event)
    else:
        for line in story(in_order(events)):
            put_folded(line, CONTINUED)
    return 0


def story(events: list[Event]) -> list[str]:
    """Return one line per event, and a line with the date whenever the day changes."""
    lines = []
    day = None
    for event in events:
        local = event.ts.astimezone()
        if local.date() != day:
            day = local.date()
            lines.append(f"{day:%a %Y-%m-%d}")
        attempt = "" if event.attempt is None else f"attempt {event.attempt}"
        rank = "" if event.rank is None else f"rank {event.rank}"
        # an event may quote output of the job, which can contain anything
        message = " ".join(sanitize(event.message).split())
        evidence = f"  (see evidence/{PurePath(event.evidence).name})" if event.evidence else ""
        lines.append(f"  {local:%H:%M:%S}  {attempt:10}  {rank:7}  {message}{evidence}".rstrip())
    return lines
