"""Draws a job's header: one row each for its status, its progress, and its loss."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from ddptop.job.hosts import hosts_in_words, hosts_of
from ddptop.job.loss_trend import LossTrend, bad_loss, trend_words, whose_loss
from ddptop.job.progress import (
    LEAST_BAR,
    elapsed_s,
    label,
    median_loss,
    no_bar_words,
    progress_of,
    restarts_text,
    step_text,
    steps_per_s,
)
from ddptop.job.ranks import common_parts
from ddptop.job.record import Job
from ddptop.job.status import age_words, guard_words, job_state, loss_remark, pause_state, pause_why
from ddptop.style import Line, bar, clip, field, fill, fit, join, line, spread, width
from ddptop_runner.base import units
from ddptop_runner.judge.balance.imbalance import seen
from ddptop_runner.model.run_step import of_snapshot as run_step_of
from ddptop_runner.model.run_step import step_beside
from ddptop_runner.model.snapshot import NodeSnapshot, Pause, Progress, RankSample
from ddptop_runner.model.words import is_validation_loss

LABELED = 110
"""Minimum width for labels at the start of rows."""

_QUESTIONS = ("status", "progress", "loss")

START_S = 60.0
"""How long after an attempt starts an unknown total may still be reported."""

LATE_S = 5.0
"""A last step this long ago is drawn as a warning if the rank is hung."""


def header_lines(
    view: Job,
    now: dt.datetime,
    cells: int,
    trend: LossTrend | None = None,
    most: int = 4,
) -> list[Line]:
    """Three rows, or four if facts need their own row and `most` allows it."""
    snapshot, state = view.snapshot, job_state(view.state)
    if snapshot is None:
        text = "no snapshot yet: launching processes"
        if not view.is_live:
            log = f"; see {view.folder.supervisor_log}" if not view.is_foreign else ""
            text = f"it never started{log}"
        return [fit(line(" ", state, "   ", (text, "dim")), cells), (), ()]
    if view.state == "queued":
        return _queued_lines(view, snapshot, now, cells)
    progress = progress_of(view)
    facts = facts_of(view, snapshot, now)
    alive, own_row = _alive(view, snapshot, now, facts, cells, most > 3)
    far = restart_line(snapshot, now) if view.state == "restarting" else ()
    rows = [
        alive,
        far or far_line(view, snapshot, progress, now, cells),
        learning_line(snapshot, trend if view.is_live else None, cells, view.pause),
    ]
    lines = [fit((*question(place, cells), *row), cells) for place, row in enumerate(rows)]
    if own_row:
        lines.append(fit(fill([(*question(3, cells), *facts[0]), *facts[1:]], cells), cells))
    return lines


def gone_lines(seen: dt.datetime | None, cells: int) -> list[Line]:
    """For a job that no longer exists: when it was last `seen`."""
    parts = [line(("? gone", "bad")), line(("the job no longer exists", "strong"))]
    if seen is None:
        return [fit(line(*question(0, cells), *join(parts)), cells)]
    parts.append(field("last seen", f"{seen.astimezone():%H:%M:%S}"))
    below = line(*question(9, cells), ("the values below are from that time", "dim"))
    return [fit(line(*question(0, cells), *join(parts)), cells), fit(below, cells)]


def question(place: int, cells: int) -> Line:
    """The label in front of a row, if there is room."""
    if cells < LABELED:
        return line(" ")
    name = _QUESTIONS[place] if place < len(_QUESTIONS) else ""
    return line((f" {name:<9} ", "title"))


# --- is it alive ----------------------------------------------------------------------------------


def _alive(
    view: Job,
    snapshot: NodeSnapshot,
    now: dt.datetime,
    facts: list[Line],
    cells: int,
    tall: bool,
) -> tuple[Line, bool]:
    """(state and pace with the facts at the right, whether the facts need their own row)."""
    pause = view.pause
    parts = [line(job_state(view.state))]
    if pause is not None and view.state != "hung":
        parts = [
            line(pause_state(pause, now)),
            line((pause_why(pause, now), "strong")),
        ]
    elif view.is_live:
        if (pace := steps_per_s(snapshot.ranks)) is not None:
            parts.append(line((units.rate(pace), "strong")))
        parts.append(last_step(snapshot.ranks, now))
    elif view.ended_at is not None:
        if remark := loss_remark(view):
            parts.append(line((remark, "strong")))
        parts.append(field("ended", f"{view.ended_at.astimezone():%b %d %H:%M:%S}", ""))
    left, room = join(parts), cells - width(question(0, cells)) - 1
    if width(left) + 3 + width(join(facts)) <= room:
        return (*spread(left, join(facts), room), (" ", "")), False
    if tall and facts:
        return left, True
    return (*left, ("   ", ""), *fill(facts, room - width(left) - 3)), False


def last_step(ranks: Sequence[RankSample], now: dt.datetime) -> Line:
    """`last step 0s ago`, for the rank that has gone longest without one; empty if unknown."""
    known = [rank for rank in seen(ranks) if rank.last_progress_at is not None]
    if not known:
        return ()
    slowest = min(known, key=lambda rank: rank.last_progress_at or now)
    ago_s = max(0.0, (now - (slowest.last_progress_at or now)).total_seconds())
    late = slowest.state == "hung" and ago_s >= LATE_S
    of = f" on rank {slowest.rank}" if late and len(ranks) > 1 else ""
    text = f"{units.brief_duration(ago_s)} ago{of}"
    return field("last step", text, "warn" if late else "")


def facts_of(view: Job, snapshot: NodeSnapshot, now: dt.datetime) -> list[Line]:
    """Facts that rarely change, worst first: stale values, guard, attempt, restarts, host."""
    parts: list[Line] = []
    stale = age_words(view)
    if stale:
        parts.append(line((f"▲ {stale}", "warn")))
    known = view.guarded is not None or view.on_other_host
    guard = guard_words(view.guarded, view.is_live) if known else ()
    warned = bool(guard) and guard[0][1] == "warn"
    if warned:
        parts.append(guard)
    if view.on_other_host:
        parts.append(line((f"on host {snapshot.host}", "")))
    if len(hosts := hosts_of(snapshot)) > 1:
        parts.append(field("hosts", hosts_in_words(hosts), ""))
    if snapshot.set_aside:
        gpus = "GPU" if len(snapshot.set_aside) == 1 else "GPUs"
        parts.append(line((f"▲ {gpus} {units.ranks(snapshot.set_aside)} set aside", "warn")))
    if snapshot.attempt is not None:
        parts.append(field("attempt", str(snapshot.attempt), ""))
    parts.append(field("restarts", restarts_text(snapshot), ""))
    if saved := checkpoint_field(snapshot, now):
        parts.append(saved)
    if snapshot.world_size is not None or snapshot.launcher is not None:
        parts.append(field("world size", units.count(snapshot.world_size), ""))
    if guard and not warned:
        parts.append(guard)
    return parts


def checkpoint_field(snapshot: NodeSnapshot, now: dt.datetime) -> Line:
    """`checkpoint step 120, 4 s ago`; empty if none was detected."""
    saved = snapshot.checkpoint
    if saved is None:
        return ()
    step = step_beside(saved, snapshot.attempt)
    ago = f"{units.brief_duration(max(0.0, (now - saved.at).total_seconds()))} ago"
    return field("checkpoint", ago if step is None else f"{step}, {ago}", "")


def _queued_lines(view: Job, snapshot: NodeSnapshot, now: dt.datetime, cells: int) -> list[Line]:
    """For a queued job: how long it has waited; an alert gives the reason."""
    since = next((a.since for a in snapshot.alerts if a.id == "queued"), snapshot.started_at)
    waited = field("waited", units.duration((now - since).total_seconds()))
    facts = [line(" "), *facts_of(view, snapshot, now)]
    in_slurm = not view.is_foreign and view.in_slurm_queue
    why = (
        "waiting for Slurm to start it again" if in_slurm else "not started: waiting for free GPUs"
    )
    return [
        fit(join([line(" ", job_state("queued")), waited], "   "), cells),
        line(" ", (why, "dim")),
        fit(line(" ", *fill(facts[1:], cells - 1)), cells),
    ]


# --- how far --------------------------------------------------------------------------------------


def restart_line(snapshot: NodeSnapshot, now: dt.datetime) -> Line:
    """When and why the next attempt begins; empty if unknown."""
    wait_s = 0.0
    if snapshot.restart_at is not None:
        wait_s = (snapshot.restart_at - now).total_seconds()
    attempt = "the next attempt" if snapshot.attempt is None else f"attempt {snapshot.attempt + 1}"
    when = f"in {units.brief_duration(wait_s)}" if wait_s >= 1 else "now"
    why = (f"  {snapshot.policy}", "dim") if snapshot.policy else ("", "")
    return line((f"↻ {attempt} starts {when}", "busy"), why)


def begins(view: Job, snapshot: NodeSnapshot, now: dt.datetime) -> bool:
    """Whether an attempt is so young that its total may still be reported."""
    if not view.is_live:
        return False
    if view.state in ("starting", "restarting", "queued") or snapshot.step is None:
        return True
    since = snapshot.attempt_started_at or snapshot.started_at
    return (now - since).total_seconds() < START_S


def far_line(
    view: Job,
    snapshot: NodeSnapshot,
    progress: Progress | None,
    now: dt.datetime,
    cells: int,
) -> Line:
    """Step, bar, share, remaining time, and elapsed time, or words for why one is missing."""
    live, room = view.is_live, cells - width(question(1, cells)) - 1
    left = field("step", step_text(run_step_of(snapshot), progress, live))
    passed = field("elapsed" if live else "ran", units.duration(elapsed_s(view, now)))
    if progress is None or (progress.fraction is None and progress.epoch_fraction is None):
        young = begins(view, snapshot, now)
        text = no_bar_words(progress, live, young)
        text = clip(text, max(10, room - width(left) - width(passed) - 6))
        return spread(join([left, line((text, "dim"))]), passed, room)
    right = [line((label(progress).strip(), "strong"))]
    right += eta_fields(progress) if live else []
    right.append(passed)
    done = progress.epoch_fraction if progress.fraction is None else progress.fraction
    for shown in (right[:count] for count in range(len(right), 0, -1)):
        figures = join(shown)
        space = room - width(left) - width(figures) - 4
        if space >= LEAST_BAR:
            return (*left, ("  ", ""), *bar(done or 0.0, space), ("  ", ""), *figures)
    return fill([left, *right], room, "  ")


def eta_fields(progress: Progress) -> list[Line]:
    """When the job ends; if that is estimated or unknown, also when its epoch ends."""
    epoch = field("epoch ETA", units.duration(progress.epoch_eta_s))
    if progress.fraction is None:
        return [epoch]
    about = "about " if progress.estimated and progress.eta_s is not None else ""
    run = field("ETA", about + units.duration(progress.eta_s))
    return [run, epoch] if progress.estimated and progress.epoch_eta_s is not None else [run]


# --- is it learning -------------------------------------------------------------------------------


def learning_line(
    snapshot: NodeSnapshot, trend: LossTrend | None, cells: int, pause: Pause | None = None
) -> Line:
    """The current loss, its optimizer, and its trend; then the losses of further optimizers.

    Without new steps, there is no trend.
    """
    whose = whose_loss(snapshot)
    parts = [join([loss_field(snapshot, cells >= LABELED), from_log(snapshot)], " ")]
    if pause is not None and not bad_loss(snapshot):
        parts.append(field("trend", units.NOT_AVAILABLE, "dim"))
    elif way := trend_words(trend, snapshot, of_several=bool(whose)):
        parts.append(way)
    parts += other_losses(snapshot)
    parts += validation_losses(snapshot)
    return fill(parts, cells - width(question(2, cells)) - 1)


def loss_field(snapshot: NodeSnapshot, labeled: bool = False) -> Line:
    """The median of the ranks' losses with a label, and its optimizer if there are several.

    `labeled` if the row itself begins with "loss".
    """
    value, state = median_loss(snapshot)
    text = units.loss(value, state) + common_parts(snapshot.ranks)
    whose = whose_loss(snapshot)
    style = "bad" if state in ("nan", "inf") else "strong"
    if labeled and not whose:
        return line((text, style))
    if labeled:
        return field(whose, text, style)
    return field(f"loss ({whose})" if whose else "loss", text, style)


def other_losses(snapshot: NodeSnapshot) -> list[Line]:
    """Losses of further optimizers, from a rank that has several: `SGD 2 0.69`."""
    for rank in snapshot.ranks:
        if len(rank.losses) > 1:
            rest = list(rank.losses.items())[1:]
            return [field(name, units.loss(value), "") for name, value in rest]
    return []


def validation_losses(snapshot: NodeSnapshot) -> list[Line]:
    """The latest validation losses that the script reported: `val_loss 2.60`."""
    values: dict[str, list[float]] = {}
    for rank in snapshot.ranks:
        for name, value in rank.metrics.items():
            if value is not None and is_validation_loss(name):
                values.setdefault(name, []).append(value)
    return [field(name, units.loss(sum(of) / len(of)), "") for name, of in values.items()]


def from_log(snapshot: NodeSnapshot) -> Line:
    """A note if the losses come from output or files; empty if a probe reported one."""
    sources = {rank.loss_source for rank in snapshot.ranks if rank.loss_state is not None}
    return line(("from the log", "dim")) if sources == {"log"} else ()


def cost(viewer_percent: float | None, sampler_percent: float | None) -> tuple[str, str]:
    """CPU used by ddptop itself, in full and in brief; empty if unknown.

    `ddptop overhead 3.1% CPU, sampler 0.9%`, or `ddptop overhead 4.0% CPU` in total.
    """
    if viewer_percent is None:
        return "", ""
    text = f"ddptop overhead {viewer_percent:.1f}% CPU"
    if sampler_percent is not None:
        text += f", sampler {sampler_percent:.1f}%"
    return text, f"ddptop overhead {viewer_percent + (sampler_percent or 0.0):.1f}% CPU"
