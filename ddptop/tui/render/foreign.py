"""Jobs that ddptop did not start, in words: title, header, notes, and what could not be seen."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from ddptop.tui.render import units, words
from ddptop.tui.render.panels import elapsed_s, loss_field
from ddptop.tui.render.progress import progress_of, short_line, step_text
from ddptop.tui.render.text import Line, clip, field, fill, fit, join, line, width
from ddptop_runner.foreign.signals import TERM_GRACE_S, SignalPlan
from ddptop_runner.foreign.types import Unreadable
from ddptop_runner.foreign.view import ForeignView
from ddptop_runner.model import Alert

GONE = "its processes are gone; nobody saw how: ddptop did not start it"


def about(view: ForeignView) -> str:
    """For the title: `not started by ddptop: torchrun, user alice, pid 4711`."""
    job = view.foreign
    return f"not started by ddptop: {job.launcher}, user {job.user}, pid {job.root_pid}"


def header_lines(view: ForeignView, now: dt.datetime, cells: int) -> list[Line]:
    """Three rows: state from outside, where its output goes, what was typed."""
    snapshot, gap = view.snapshot, "   " if cells >= 100 else "  "
    first: list[Line] = [line(" ", words.state_of(view))]
    if not view.is_live and view.ended_at is not None:
        first.append(field("since", f"{view.ended_at.astimezone():%b %d %H:%M:%S}", ""))
    first.append(field("elapsed" if view.is_live else "ran", units.duration(elapsed_s(view, now))))
    first.append(field("world size", _world(view)))
    progress = progress_of(view)
    if snapshot.step is not None or progress is not None:
        first.append(field("step", step_text(snapshot, progress)))
    if progress is not None and progress.eta_s is not None:
        first.append(field("ETA", units.duration(progress.eta_s)))
    if any(rank.loss is not None or rank.loss_state for rank in snapshot.ranks):
        first.append(join([loss_field(snapshot), line(("from its log", "dim"))], " "))
    if view.foreign.rendezvous:
        first.append(field("rendezvous", view.foreign.rendezvous, ""))
    done = () if progress is None else short_line(progress, cells // 3)
    second = _output(view.output or units.NOT_KNOWN, done, cells)
    if view.stopping and view.is_live:
        second = fit(line(" ", (view.stopping, "warn")), cells)
    if not view.is_live:
        how = f"ended after {view.ended_by} sent from here" if view.ended_by else GONE
        second = fit(line(" ", (how, "warn")), cells)
    return [
        fit(fill(first, cells, gap), cells),
        second,
        _labelled("command", view.command, cells),
    ]


def stopping_words(plan: SignalPlan, since: dt.datetime) -> str:
    """Which signals a job is sent from here, and at what time of this machine's zone each."""
    if plan.action == "kill":
        return f"SIGKILL sent at {since.astimezone():%H:%M:%S}"
    term = since + dt.timedelta(seconds=plan.grace_s)
    kill = term + dt.timedelta(seconds=TERM_GRACE_S)
    sent, later, last = (f"{at.astimezone():%H:%M:%S}" for at in (since, term, kill))
    return f"SIGINT sent at {sent}; what is left gets SIGTERM {later}, SIGKILL {last}"


def _world(view: ForeignView) -> str:
    here = len(view.foreign.ranks)
    size = units.count(view.world_size)
    return size if view.world_size == here else f"{size}, {here} here"


def _output(text: str, done: Line, cells: int) -> Line:
    """Where its output goes and, where that tells it, how far it is."""
    if not done:
        return _labelled("output", text, cells)
    room = cells - width(done) - 13
    return fit(line((" ", ""), *done, ("   output ", "dim"), (clip(text, room), "")), cells)


def _labelled(name: str, text: str, cells: int) -> Line:
    return fit(line((f" {name:<8}", "dim"), (clip(text, cells - 9), "")), cells)


def note_alerts(view: ForeignView) -> list[Alert]:
    """What could not be seen of a job, as the least of alerts."""
    return [
        Alert(id=f"note-{place}", severity="info", message=note, since=view.created_at)
        for place, note in enumerate(view.foreign.notes)
    ]


def unreadable_line(unreadable: Sequence[Unreadable], cells: int) -> Line:
    """One line on processes that may be training and may not be looked into; empty without any."""
    if not unreadable:
        return ()
    users = sorted({one.user for one in unreadable if one.user is not None})
    of = f" of {', '.join(users)}" if users else ""
    number = "1 process" if len(unreadable) == 1 else f"{len(unreadable)} processes"
    head = line((" ▲ ", "warn"), f"{number}{of} may not be looked into: ")
    key = line(("  ", ""), ("u", "busy"), (" shows why ", "dim"))
    reason = clip(unreadable[0].reason or "no permission", cells - width(head) - width(key))
    return fit((*head, (reason, "dim"), *key), cells)


def unreadable_sections(unreadable: Sequence[Unreadable]) -> list[tuple[str, str]]:
    """Each such process with what is known of it, and which permission is missing."""
    return [
        (
            f"pid {one.pid}   user {one.user or units.NOT_KNOWN}",
            "\n".join(
                [
                    one.command or "command: n/a",
                    f"devices: {', '.join(one.devices) or 'none that the driver names'}",
                    one.reason or "no reason is known",
                ]
            ),
        )
        for one in unreadable
    ]
