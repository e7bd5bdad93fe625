"""`ddptop status`: one job in full."""

from __future__ import annotations

from ddptop.commands.unguarded import adopt_if_unguarded
from ddptop.draw.header import (
    facts_of,
    launcher_fields,
    loss_fields,
    progress_fields,
    status_fields,
)
from ddptop.draw.panels import rank_facts
from ddptop.job.figures.ranks import rank_table
from ddptop.job.progress import progress_of, source_words
from ddptop.job.ranks import (
    counts_own,
    has_several,
    launcher_in_words,
    node_in_words,
)
from ddptop.job.record import Job, own_job
from ddptop.job.series import Tail
from ddptop.output import put_folded, put_json, table
from ddptop.style import listed, plain
from ddptop_runner.base.units import duration, local_time, name_ranks, plural
from ddptop_runner.devices.words import devices_in_words
from ddptop_runner.job.resume_text import resumed
from ddptop_runner.jobs.contract import job_status
from ddptop_runner.jobs.slurm_queue import find
from ddptop_runner.model.snapshot import NodeStatus
from ddptop_runner.store.logs import last_words

DETAILS = 16
"""Maximum number of detail lines below the table of ranks."""
FAILED_LINES = 15
"""Lines shown of the failed rank's log."""


def run(job: str | None, as_json: bool) -> int:
    """Print one job as text or JSON."""
    view = find(job)
    if as_json:
        put_json(job_status(view))
    else:
        put_folded(describe(own_job(view)), 4)
    adopt_if_unguarded(view)
    return 0


def describe(job: Job) -> str:
    """The job as text with a table of ranks."""
    snapshot, now, progress = job.snapshot, job.read_at, progress_of(job)
    state, *more = status_fields(job, now)
    facts = [*more, *facts_of(job, now), ((f"started {local_time(snapshot.started_at)}", ""),)]
    lines = [f"{job.name}: {listed([((plain(state).partition(' ')[2], ''),), *facts])}"]
    lines.append(f"  {job.command}")
    if job.state == "lost" and job.is_abandoned:
        lines.append(
            f"  it ran on {job.host}, a host or container that no longer exists;"
            f" run ddptop restart {job.name} to relaunch it here,"
            f" or ddptop rm {job.name} to delete it"
        )
    cause, of = snapshot.cause, ""
    if cause is None and job.is_live:
        cause, of = snapshot.previous_cause, "previous attempt: "
    if cause is not None:
        lines.append(f"  {of}{cause.summary}")
        if cause.evidence:
            lines.append(f"  evidence: {cause.evidence}")
    if snapshot.resume is not None:
        lines.append(f"  {resumed(snapshot.resume)}")
    source = "" if progress is None else f", {source_words(progress)}"
    lines.append(f"  progress: {listed(progress_fields(job, progress, now))}{source}")
    lines.append(f"  {listed(loss_fields(job, None))}")
    if snapshot.launcher is not None:
        launcher = launcher_fields(launcher_in_words(job), snapshot.launcher)
        lines.append(f"  launcher: {listed(launcher)}")
        if not snapshot.ranks and job.is_live:
            lines.append(
                "  ranks: none yet; each appears once it starts training"
                f" (see ddptop logs {job.name})"
            )
    lines += _restarts(job)
    if devices := [one for one in job.spec.devices or () if one.index not in snapshot.set_aside]:
        lines.append(f"  devices: {devices_in_words(devices)}")
    lines += _hosts(job)
    if note := _device_note(job):
        lines.append(f"  device metrics: {note}")
    lines += [f"  {alert.severity}: {alert.message}" for alert in snapshot.alerts]
    if snapshot.ranks:
        headers, rows, right = rank_table(snapshot.ranks)
        if has_several(snapshot):
            headers.append("HOST")
            for row, rank in zip(rows, snapshot.ranks, strict=True):
                row.append(rank.host)
        lines += ["", table(headers, rows, right=right)]
        if any(counts_own(rank) for rank in snapshot.ranks):
            lines.append("  * steps taken in this attempt; its starting step is unknown")
    lines += _details(job)
    lines += _failing_lines(job)
    return "\n".join(lines)


def _hosts(job: Job) -> list[str]:
    """The nodes of a job on several machines; if there are many, only the first ones."""
    nodes = [] if job.spec.placement is None else job.spec.placement.nodes
    status = {node.host: node for node in job.snapshot.nodes}
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


def _details(job: Job) -> list[str]:
    """Facts about ranks that are not in the table; ranks with the same facts share a line."""
    found: dict[str, list[int]] = {}
    for rank in job.snapshot.ranks:
        parts = rank_facts(rank, job.snapshot.launcher)
        if details := "; ".join(map(plain, parts)):
            found.setdefault(details, []).append(rank.rank)
    lines = [f"  {name_ranks(ranks)}: {details}" for details, ranks in found.items()]
    more = len(lines) - DETAILS
    return lines if more <= 0 else [*lines[:DETAILS], f"  and {more} more"]


def _device_note(job: Job) -> str | None:
    """Why a live job's devices are unknown, unless an alert explains it."""
    explained = any(alert.id in ("gpu-lost", "queued") for alert in job.snapshot.alerts)
    return None if explained or not job.is_live else job.snapshot.device_note


def _restarts(job: Job) -> list[str]:
    """What the restart policy does, and why, and when its count was last reset."""
    snapshot, lines = job.snapshot, list[str]()
    if snapshot.policy is not None:
        what = "not restarted" if job.state == "failed" else "last restart"
        if snapshot.restart_at is not None and job.is_live:
            left_s = (snapshot.restart_at - job.read_at).total_seconds()
            what = f"next attempt {f'in {duration(left_s)}' if left_s >= 1 else 'now'}"
        lines.append(f"  {what}: {snapshot.policy}")
    if snapshot.restarts_refilled is not None:
        lines.append(f"  restart count last reset at {snapshot.restarts_refilled}")
    return lines


def _failing_lines(job: Job) -> list[str]:
    snapshot, cause = job.snapshot, job.snapshot.cause
    if cause is None or snapshot.attempt is None or (cause.rank is None and not snapshot.launcher):
        return []
    owner, lines = last_words(job.folder, snapshot.attempt, cause.rank, FAILED_LINES)
    from ddptop.draw.story import last_output  # for failed jobs only

    title, texts = last_output(Tail(snapshot.attempt, owner, tuple(lines)), FAILED_LINES)
    return ["", f"{title}:", *(f"  {text}" for text in texts)] if texts else []
