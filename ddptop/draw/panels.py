"""Draws title rows, panels, and what is known about jobs of other launchers. Pure."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddptop.job.keys import key
from ddptop.job.ranks import (
    parts_in_words,
    replicas_in_words,
    source_in_words,
)
from ddptop.job.record import Job
from ddptop.job.series import Machine
from ddptop.job.status import job_state, severity, worst_first
from ddptop.style import (
    Line,
    bar,
    clip,
    field,
    fill,
    fit,
    line,
    spread,
    width,
    wrap,
)
from ddptop_runner.base import units
from ddptop_runner.model.snapshot import Alert, Cause, LauncherSample, RankSample
from ddptop_runner.store.log_clean import sanitize

if TYPE_CHECKING:
    from ddptop_runner.foreign.actions import SignalPlan
    from ddptop_runner.foreign.types import Unreadable

ALERT_ROWS = 3
"""Most lines per alert."""


def title_line(
    name: str, right: Line, cells: int, about: str = "", *, readonly: bool = False
) -> Line:
    """The top row: program, job, a note about it, and the current place."""
    left = line((" ddptop", "title"), ("  ", ""))
    if readonly:
        left = (*left, ("read-only", "busy"), ("  ", ""))
    left = (*left, (name, "strong"))
    if about:
        left = (*left, (f"   {about}", "dim"))
    return fit(spread(left, (*right, (" ", "")), cells), cells)


def alert_lines(alerts: Sequence[Alert], now: dt.datetime, cells: int, most: int) -> list[Line]:
    """The worst alerts, and how many more there are, in at most `most` lines.

    The worst alert gets lines first, because its remedy is at its end.
    """
    ranked = worst_first(alerts)
    lines: list[Line] = []
    for place, alert in enumerate(ranked):
        rest = len(ranked) - place - 1
        room = most - len(lines)
        if room < 1 or (room == 1 and rest and place):
            lines.append(
                fit(line((f"   and {rest + 1} more: press {key('job.findings')}", "dim")), cells)
            )
            break
        later = 0 if not rest else 1 if place == 0 else min(rest, room - 1)
        lines += _alert(alert, now, cells, max(1, min(ALERT_ROWS, room - later)))
    return lines[:most]


def _alert(alert: Alert, now: dt.datetime, cells: int, rows: int) -> list[Line]:
    symbol, style = severity(alert.severity)
    lasted = f"for {units.brief_duration((now - alert.since).total_seconds())}"
    if alert.severity == "info":
        lasted = ""
    first, *more = wrap(alert.message, cells - 6 - len(lasted), rows)
    head = spread(line(" ", (f"{symbol} {first}", style)), line((f"{lasted} ", "dim")), cells)
    return [fit(head, cells), *(fit(line("   ", (text, style)), cells) for text in more)]


def cause_lines(
    state: str, cause: Cause, last_lines: Sequence[str], cells: int, rows: int, now: str = ""
) -> list[Line]:
    """Why the job ended, the last output of the rank that failed first, and what to do `now`."""
    symbol, style = job_state(state)
    lines = [line((f"{symbol[0]} ", style), (who_first(cause), "strong"))]
    keys = line((key("job.evidence"), "busy"), (" evidence", "dim")) if cause.evidence else ()
    label, hint = ("next  ", now) if now else ("saved  ", cause.evidence or "")
    room = cells - 6 - len(label) - width(keys)
    *hints, last = wrap(hint, room, 2 if now and rows > 4 else 1)
    below = [line((label, "title"), text) for text in hints]
    below.append(line((" " * len(label) if hints else label, "title"), last, "   ", *keys))
    below = below if hint else []
    tail = [text for text in last_lines if not pointing_only(text)]
    most = rows // 2 if tail and rows > 6 else rows - 1 - len(below)
    lines += [line((text, "")) for text in wrap(cause.summary, cells - 3, max(1, most))]
    left = rows - len(lines) - len(below)
    shown = tail[-left:] if left > 0 else []
    lines += [line(("│ ", "faint"), (clip(text, cells - 4), "dim")) for text in shown]
    return [fit((("▌", "bad"), (" ", ""), *one), cells) for one in [*lines, *below][:rows]]


def who_first(cause: Cause) -> str:
    """`rank 3 failed first (exit 1)`; for a hang, `rank 2 hung first`, because ddptop ended it."""
    if cause.kind == "hang":
        return "the job hung" if cause.rank is None else f"rank {cause.rank} hung first"
    how = f" ({cause.signal})" if cause.signal else ""
    if not how and cause.exit_code is not None:
        how = f" (exit {cause.exit_code})"
    return (cause.kind if cause.rank is None else f"rank {cause.rank} failed first") + how


def setback_lines(attempt: int | None, cause: Cause, cells: int, rows: int) -> list[Line]:
    """Why an attempt of a running job failed, in at most `rows` rows."""
    who = "the last attempt" if attempt is None else f"attempt {attempt}"
    hint = "   i: evidence" if cause.evidence else ""
    *texts, last = wrap(f"{who} failed: {cause.summary}", cells - 4 - len(hint), rows)
    lines = [line((text, "")) for text in texts]
    lines.append(line((last, ""), (hint, "dim")))
    return [fit((("▌", "warn"), (" ", ""), *one), cells) for one in lines]


_CARETS = re.compile(r"^(\[rank\d+\]:)?[\s^~]*$")
"""An empty line, or a traceback line that only points at the line above."""


def pointing_only(text: str) -> bool:
    """Whether a log line is empty or only points at the line above."""
    return _CARETS.fullmatch(text) is not None


def short_name(name: str | None) -> str:
    """`NVIDIA H100 80GB HBM3` as `H100 80GB HBM3`."""
    return (name or "").removeprefix("NVIDIA ").removeprefix("GeForce ")


def machine_lines(machine: Machine, cells: int) -> list[Line]:
    """The machine's CPU and memory."""
    bars = max(0, min(40, cells - 40))
    cpu = None if machine.cpu_percent is None else machine.cpu_percent / 100
    cores = "" if machine.cores is None else f" of {units.plural(machine.cores, 'core')}"
    total = machine.memory_total_bytes
    memory = machine.memory_used_bytes / total if machine.memory_used_bytes and total else None
    used = units.size_of(machine.memory_used_bytes, total)
    rows = (("CPU", cpu, units.percent(machine.cpu_percent) + cores), ("memory", memory, used))
    return [
        fit(line((f" {label:<7}", "strong"), *bar(share, bars), (f"  {text}", "")), cells)
        for label, share, text in rows
    ]


