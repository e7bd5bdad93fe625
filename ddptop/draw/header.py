"""Draws a job's header: one row each for its status, its progress, and its loss."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from ddptop.job.progress import (
    LEAST_BAR,
    eta,
    label,
    median_loss,
    no_bar_words,
    progress_of,
    step_text,
    steps_per_s,
    validation_losses,
)
from ddptop.job.ranks import common_parts, hosts_in_words, hosts_of, is_rank_too, launcher_name
from ddptop.job.record import Job
from ddptop.job.series import LossTrend, bad_loss, losses_of, trend_words, whose_loss
from ddptop.job.status import (
    NO_PROBLEMS,
    NONE_DETECTED,
    age_words,
    gone_words,
    guard_words,
    loss_remark,
    pause_why,
    pause_words,
    rank_state,
    state_of,
    waits_in_words,
)
from ddptop.style import Line, bar, clip, field, fill, fit, join, line, plain, spread, width
from ddptop_runner.base import units
from ddptop_runner.judge.balance.imbalance import seen
from ddptop_runner.model.run_step import of_snapshot as run_step_of
from ddptop_runner.model.run_step import step_beside
from ddptop_runner.model.snapshot import LauncherSample, NodeSnapshot, Progress, RankSample

LABELED = 110
"""Minimum width for labels at the start of rows."""

LATE_S = 5.0
"""A last step this long ago is drawn as a warning if the rank is hung."""


def header_lines(
    job: Job, now: dt.datetime, cells: int, trend: LossTrend | None = None, most: int = 6
) -> list[Line]:
    """Rows for status, progress, loss, and facts that need their own row, at most `most`.

    A foreign job has rows for its output and command, and none for what its output does not show.
    """
    snapshot, progress = job.snapshot, progress_of(job)
    if not job.has_snapshot:
        text = "no snapshot yet: launching processes"
        if not job.is_live:
            text = f"it never started; see {job.folder.supervisor_log}"
        return [fit(line(" ", state_of(job), "   ", (text, "dim")), cells)]
    counts = not job.is_foreign or snapshot.step is not None or progress is not None
    alive, facts = status_fields(job, now), facts_of(job, now)
    if not counts:
        alive.append(field("elapsed" if job.is_live else "ran", units.duration(job.elapsed_s(now))))
    room = cells - width(question("", cells)) - 1
    if job.state == "running" and not snapshot.alerts and snapshot.step is not None:
        calm = line((NONE_DETECTED if job.is_foreign else NO_PROBLEMS, "dim"))
        if width(join([*alive, *facts, calm])) <= room:
            facts.append(calm)
    left, right = join(alive), join(facts)
    fits = width(left) + 3 + width(right) <= room
    if fits:
        status: Line = (*spread(left, right, room), (" ", ""))
    else:
        status = left if most > 3 else (*left, ("   ", ""), *fill(facts, room - width(left) - 3))
    rows = [("status", status)]
    if job.state == "queued":
        in_slurm = "waiting for Slurm to start it again"
        text = in_slurm if job.in_slurm_queue else f"not started: {waits_in_words(job)}"
        rows.append(("", line((text, "dim"))))
    elif job.state == "restarting":
        rows.append(("progress", restart_line(snapshot, now)))
    elif counts:
        rows.append(("progress", far_line(job, progress, now, room)))
    has_loss = any(rank.loss_state for rank in snapshot.ranks)
    if has_loss or not (job.is_foreign or job.state == "queued"):
        learning = loss_fields(job, trend, is_labeled=cells >= LABELED)
        rows.append(("loss", fill(learning, room)))
    if not fits and most > 3:
        rows.append(("", fill(facts, room)))
    if (launcher := snapshot.launcher) and not is_rank_too(launcher, snapshot.ranks):
        name = launcher_name(job) or launcher.name
        rows.append(("launcher", fill(launcher_fields(name, launcher), room)))
    if job.is_foreign:
        for name, text in (("output", job.output or units.NOT_AVAILABLE), ("command", job.command)):
            text = clip(text, room - len(name) - 1)
            rows.append((name, line(text) if cells >= LABELED else field(name, text, "")))
    return [fit((*question(name, cells), *row), cells) for name, row in rows[:most]]


def question(name: str, cells: int) -> Line:
    """The label in front of a row, if there is room."""
    return line((f" {name:<9} ", "title")) if cells >= LABELED else line(" ")


LONGEST_NAME = 20
"""Maximum width of a launcher's name, in cells."""


def launcher_fields(name: str, launcher: LauncherSample) -> list[Line]:
    """The process that a command started: its state, and what its whole tree uses."""
    return [
        line((clip(name, LONGEST_NAME), "strong")),
        line(rank_state(launcher.state, launcher.exit_code, launcher.signal)),
        field("whole tree CPU", units.percent(launcher.cpu_percent), ""),
        field("RSS", units.size(launcher.rss_bytes), ""),
        field("pid", units.NOT_AVAILABLE if launcher.pid is None else str(launcher.pid), ""),
    ]


# --- is it alive ----------------------------------------------------------------------------------


