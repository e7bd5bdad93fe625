"""`ddptop status`: one job in full."""

from __future__ import annotations

from ddptop.commands.unguarded import adopt_if_unguarded
from ddptop.job.figures.ranks import plain_table
from ddptop.job.hosts import has_several, node_in_words
from ddptop.job.progress import in_words
from ddptop.job.ranks import (
    counts_own,
    launcher_in_words,
    parts_in_words,
    replicas_in_words,
    source_in_words,
)
from ddptop.job.record import Job, own_job
from ddptop.job.status import UNGUARDED, loss_remark, pause_in_words, pause_why
from ddptop.job.urgency import is_stale
from ddptop.output import count, put_folded, put_json, table
from ddptop_runner.base import units
from ddptop_runner.base.paths import LAUNCHER
from ddptop_runner.base.units import (
    NOT_AVAILABLE,
    duration,
    local_time,
    name_ranks,
    percent,
    plural,
    size,
)
from ddptop_runner.devices.words import devices_in_words
from ddptop_runner.jobs.contract import JobStatus, job_status
from ddptop_runner.jobs.slurm_queue import find
from ddptop_runner.model.run_step import step_beside
from ddptop_runner.model.snapshot import LauncherSample, NodeStatus
from ddptop_runner.store.logs import last_words

DETAILS = 16
"""Maximum number of detail lines below the table of ranks."""
FAILED_LINES = 15
"""Lines shown of the failed rank's log."""
MISSED_AFTER_S = 60.0
"""A job that trains this long without a checkpoint gets a note."""


def run(job: str | None, as_json: bool) -> int:
    """Print one job as text or JSON."""
    view = find(job)
    status = job_status(view)
    if as_json:
        put_json(status)
    else:
        put_folded(describe(own_job(view), status), 4)
    adopt_if_unguarded(view)
    return 0


def describe(view: Job, status: JobStatus) -> str:
    """The job as text with a table of ranks."""
    elapsed = duration(view.elapsed_s(view.read_at))
    attempt = NOT_AVAILABLE if status.attempt is None else str(status.attempt)
    parts = [
        f"{status.job}: {_state(view, status)}",
        f"attempt {attempt}",
        _budget(status),
        f"started {local_time(status.started_at)}, elapsed {elapsed}",
    ]
    lines = [", ".join(parts), f"  {status.command}"]
    if view.state == "lost" and view.is_abandoned:
        lines.append(
            f"  it ran on {view.host}, a host or container that no longer exists;"
            f" run ddptop restart {view.name} to relaunch it here,"
            f" or ddptop rm {view.name} to delete it"
        )
    if view.is_live and status.guarded is False:
        lines.append(f"  {UNGUARDED}; the ranks are still running")
    if is_stale(view):
        lines.append(f"  stale: the values below are {duration(status.snapshot_age_s)} old")
    if status.cause is not None:
        lines.append(f"  {status.cause.summary}")
        if status.cause.evidence:
            lines.append(f"  evidence: {status.cause.evidence}")
    elif view.is_live and status.previous_cause is not None:
        lines.append(f"  previous attempt: {status.previous_cause.summary}")
        if status.previous_cause.evidence:
            lines.append(f"  evidence: {status.previous_cause.evidence}")
    if (how_far := in_words(status.progress)) is not None:
        lines.append(f"  progress: {how_far}")
    if status.launcher is not None:
        lines.append(f"  launcher: {launcher_in_words(view)}, {_launcher(status.launcher)}")
    lines += _no_ranks(view, status)
    lines += _next(view, status)
    if devices := [one for one in view.spec.devices or () if one.index not in status.set_aside]:
        lines.append(f"  devices: {devices_in_words(devices)}")
    lines += _hosts(view)
    if note := _device_note(view, status):
        lines.append(f"  device metrics: {note}")
    if saved := _checkpoint(view, status):
        lines.append(f"  checkpoint: {saved}")
    lines += [f"  {alert.severity}: {alert.message}" for alert in status.alerts]
    if status.ranks:
        own = any(counts_own(rank) for rank in status.ranks)
        headers, rows, right = plain_table(status.ranks)
        if has_several(view.snapshot):
            headers.append("HOST")
            for row, rank in zip(rows, status.ranks, strict=True):
                row.append(rank.host)
        lines += ["", table(headers, rows, right=right)]
        if own:
            lines.append("  * steps taken in this attempt; its starting step is unknown")
    lines += _details(status)
    lines += _failing_lines(view, status)
    return "\n".join(lines)


def _hosts(view: Job) -> list[str]:
    """The nodes of a job on several machines; if there are many, only the first ones."""
    nodes = [] if view.spec.placement is None else view.spec.placement.nodes
    status = {} if view.snapshot is None else {node.host: node for node in view.snapshot.nodes}
    nodes = sorted(nodes, key=lambda node: _is_well(status.get(node.host)))
    lines = []
    for node in nodes[:DETAILS]:
        devices = devices_in_words(node.devices) if node.devices else "no devices"
        parts = [plural(node.nproc, "rank"), devices, node_in_words(status.get(node.host))]
        lines.append(f"  host {node.host}: {', '.join(part for part in parts if part)}")
    more = len(nodes) - DETAILS
    return lines if more <= 0 else [*lines, f"  and {more} more hosts"]


