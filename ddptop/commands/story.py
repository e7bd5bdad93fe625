"""`ddptop story`: how each attempt of a job ended, why, and what to do."""

from __future__ import annotations

import datetime as dt

from ddptop.commands.unguarded import adopt_if_unguarded
from ddptop.draw.story import LABEL_CELLS, headline, last_output, notes, opening, sentence
from ddptop.plain.output import info, put_folded, put_json
from ddptop.sources.story import Story, StorySource
from ddptop.view.contract import story_report
from ddptop.view.ending import loss_remark
from ddptop.view.text import plain
from ddptop_runner.base.units import local_time
from ddptop_runner.job.registry import JobView
from ddptop_runner.jobs.slurm_queue import find
from ddptop_runner.store.log_clean import sanitize

TAIL_LINES = 15
"""Lines shown of the log of the rank that failed."""
INDENT = 2


def run(job: str | None, as_json: bool) -> int:
    """Print the story as text or JSON; the first attempt comes first."""
    view = adopt_if_unguarded(find(job))
    source = StorySource()
    story = source.read(view)
    failed = next((one.number for one in story.attempts if one.ending == "failed"), None)
    if failed is not None:
        story = source.read(view, failed)
    if story.trouble is not None:
        info(f"ddptop: {story.trouble}")
    status = 1 if story.trouble is not None and not story.attempts else 0
    if as_json:
        put_json(story_report(view, story.attempts))
        return status
    if status:
        return status
    put_folded(f"{view.job}: {headline(story.attempts, view.state, loss_remark(view))}", INDENT)
    for line in describe(view, story, view.read_at):
        put_folded(line, INDENT + LABEL_CELLS)
    return status


def describe(view: JobView, story: Story, now: dt.datetime) -> list[str]:
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
            for label, text, _ in notes(one, view.state, is_last=is_last, job=view.job)
        ]
        if one.cause is not None and one.cause.evidence:
            told.append((f"{'evidence':{LABEL_CELLS}}", one.cause.evidence))
        lines += [f"{'':{INDENT}}{label}{text}" for label, text in told if text]
        if story.tail is not None and story.tail.attempt == one.number:
            title, texts = last_output(story.tail, TAIL_LINES)
            lines += [f"{'':{INDENT}}{text}" for text in (title, *(f"│ {one}" for one in texts))]
    return lines
