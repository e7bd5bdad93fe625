"""Draws the story of a job: how each attempt ended, why, and what to do. Pure."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from ddptop.draw.panels import pointing_only
from ddptop.job.attempts import Attempt
from ddptop.job.compare import code_words
from ddptop.job.keys import key
from ddptop.job.series import Tail
from ddptop.job.status import brief_place, failure_name, job_state
from ddptop.style import Line, Span, clip, fit, line, wrap
from ddptop_runner.base import units
from ddptop_runner.base.paths import LAUNCHER
from ddptop_runner.model.snapshot import Cause
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.model.words import JobState

_ENDINGS: dict[str, Span] = {
    "finished": ("✓ finished", "ok"),
    "stopped": ("■ stopped", "dim"),
    "again": ("↻ restarted on request", "dim"),
    "requeued": ("↻ requeued by Slurm", "dim"),
    "lost": ("? lost", "bad"),
    "unknown": ("? ended, cause unknown", "dim"),
}
REFUSED = 2
"""Exit status of argparse, click, and most command-line tools for invalid arguments."""

_REMEDIES = {
    "host_oom": "use fewer data loader workers, a smaller batch, or more memory for this job",
    "nan": "lower the learning rate or clip gradients, and resume from a checkpoint saved "
    "before the first bad loss; to resume automatically, use launch --on-nan restart",
    "hang": "stacks and flight records ({how}) show where each rank was and what it called",
    "gpu": "exclude the device (launch --gpus), or let jobs continue without it "
    "(--allow-shrink); to see its status, run ddptop gpus",
    "early_exit": "give every rank the same number of batches: DistributedSampler(drop_last=True), "
    "or Join",
    "launch": "use ddptop launch --dry-run to see what would run",
}


_VERBS = {"job.again": "restart", "job.evidence": "stacks"}


def _how(action: str, job: str | None) -> str:
    """How to do something: with a key, or with a command if the job is named."""
    return f"press {key(action)}" if job is None else f"run ddptop {_VERBS[action]} {job}"


def how_it_ended(attempt: Attempt, state: JobState) -> Span:
    """`✗ ValueError at train.py:81`; for a live attempt, the job's state."""
    if attempt.ending == "lives":
        return job_state(state)
    if attempt.ending != "failed":
        return _ENDINGS[attempt.ending]
    if attempt.cause is None:
        return "✗ failed", "bad"
    place, host = brief_place(attempt.cause.place or ""), attempt.cause.host
    where = (f" on {host}" if host else "") + (f" at {place}" if place else "")
    return f"✗ {failure_name(attempt.cause)}{where}", "bad"


def work_lost(cause: Cause | None) -> str:
    """`42 steps, 12s`."""
    if cause is None:
        return ""
    parts = []
    if cause.work_lost_steps is not None:
        parts.append(units.plural(cause.work_lost_steps, "step"))
    if cause.work_lost_s is not None:
        parts.append(units.duration(cause.work_lost_s))
    return ", ".join(parts) or units.NOT_AVAILABLE


def attempt_row(attempt: Attempt, state: JobState, now: dt.datetime) -> Mapping[str, Span]:
    """An attempt's cells by column."""
    started = attempt.started_at
    local = None if started is None else started.astimezone()
    failed = attempt.cause
    first = (
        "" if failed is None else units.NOT_AVAILABLE if failed.rank is None else str(failed.rank)
    )
    return {
        "number": (str(attempt.number), "strong"),
        "day": ("" if local is None else f"{local:%b %d}", "dim"),
        "started": (units.NOT_AVAILABLE if local is None else f"{local:%H:%M:%S}", "dim"),
        "ran": (units.duration(attempt.ran_s(now)), ""),
        "steps": (units.count(attempt.steps), "dim" if attempt.steps is None else ""),
        "how": how_it_ended(attempt, state),
        "first": (first, "dim" if first == units.NOT_AVAILABLE else ""),
        "lost": (work_lost(failed), ""),
    }