def about(view: Job) -> str:
    """A note for the title: `not started by ddptop: torchrun, user alice, pid 4711`."""
    if view.foreign is None:
        return ""
    who = f"user {view.user}, pid {view.foreign.root_pid}"
    if view.launcher == "ddptop":
        return f"in another DDPTOP_HOME: {who}"
    return f"not started by ddptop: {view.launcher}, {who}"


def stopping_words(plan: SignalPlan, since: dt.datetime) -> str:
    """The signals that ddptop sends to a job, with times in this machine's time zone."""
    from ddptop_runner.foreign.actions import TERM_GRACE_S  # not needed for the first frame

    if plan.action == "kill":
        return f"SIGKILL sent at {since.astimezone():%H:%M:%S}"
    term = since + dt.timedelta(seconds=plan.grace_s)
    kill = term + dt.timedelta(seconds=TERM_GRACE_S)
    sent, later, last = (f"{at.astimezone():%H:%M:%S}" for at in (since, term, kill))
    return f"SIGINT sent at {sent}; then SIGTERM at {later} and SIGKILL at {last}"


def unreadable_line(unreadable: Sequence[Unreadable], cells: int) -> Line:
    """One line on processes that may be training and cannot be inspected; empty without any."""
    if not unreadable:
        return ()
    users = sorted({one.user for one in unreadable if one.user is not None})
    of = f" owned by {', '.join(users)}" if users else ""
    number = "1 process" if len(unreadable) == 1 else f"{len(unreadable)} processes"
    head = line((f" i {number}{of} cannot be inspected: ", "dim"))
    more = line(("  ", ""), (key("view.unseen"), "busy"), (" shows why ", "dim"))
    shown = clip(unreadable[0].reason or "no permission", cells - width(head) - width(more))
    return fit((*head, (shown, "dim"), *more), cells)


def damaged_line(damaged: Sequence[tuple[str, str]], cells: int) -> Line:
    """One line on run folders that cannot be read as a job; empty without any."""
    if not damaged:
        return ()
    names = ", ".join(sanitize(name) for name, _ in damaged)
    number = "1 run folder" if len(damaged) == 1 else f"{len(damaged)} run folders"
    head = line((" ▲ ", "warn"), f"{number} cannot be read: ")
    more = line(("  ", ""), (key("view.unseen"), "busy"), (" shows why ", "dim"))
    return fit((*head, (clip(names, cells - width(head) - width(more)), ""), *more), cells)


def damaged_sections(damaged: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Each run folder that cannot be read, and why."""
    return [(f"run folder {sanitize(name)}", sanitize(reason)) for name, reason in damaged]


def unreadable_sections(unreadable: Sequence[Unreadable]) -> list[tuple[str, str]]:
    """Each process that cannot be inspected: what is known, and which permission is missing."""
    return [
        (
            f"pid {one.pid}   user {one.user or units.NOT_AVAILABLE}",
            "\n".join(
                [
                    one.command or "command: n/a",
                    f"devices: {', '.join(one.gpus) or 'none reported by the driver'}",
                    one.reason or "reason unknown",
                ]
            ),
        )
        for one in unreadable
    ]


def rank_detail(rank: RankSample, launcher: LauncherSample | None, cells: int) -> Line:
    """What the columns do not show about a rank; empty if nothing."""
    parts = rank_facts(rank, launcher)
    if launcher is not None and rank.pid is not None:
        parts.append(field("pid", str(rank.pid), ""))
    head = line((f" rank {rank.rank}  ", "strong"))
    room = cells - width(head)
    return (*head, *(fill(parts, room) or fit(parts[0], room))) if parts else ()


def rank_facts(rank: RankSample, launcher: LauncherSample | None) -> list[Line]:
    """Each of its losses if it has several, what its process is, and what its loss combines."""
    losses = rank.losses.items() if len(rank.losses) > 1 else ()
    parts = [field(name, units.loss(value), "") for name, value in losses]
    parts += about_process(rank, launcher)
    if passes := parts_in_words(rank):
        parts.append(line((f"loss: {passes}", "dim")))
    return parts


def about_process(rank: RankSample, launcher: LauncherSample | None) -> list[Line]:
    """That it runs on several devices, how its number was inferred, and what it imports."""
    parts = []
    if text := replicas_in_words(rank, launcher):
        parts.append(line(text))
    if text := source_in_words(rank):
        parts.append(line((text, "dim")))
    if rank.frameworks:
        parts.append(field("imports", ", ".join(rank.frameworks), ""))
    return parts
