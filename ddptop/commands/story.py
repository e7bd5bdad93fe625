"""`ddptop story`, `events`, and `stacks`: what happened in a job, and where its ranks are."""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Sequence
from pathlib import PurePath

from ddptop.commands.unguarded import adopt_if_unguarded
from ddptop.draw.story import LABEL_CELLS, headline, last_output, notes, opening, origin, sentence
from ddptop.job.attempts import Attempt, Ending, in_order
from ddptop.job.record import Job, own_job
from ddptop.job.status import loss_remark
from ddptop.output import info, put, put_folded, put_json
from ddptop.sources.evidence import folders, stacks_of
from ddptop.sources.history import JobHistory
from ddptop.sources.past import Story, read_story
from ddptop.style import plain
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.base.units import local_time
from ddptop_runner.job.registry import read_job
from ddptop_runner.jobs.slurm_queue import find
from ddptop_runner.model.snapshot import SCHEMA, Cause, Event
from ddptop_runner.model.words import Base, JobState
from ddptop_runner.store.history_reader import HistoryReader
from ddptop_runner.store.log_clean import sanitized_line

TAIL_LINES = 15
"""Lines shown of the log of the rank that failed."""
INDENT = 2


def run_story(job: str | None, as_json: bool) -> int:
    """Print the story as text or JSON; the first attempt comes first."""
    view = own_job(adopt_if_unguarded(find(job)))
    history = JobHistory(view.folder.history_db)
    story = read_story(view, history)
    failed = next((one.number for one in story.attempts if one.ending == "failed"), None)
    if failed is not None:
        story = read_story(view, history, failed)
    if story.trouble is not None:
        info(f"ddptop: {story.trouble}")
    status = 1 if story.trouble is not None and not story.attempts else 0
    if as_json:
        put_json(story_report(view, story.attempts))
        return status
    if status:
        return status
    put_folded(f"{view.name}: {headline(story.attempts, view.state, loss_remark(view))}", INDENT)
    for label, text in origin(view.spec):
        put_folded(f"  {label:{LABEL_CELLS}}{text}", INDENT + LABEL_CELLS)
    for line in describe(view, story, view.read_at):
        put_folded(line, INDENT + LABEL_CELLS)
    return status


def describe(view: Job, story: Story, now: dt.datetime) -> list[str]:
    """The attempts as text, the first one first."""
    lines = []
    for one in reversed(story.attempts):
        began = "" if one.started_at is None else f"   {local_time(one.started_at)}"
        lines += ["", f"attempt {one.number}{began}   {plain(opening(one, view.state, now))}"]
        # an event may quote output of the job, which can contain anything
        parts = [("", sanitized_line(sentence(one)))]
        is_last = one is story.attempts[0]
        parts += [
            (f"{label:{LABEL_CELLS}}", sanitized_line(text))
            for label, text, _ in notes(one, view.state, is_last=is_last, job=view.name)
        ]
        if one.cause is not None and one.cause.evidence:
            parts.append((f"{'evidence':{LABEL_CELLS}}", one.cause.evidence))
        lines += [f"{'':{INDENT}}{label}{text}" for label, text in parts if text]
        if story.tail is not None and story.tail.attempt == one.number:
            title, texts = last_output(story.tail, TAIL_LINES)
            lines += [f"{'':{INDENT}}{text}" for text in (title, *(f"│ {one}" for one in texts))]
    return lines


CONTINUED = 14
"""Indentation of continuation lines, which align with the text after the time."""


def run_events(folder: RunFolder, json_output: bool, *, follow: bool = False) -> int:
    """Print every event in order: as text in local time, or as one JSON object per line.

    Args:
        folder: the job's run folder.
        json_output: print JSON.
        follow: go on until the job has ended.

    Raises:
        DamagedFileError: the history cannot be read.
    """
    reader, last = HistoryReader(folder.history_db), None
    while True:
        is_live = follow and read_job(folder).is_live
        events = reader.events(after_seq=0 if last is None else last.seq)
        if json_output:
            for event in events:
                put_json(event)
        else:
            for line in story(in_order(events), last):
                put_folded(line, CONTINUED)
        if not is_live:
            return 0
        last = events[-1] if events else last
        sys.stdout.flush()
        time.sleep(FOLLOW_S)


FOLLOW_S = 1.0


def story(events: list[Event], last: Event | None = None) -> list[str]:
    """Return one line per event, and a line with the date whenever the day changes.

    Args:
        events: the events.
        last: the one printed before them.
    """
    lines = []
    day = None if last is None else last.ts.astimezone().date()
    for event in events:
        local = event.ts.astimezone()
        if local.date() != day:
            day = local.date()
            lines.append(f"{day:%a %Y-%m-%d}")
        attempt = "" if event.attempt is None else f"attempt {event.attempt}"
        rank = "" if event.rank is None else f"rank {event.rank}"
        # an event may quote output of the job, which can contain anything
        message = sanitized_line(event.message)
        evidence = f"  (see evidence/{PurePath(event.evidence).name})" if event.evidence else ""
        lines.append(f"  {local:%H:%M:%S}  {attempt:10}  {rank:7}  {message}{evidence}".rstrip())
    return lines


def run_stacks(job: str | None, rank: int | None) -> int:
    """Print stacks of a live job, or the stored evidence of one without processes."""
    view = own_job(adopt_if_unguarded(find(job)))
    found = stacks_of(view, rank)
    if view.in_slurm_queue or not view.is_live:
        now = "is waiting in Slurm's queue" if view.in_slurm_queue else f"has ended ({view.state})"
        info(f"ddptop: {view.name} {now}; saved stacks from {folders(view)[0]}")
    for name, about, text in found:
        put(f"--- {name}{f' ({about})' if about else ''} ---")
        put(text.rstrip())
    return 0


# --- JSON: every key is always present; null means unknown ---


class AttemptRow(Base, frozen=True, kw_only=True):
    """One attempt of a job."""

    attempt: int
    """From 0."""
    started_at: dt.datetime | None
    ended_at: dt.datetime | None
    """Null while it is live, or if unknown."""
    ran_s: float | None
    """How long it has run, or ran."""
    ending: Ending
    """How it ended. `lives`: it has not; `again`: a user restarted all ranks; `lost`: its processes
    exited without an exit status; `unknown`: another attempt followed for an unknown reason."""
    steps: int | None
    """Steps taken in it."""
    cause: Cause | None
    """Why it failed; null if it did not."""
    aftermath: list[str]
    """What ddptop did about its end, or found wrong with it until then, one sentence each."""


class StoryReport(Base, frozen=True, kw_only=True):
    """What `story --json` prints."""

    schema: int = SCHEMA
    job: str
    state: JobState
    attempts: list[AttemptRow]
    """The first attempt comes first."""


def story_report(view: Job, attempts: Sequence[Attempt]) -> StoryReport:
    """Convert a job's attempts, latest first, to what `story --json` prints."""
    rows = [
        AttemptRow(
            attempt=one.number,
            started_at=one.started_at,
            ended_at=one.ended_at,
            ran_s=one.ran_s(view.read_at),
            ending=one.ending,
            steps=one.steps,
            cause=one.cause,
            aftermath=list(one.aftermath),
        )
        for one in reversed(attempts)
    ]
    return StoryReport(job=view.name, state=view.state, attempts=rows)