def headline(attempts: Sequence[Attempt], state: JobState, remark: str = "") -> str:
    """The whole job in one sentence; `remark` is about its end."""
    if not attempts:
        return "no events yet"
    failed = [one.cause for one in attempts if one.ending == "failed" and one.cause is not None]
    number = units.plural(len(attempts), "attempt")
    but = f", but {remark}" if remark else ""
    if not failed:
        return f"{number}, no failures; {_is(state)}{but}"
    names = Counter(map(failure_name, reversed(failed)))
    listed = ", ".join(f"{name} {n} times" if n > 1 else name for name, n in names.items())
    return f"{number}, {units.plural(len(failed), 'failure')} ({listed}); {_is(state)}{but}"


def _is(state: JobState) -> str:
    return {"failed": "the job failed", "finished": "the job finished",
            "stopped": "the job was stopped"}.get(state, f"the job is {state}")  # fmt: skip


# --- one attempt --------------------------------------------------------------------------------


def opening(attempt: Attempt, state: JobState, now: dt.datetime) -> Line:
    """How an attempt ended, and after how long."""
    text, style = how_it_ended(attempt, state)
    ran = units.duration(attempt.ran_s(now))
    steps = "" if attempt.steps is None else f", {units.plural(attempt.steps, 'step')}"
    when = f"for {ran}{steps} so far" if attempt.ending == "lives" else f"after {ran}{steps}"
    who = ""
    if attempt.cause is not None and attempt.cause.rank is not None:
        who = f" on rank {attempt.cause.rank}" if attempt.cause.exception else ""
        who = who or f", rank {attempt.cause.rank} first"
    return line((text + who, style if style != "dim" else "strong"), (f"   {when}", "dim"))


def sentence(attempt: Attempt) -> str:
    """What happened, including for attempts that did not fail."""
    if attempt.cause is not None:
        return attempt.cause.summary
    asked = [one.message for one in attempt.events if one.type in ("stopping", "group_restart")]
    last = attempt.events[-1].message if attempt.events else ""
    if attempt.ending == "lives":
        return f"No failures. Last event: {last}." if last else ""
    if attempt.ending in ("stopped", "again") and asked:
        return f"{asked[-1][0].upper()}{asked[-1][1:]}."
    if attempt.ending == "finished":
        return "Every rank exited with status 0."
    if attempt.ending == "lost":
        return (
            "Its processes exited without leaving an exit status (for example, because of a "
            "reboot or kill -9). " + (f"Last event: {last}." if last else "")
        )
    return f"{last}." if last else ""


def what_now(cause: Cause | None, state: JobState, *, is_last: bool, job: str | None = None) -> str:
    """What the user can do about an attempt; empty if nothing.

    Args:
        cause: why it failed, if it did.
        state: the job's state.
        is_last: whether it is the job's last attempt.
        job: the job's name, if the user types commands instead of pressing keys.
    """
    again = is_last and state in ("failed", "stopped", "lost")
    parts = []
    if cause is not None and (again or cause.kind in _REMEDIES):
        remedy = _REMEDIES.get(cause.kind, "").format(how=_how("job.evidence", job))
        if not remedy and cause.exception is not None and cause.place is not None:
            remedy = f"fix {brief_place(cause.place)}"
        if not remedy and cause.kind == "signal" and cause.signal == "SIGKILL":
            remedy = (
                "find out what is killing processes on this host: a batch system, an OOM "
                "daemon, or another user"
            )
        parts.append(remedy)
    if again and cause is not None and cause.kind == "exit_code" and cause.exit_code == REFUSED:
        return "launch with different arguments; the script rejected these"
    if again:
        parts.append(f"{_how('job.again', job)} to relaunch")
    known = [part for part in parts if part]
    return (", then " if known and known[0].startswith("fix ") else "; ").join(known)


def origin(spec: JobSpec) -> list[tuple[str, str]]:
    """From which code a job was launched, and its note, as far as there are any."""
    known = (("code", code_words(spec)), ("note", spec.note))
    return [(label, text) for label, text in known if text is not None]


