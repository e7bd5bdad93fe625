"""`ddptop story`, `events`, and `stacks`: what happened in a job, and where its ranks are."""

from __future__ import annotations

import datetime as dt
from pathlib import PurePath

from ddptop.commands.unguarded import adopt_if_unguarded
from ddptop.draw.story import LABEL_CELLS, headline, last_output, notes, opening, sentence
from ddptop.job.attempts import in_order
from ddptop.job.ranks import host_of
from ddptop.job.record import Job, own_job
from ddptop.job.report import story_report
from ddptop.job.status import loss_remark
from ddptop.output import info, put, put_folded, put_json
from ddptop.sources.evidence import stored_files
from ddptop.sources.history import JobHistory
from ddptop.sources.story import Story, StorySource
from ddptop.style import plain
from ddptop_runner.base import bounded
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.paths import RunFolder, owner_in_words
from ddptop_runner.base.units import local_time
from ddptop_runner.job.registry import JobView
from ddptop_runner.jobs import commands
from ddptop_runner.jobs.slurm_queue import find
from ddptop_runner.model.snapshot import Event
from ddptop_runner.store.history_reader import HistoryReader
from ddptop_runner.store.log_clean import sanitize

TAIL_LINES = 15
"""Lines shown of the log of the rank that failed."""
INDENT = 2


def run_story(job: str | None, as_json: bool) -> int:
    """Print the story as text or JSON; the first attempt comes first."""
    view = own_job(adopt_if_unguarded(find(job)))
    source, history = StorySource(), JobHistory(view.folder.history_db)
    story = source.read(view, history)
    failed = next((one.number for one in story.attempts if one.ending == "failed"), None)
    if failed is not None:
        story = source.read(view, history, failed)
    if story.trouble is not None:
        info(f"ddptop: {story.trouble}")
    status = 1 if story.trouble is not None and not story.attempts else 0
    if as_json:
        put_json(story_report(view, story.attempts))
        return status
    if status:
        return status
    put_folded(f"{view.name}: {headline(story.attempts, view.state, loss_remark(view))}", INDENT)
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
        told = [("", " ".join(sanitize(sentence(one)).split()))]
        is_last = one is story.attempts[0]
        told += [
            (f"{label:{LABEL_CELLS}}", " ".join(sanitize(text).split()))
            for label, text, _ in notes(one, view.state, is_last=is_last, job=view.name)
        ]
        if one.cause is not None and one.cause.evidence:
            told.append((f"{'evidence':{LABEL_CELLS}}", one.cause.evidence))
        lines += [f"{'':{INDENT}}{label}{text}" for label, text in told if text]
        if story.tail is not None and story.tail.attempt == one.number:
            title, texts = last_output(story.tail, TAIL_LINES)
            lines += [f"{'':{INDENT}}{text}" for text in (title, *(f"│ {one}" for one in texts))]
    return lines


CONTINUED = 14
"""Indentation of continuation lines, which align with the text after the time."""


def run_events(folder: RunFolder, json_output: bool) -> int:
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


def run_stacks(job: str | None, rank: int | None) -> int:
    """Print stacks of a live job, or the stored evidence of one without processes."""
    view = adopt_if_unguarded(find(job))
    if view.in_slurm_queue or not view.is_live:
        return _print_stored(view, rank)
    for entry in commands.stacks(view, rank):
        host = host_of(view.snapshot, entry.rank)
        where = "" if host is None else f" on {host}"
        pid = "not started" if entry.pid is None else f"pid {entry.pid}"
        put(f"--- {owner_in_words(entry.rank)} ({pid}{where}) ---")
        put(entry.text.rstrip() if entry.text else f"no stacks: {entry.note}")
        if entry.loader:
            put(entry.loader.rstrip())
    return 0


def _print_stored(view: JobView, rank: int | None) -> int:
    files = stored_files(own_job(view), rank)
    now = "is waiting in Slurm's queue" if view.in_slurm_queue else f"has ended ({view.state})"
    if not files:
        raise DdptopError(
            f"{view.job} {now} and has no saved stacks",
            "stacks are saved when a rank fails or hangs",
        )
    info(f"ddptop: {view.job} {now}; saved stacks from {files[0].parent}")
    for path in files:
        put(f"--- {path.stem.removeprefix('stacks-')} ---")
        put(bounded.read_text(path).rstrip())
    return 0