def _is_well(node: NodeStatus | None) -> bool:
    return node is None or node.state not in ("unreachable", "lost")


def _state(view: Job, status: JobStatus) -> str:
    """`running`; `no step for 25 s (rank 0 is evaluating)`."""
    pause = status.pause
    if remark := loss_remark(view):
        return f"{status.state} ({remark})"
    if pause is None or status.state == "hung":
        return status.state
    why = pause_why(pause, view.read_at)
    return f"{pause_in_words(pause, view.read_at)}{f' ({why})' if why else ''}"


def _launcher(launcher: LauncherSample) -> str:
    """`pid 4711, running; process tree: CPU 187%, 2.1 GiB`."""
    end = "" if launcher.exit_code is None else f" (exit {launcher.exit_code})"
    end = end if launcher.signal is None else f" ({launcher.signal})"
    text = f"pid {count(launcher.pid)}, {launcher.state}{end}"
    if launcher.cpu_percent is None:
        return text
    cpu, memory = percent(launcher.cpu_percent), size(launcher.rss_bytes)
    return f"{text}; process tree: CPU {cpu}, {memory}"


def _no_ranks(view: Job, status: JobStatus) -> list[str]:
    """What a command without ranks waits for."""
    if status.launcher is None or status.ranks or not view.is_live:
        return []
    return [
        f"  ranks: none yet; each appears once it starts training (see ddptop logs {status.job})"
    ]


def _details(status: JobStatus) -> list[str]:
    """Facts about ranks that are not in the table; ranks with the same facts share a line."""
    found: dict[str, list[int]] = {}
    for rank in status.ranks:
        losses = ", ".join(f"{name} {units.loss(loss)}" for name, loss in rank.losses.items())
        parts = [
            f"losses {losses}" if len(rank.losses) > 1 else "",
            f"loss is the {of}" if (of := parts_in_words(rank)) else "",
            replicas_in_words(rank, status.launcher),
            f"imports {', '.join(rank.frameworks)}" if rank.frameworks else "",
            source_in_words(rank),
        ]
        if details := "; ".join(filter(None, parts)):
            found.setdefault(details, []).append(rank.rank)
    lines = [f"  {name_ranks(ranks)}: {details}" for details, ranks in found.items()]
    more = len(lines) - DETAILS
    return lines if more <= 0 else [*lines[:DETAILS], f"  and {more} more"]


def _device_note(view: Job, status: JobStatus) -> str | None:
    """Why a live job's devices are unknown, unless an alert explains it."""
    if not view.is_live or view.snapshot is None:
        return None
    if any(alert.id in ("gpu-lost", "queued") for alert in status.alerts):
        return None
    return view.snapshot.device_note


def _budget(status: JobStatus) -> str:
    """`1 of 3 restarts used; count last reset at step 120`."""
    text = f"{status.restarts_used} of {status.restarts_used + status.restarts_left} restarts used"
    if status.restarts_refilled is not None:
        text += f"; count last reset at {status.restarts_refilled}"
    return text


def _next(view: Job, status: JobStatus) -> list[str]:
    """What the restart policy does, and why."""
    if status.policy is None:
        return []
    if status.restart_at is not None:
        left_s = (status.restart_at - view.read_at).total_seconds()
        when = f"in {duration(left_s)}" if left_s >= 1 else "now"
        return [f"  next attempt {when}: {status.policy}"]
    what = "not restarted" if status.state == "failed" else "last restart"
    return [f"  {what}: {status.policy}"]


def _checkpoint(view: Job, status: JobStatus) -> str | None:
    """`epoch-3.pt at step 120, 4s ago (12.3 MiB)`; None if a checkpoint is not yet overdue."""
    saved = status.checkpoint
    if saved is None:
        trains_s = (view.read_at - status.started_at).total_seconds() if status.step else 0.0
        seen = view.is_live and view.spec.probe and trains_s >= MISSED_AFTER_S
        return "none yet" if seen else None
    step = step_beside(saved, status.attempt)
    at = "" if step is None else f" at {step}"
    ago = duration(max(0.0, (view.read_at - saved.at).total_seconds()))
    size_ = "" if saved.size_bytes is None else f" ({size(saved.size_bytes)})"
    return f"{saved.name}{at}, {ago} ago{size_}"


def _failing_lines(view: Job, status: JobStatus) -> list[str]:
    cause = status.cause
    if cause is None or status.attempt is None or (cause.rank is None and not status.launcher):
        return []
    owner, lines = last_words(view.folder, status.attempt, cause.rank, FAILED_LINES)
    if not lines:
        return []
    who = "the command" if owner == LAUNCHER else f"rank {owner}"
    return ["", f"last lines from {who}:", *(f"  {line}" for line in lines)]
