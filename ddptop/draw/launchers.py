"""Describes jobs of other launchers: header, notes, and the launcher's row. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddptop.job.keys import key
from ddptop.job.ranks import (
    parts_in_words,
    replicas_in_words,
    source_in_words,
)
from ddptop.job.record import Job
from ddptop.job.status import rank_state
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
