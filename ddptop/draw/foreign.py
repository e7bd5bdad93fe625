"""Describes foreign jobs: title, header, notes, and what cannot be inspected."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddptop.draw.header import LABELED, far_line, learning_line, question
from ddptop.view import words
from ddptop.view.jobs import elapsed_s
from ddptop.view.keys import key
from ddptop.view.learning import LossTrend
from ddptop.view.progress import progress_of
from ddptop.view.text import Line, clip, field, fill, fit, line, width
from ddptop.view.words import GONE
from ddptop_runner.base import units
from ddptop_runner.foreign.types import ForeignView
from ddptop_runner.store.log_clean import sanitize

if TYPE_CHECKING:
    from ddptop_runner.foreign.actions import SignalPlan
    from ddptop_runner.foreign.types import Unreadable


def about(view: ForeignView) -> str:
    """A note for the title: `not started by ddptop: torchrun, user alice, pid 4711`."""
    job = view.foreign
    if job.launcher == "ddptop":
        return f"in another DDPTOP_HOME: user {job.user}, pid {job.root_pid}"
    return f"not started by ddptop: {job.launcher}, user {job.user}, pid {job.root_pid}"


def header_lines(
    view: ForeignView,
    now: dt.datetime,
    cells: int,
    trend: LossTrend | None = None,
    most: int = 5,
) -> list[Line]:
    """The job's state, its progress and loss if it prints them, its output, and its command.

    At most `most` rows; the last are dropped first.
    """
    snapshot, progress = view.snapshot, progress_of(view)
    first: list[Line] = [line(words.state_of(view))]
    if not view.is_live and view.ended_at is not None:
        first.append(field("since", f"{view.ended_at.astimezone():%b %d %H:%M:%S}", ""))
    counts = snapshot.step is not None or progress is not None
    if not counts:
        passed = units.duration(elapsed_s(view, now))
        first.append(field("elapsed" if view.is_live else "ran", passed))
    first.append(field("world size", _world(view)))
    if view.foreign.rendezvous:
        first.append(field("rendezvous", view.foreign.rendezvous, ""))
    rows = [(*question(0, cells), *fill(first, cells - 12))]
    if view.stopping and view.is_live:
        rows.append((*question(3, cells), (view.stopping, "warn")))
    if not view.is_live:
        how = f"exited after ddptop sent {view.ended_by}" if view.ended_by else GONE
        rows.append((*question(3, cells), (how, "warn")))
    if counts:
        far = far_line(view, snapshot, progress, now, cells)
        rows.append((*question(1, cells), *far))
    if any(rank.loss is not None or rank.loss_state for rank in snapshot.ranks):
        learning = learning_line(snapshot, trend if view.is_live else None, cells)
        rows.append((*question(2, cells), *learning))
    rows.append(_labeled("output", view.output or units.NOT_AVAILABLE, cells))
    rows.append(_labeled("command", view.command, cells))
    return [fit(row, cells) for row in rows[:most]]


def stopping_words(plan: SignalPlan, since: dt.datetime) -> str:
    """The signals that ddptop sends to a job, with times in this machine's time zone."""
    from ddptop_runner.foreign.actions import TERM_GRACE_S  # not needed for the first frame

    if plan.action == "kill":
        return f"SIGKILL sent at {since.astimezone():%H:%M:%S}"
    term = since + dt.timedelta(seconds=plan.grace_s)
    kill = term + dt.timedelta(seconds=TERM_GRACE_S)
    sent, later, last = (f"{at.astimezone():%H:%M:%S}" for at in (since, term, kill))
    return f"SIGINT sent at {sent}; then SIGTERM at {later} and SIGKILL at {last}"


def _world(view: ForeignView) -> str:
    here = len(view.foreign.ranks)
    size = units.count(view.world_size)
    return size if view.world_size == here else f"{size}, {here} here"


def _labeled(name: str, text: str, cells: int) -> Line:
    head = line((f" {name:<9} " if cells >= LABELED else f" {name:<7} ", "dim"))
    return fit((*head, (clip(text, cells - width(head)), "")), cells)


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
                    f"devices: {', '.join(one.devices) or 'none reported by the driver'}",
                    one.reason or "reason unknown",
                ]
            ),
        )
        for one in unreadable
    ]