def status_fields(job: Job, now: dt.datetime) -> list[Line]:
    """State and pace; or how long no step has finished, how long it waits, or how it ended."""
    state, style = state_of(job)
    parts = [line((state, style))]
    if not job.is_live:
        parts.append(line((gone_words(job) if job.is_foreign else loss_remark(job), "strong")))
        if job.ended_at is not None:
            parts.append(field("ended", f"{job.ended_at.astimezone():%b %d %H:%M:%S}", ""))
        return [part for part in parts if plain(part)]
    if job.state == "queued":
        since = (alert.since for alert in job.snapshot.alerts if alert.id == "queued")
        waited_s = (now - next(since, job.snapshot.started_at)).total_seconds()
        return [*parts, field("waited", units.duration(waited_s))]
    if job.pause is not None and job.state != "hung":
        text = f"{state[:2]}{pause_words(job.pause, now)}"
        return [line((text, style)), line((pause_why(job.pause, now), "strong"))]
    parts.append(line((job.stopping or "", "warn")))
    if (pace := steps_per_s(job.snapshot.ranks)) is not None:
        parts.append(line((units.rate(pace), "strong")))
    parts.append(last_step(job.snapshot.ranks, now))
    return [part for part in parts if plain(part)]


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


def facts_of(job: Job, now: dt.datetime) -> list[Line]:
    """Facts that rarely change, worst first: stale values, guard, attempt, restarts, host."""
    snapshot, parts = job.snapshot, list[Line]()
    if stale := age_words(job):
        parts.append(line((f"▲ {stale}", "warn")))
    guard = guard_words(job)
    if guard[1] == "warn":
        parts.append(line(guard))
    if job.on_other_host:
        parts.append(line((f"on host {snapshot.host}", "")))
    if len(hosts := hosts_of(snapshot)) > 1:
        parts.append(field("hosts", hosts_in_words(hosts), ""))
    if snapshot.set_aside:
        gpus = "GPU" if len(snapshot.set_aside) == 1 else "GPUs"
        parts.append(line((f"▲ {gpus} {units.ranks(snapshot.set_aside)} set aside", "warn")))
    if snapshot.attempt is not None:
        parts.append(field("attempt", str(snapshot.attempt), ""))
    if not job.is_foreign:
        used, left = snapshot.restarts_used, snapshot.restarts_left
        parts.append(field("restarts", f"{used} used, {left} left", ""))
    if saved := checkpoint_field(snapshot, now):
        parts.append(saved)
    if snapshot.world_size is not None or snapshot.launcher is not None or job.is_foreign:
        size, here = units.count(snapshot.world_size), len(snapshot.ranks)
        if job.is_foreign and snapshot.world_size != here:
            size += f", {here} here"
        parts.append(field("world size", size, ""))
    if job.foreign is not None and job.foreign.rendezvous:
        parts.append(field("rendezvous", job.foreign.rendezvous, ""))
    if guard[1] == "dim":
        parts.append(line(guard))
    return parts


def checkpoint_field(snapshot: NodeSnapshot, now: dt.datetime) -> Line:
    """`checkpoint step 120, 4 s ago`; empty if none was detected."""
    saved = snapshot.checkpoint
    if saved is None:
        return ()
    step = step_beside(saved, snapshot.attempt)
    ago = f"{units.brief_duration(max(0.0, (now - saved.at).total_seconds()))} ago"
    return field("checkpoint", ago if step is None else f"{step}, {ago}", "")


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


def progress_fields(job: Job, progress: Progress | None, now: dt.datetime) -> list[Line]:
    """Step, share, remaining time, and elapsed time, or words for why one is missing."""
    step = step_text(run_step_of(job.snapshot), progress, job.is_live)
    parts = [field("step", step)]
    if progress is None or (progress.fraction is None and progress.epoch_fraction is None):
        parts.append(line((no_bar_words(progress), "dim")))
    else:
        parts.append(line((label(progress), "strong")))
        parts += eta_fields(progress) if job.is_live else []
    elapsed = units.duration(job.elapsed_s(now))
    return [*parts, field("elapsed" if job.is_live else "ran", elapsed)]


def far_line(job: Job, progress: Progress | None, now: dt.datetime, room: int) -> Line:
    """The fields of progress, with a bar of what is left of `room`."""
    left, *right = progress_fields(job, progress, now)
    if progress is None or (progress.fraction is None and progress.epoch_fraction is None):
        words, passed = right
        text = clip(plain(words), max(10, room - width(left) - width(passed) - 6))
        return spread(join([left, line((text, "dim"))]), passed, room)
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
    run = field("ETA", eta(progress))
    return [run, epoch] if progress.estimated and progress.epoch_eta_s is not None else [run]


# --- is it learning -------------------------------------------------------------------------------


def loss_fields(job: Job, trend: LossTrend | None, *, is_labeled: bool = False) -> list[Line]:
    """The current loss, its optimizer, and its trend; then the losses of further optimizers.

    Without new steps, there is no trend. `is_labeled`: the row itself begins with "loss".
    """
    snapshot, whose = job.snapshot, whose_loss(job.snapshot)
    parts = [join([loss_field(snapshot, is_labeled), from_log(snapshot)], " ")]
    if job.pause is not None and not bad_loss(snapshot.ranks):
        parts.append(field("trend", units.NOT_AVAILABLE, "dim"))
    elif any(alert.id == "exploding-loss" for alert in snapshot.alerts):
        pass  # beside it, a trend within the noise of such losses would only confuse
    elif job.is_live and (way := trend_words(trend, snapshot, of_several=bool(whose))):
        parts.append(way)
    others = dict([*losses_of(snapshot).items()][1:]) | validation_losses(snapshot)
    return [*parts, *(field(name, units.loss(value), "") for name, value in others.items())]


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


def from_log(snapshot: NodeSnapshot) -> Line:
    """A note if the losses come from output or files; empty if a probe reported one."""
    sources = {rank.loss_source for rank in snapshot.ranks if rank.loss_state is not None}
    return line(("from the log", "dim")) if sources == {"log"} else ()
