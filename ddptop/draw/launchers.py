"""Describes jobs of other launchers: header, notes, and the launcher's row. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddptop.draw.header import LABELED, far_line, learning_line, question
from ddptop.job.keys import key
from ddptop.job.loss_trend import LossTrend
from ddptop.job.progress import elapsed_s, progress_of
from ddptop.job.ranks import (
    parts_in_words,
    replicas_in_words,
    source_in_words,
)
from ddptop.job.record import Job
from ddptop.job.status import GONE, rank_state, state_of
from ddptop.style import (
    Line,
    clip,
    field,
    fill,
    fit,
    join,
    line,
    width,
)
from ddptop_runner.base import units
from ddptop_runner.model.snapshot import LauncherSample, RankSample
from ddptop_runner.store.log_clean import sanitize

if TYPE_CHECKING:
    from ddptop_runner.foreign.actions import SignalPlan
    from ddptop_runner.foreign.types import Unreadable


def about(view: Job) -> str:
    """A note for the title: `not started by ddptop: torchrun, user alice, pid 4711`."""
    if view.foreign is None:
        return ""
    who = f"user {view.user}, pid {view.foreign.root_pid}"
    if view.launcher == "ddptop":
        return f"in another DDPTOP_HOME: {who}"
    return f"not started by ddptop: {view.launcher}, {who}"


def header_lines(
    view: Job,
    now: dt.datetime,
    cells: int,
    trend: LossTrend | None = None,
    most: int = 5,
) -> list[Line]:
    """The job's state, its progress and loss if it prints them, its output, and its command.

    At most `most` rows; the last are dropped first.
    """
    snapshot, foreign, progress = view.snapshot, view.foreign, progress_of(view)
    if snapshot is None or foreign is None:
        return []
    first: list[Line] = [line(state_of(view))]
    if not view.is_live and view.ended_at is not None:
        first.append(field("since", f"{view.ended_at.astimezone():%b %d %H:%M:%S}", ""))
    counts = snapshot.step is not None or progress is not None
    if not counts:
        passed = units.duration(elapsed_s(view, now))
        first.append(field("elapsed" if view.is_live else "ran", passed))
    first.append(field("world size", _world(view.world_size, len(foreign.ranks))))
    if foreign.rendezvous:
        first.append(field("rendezvous", foreign.rendezvous, ""))
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


def _world(world_size: int | None, here: int) -> str:
    size = units.count(world_size)
    return size if world_size == here else f"{size}, {here} here"


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


LONGEST_NAME = 20
"""Maximum width of a launcher's name, in cells."""


def launcher_summary(name: str, launcher: LauncherSample, *, chosen: bool = False) -> Line:
    """The launcher's row above those of ranks; `chosen` if it has the cursor."""
    mark = ("▸" if chosen else " ", "chosen")
    return join(
        [
            line(mark, (clip(name, LONGEST_NAME), "strong")),
            line(launcher_state(launcher)),
            field("whole tree CPU", units.percent(launcher.cpu_percent), ""),
            field("RSS", units.size(launcher.rss_bytes), ""),
            field("pid", units.NOT_AVAILABLE if launcher.pid is None else str(launcher.pid), ""),
        ]
    )


def launcher_state(launcher: LauncherSample) -> tuple[str, str]:
    """The launcher's state as a symbol and words, and a style."""
    return rank_state(launcher.state, launcher.exit_code, launcher.signal)


def rank_detail(rank: RankSample, launcher: LauncherSample | None, cells: int) -> Line:
    """What the columns do not show about a rank; empty if nothing."""
    parts = [
        _losses(rank),
        _part(replicas_in_words(rank, launcher), ""),
        field("imports", ", ".join(rank.frameworks), "") if rank.frameworks else (),
        _part(source_in_words(rank)),
        _part(f"loss: {parts}") if (parts := parts_in_words(rank)) else (),
    ]
    if launcher is not None and rank.pid is not None:
        parts.append(field("pid", str(rank.pid), ""))
    head = line((f" rank {rank.rank}  ", "strong"))
    known = [part for part in parts if part]
    room = cells - width(head)
    return (*head, *(fill(known, room) or fit(known[0], room))) if known else ()


def _part(text: str, style: str = "dim") -> Line:
    return line((text, style)) if text else ()


def _losses(rank: RankSample) -> Line:
    if len(rank.losses) < 2:
        return ()
    spans: list[tuple[str, str]] = []
    for name, value in rank.losses.items():
        spans += [(" · " if spans else "", "dim"), (f"{name} ", "dim"), (units.loss(value), "")]
    return tuple(spans)