def notes(
    attempt: Attempt, state: JobState, *, is_last: bool, job: str | None = None
) -> list[tuple[str, str, str]]:
    """Its aftermath, and what to do, as (label, text, style); see `what_now`."""
    after = "also" if attempt.ending in ("finished", "stopped") else "then"
    found = [(after, text, "") for text in attempt.aftermath[:3]]
    if now := what_now(attempt.cause, state, is_last=is_last, job=job):
        found.append(("next step" if is_last else "remedy", now, "strong"))
    return found


def why_lines(
    attempt: Attempt,
    state: JobState,
    tail: Tail | None,
    now: dt.datetime,
    cells: int,
    rows: int,
    *,
    is_last: bool,
    launched: Sequence[tuple[str, str]] = (),
) -> list[Line]:
    """Why an attempt ended, what ddptop did, what to do, its code, and its last output.

    Args:
        attempt: the attempt.
        state: the job's state.
        tail: its last log lines, if known.
        now: the current time.
        cells: width of a line.
        rows: maximum number of lines.
        is_last: whether it is the job's last attempt.
        launched: see `origin`.
    """
    room = max(10, cells - 2)
    failed = attempt.cause is not None
    style = "bad" if failed or attempt.ending == "lost" else "ok"
    lines: list[Line] = [opening(attempt, state, now)]
    happened, parts = sentence(attempt), _labeled(attempt, state, room, launched, is_last=is_last)
    most = min(max(6, rows // 3), len(wrap(happened, room, rows)))
    for label in DROPPED:
        if 1 + most + len(parts) > rows:
            parts = [part for part in parts if part[0] != label]
    most = max(1, min(most, rows - 1 - len(parts)))
    if len(wrap(happened, room, most + 1)) > most and attempt.cause and attempt.cause.exception:
        happened = attempt.cause.headline or happened
    lines += [line(text) for text in wrap(happened, room, most) if text]
    lines += [part for _, part in parts]
    left = rows - len(lines)
    if tail is not None and tail.attempt == attempt.number and left >= 2:
        lines += _tail_lines(tail, room, left)
    return [fit((("▌", style), (" ", ""), *one), cells) for one in lines[:rows]]


LABEL_CELLS = 10
DROPPED = ("note", "code", "evidence", "also", "then")
"""The rows that make room for what happened and for the remedy, in this order."""


def _labeled(
    attempt: Attempt,
    state: JobState,
    room: int,
    launched: Sequence[tuple[str, str]],
    *,
    is_last: bool,
) -> list[tuple[str, Line]]:
    """What ddptop did, what to do, the evidence, the code, and the note: rows with their labels."""
    rows: list[tuple[str, Line]] = []

    def add(label: str, text: str, style: str, most: int, hint: Span = ("", "")) -> None:
        for place, part in enumerate(wrap(" ".join(text.split()), room - LABEL_CELLS, most)):
            head = "" if place else label
            rows.append((label, line((f"{head:<{LABEL_CELLS}}", "dim"), (part, style), hint)))

    for label, text, style in notes(attempt, state, is_last=is_last):
        add(label, text, style, 2 if label in DROPPED else 4)
    if attempt.cause is not None and attempt.cause.evidence:
        hint = (f"   press {key('story.open')} to open", "dim")
        add("evidence", PurePath(attempt.cause.evidence).name, "", 1, hint)
    for label, text in launched:
        add(label, text, "", 1)
    return rows


def last_output(tail: Tail, most: int) -> tuple[str, list[str]]:
    """(whose last lines these are, at most `most` of them); none if it printed nothing."""
    texts = [text for text in tail.lines if not pointing_only(text)][-most:]
    who = "the command" if tail.owner == LAUNCHER else f"rank {tail.owner}"
    return (f"last lines from {who}" if texts else f"{who} printed nothing"), texts


def _tail_lines(tail: Tail, room: int, rows: int) -> list[Line]:
    title, texts = last_output(tail, rows - 1)
    head = line((title, "dim"), ("   l: logs" * bool(texts), "dim"))
    return [head, *(line(("│ ", "faint"), (clip(text, room - 2), "dim")) for text in texts)]
