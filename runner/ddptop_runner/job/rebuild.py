"""Rebuilds the snapshot of a job whose file is damaged, from its log and its processes."""

from __future__ import annotations

from collections.abc import Sequence

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.exit_status import split_status
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.base.start import own_words
from ddptop_runner.host import procs
from ddptop_runner.job.event_log import memory_of
from ddptop_runner.job.old_events import typed
from ddptop_runner.job.state import RankLife
from ddptop_runner.job.transition import fold
from ddptop_runner.model.snapshot import Alert, Event, NodeSnapshot, ProcessId, RankSample
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.store import logs
from ddptop_runner.store.history_reader import HistoryReader


def rebuild(folder: RunFolder, spec: JobSpec, damage: str) -> NodeSnapshot:
    """The snapshot as far as it is known without its file.

    Args:
        folder: the job's run folder.
        spec: the job.
        damage: what is wrong with the file; becomes an alert.
    """
    rows: Sequence[Event] = ()
    try:
        rows = HistoryReader(folder.history_db).events(silent=True)
    except DdptopError:
        damage = f"{damage}; the history cannot be read either"
    alert = Alert(id="damaged-file", severity="warning", message=damage, since=utc_now())
    processes = _processes(folder, spec.job_id)
    return from_events(spec, rows, alert, processes, logs.attempts(folder))


def from_events(
    spec: JobSpec,
    rows: Sequence[Event],
    alert: Alert,
    processes: dict[str, ProcessId],
    attempts_with_logs: Sequence[int] = (),
) -> NodeSnapshot:
    """As `rebuild`, of what was read."""
    times = [row.ts for row in rows]
    state = fold(zip(times, typed(rows), strict=True))
    known = [*attempts_with_logs, *([] if state.attempt is None else [state.attempt])]
    return NodeSnapshot(
        job=spec.job,
        job_id=spec.job_id,
        host=spec.host,
        seq=0,
        ts=times[-1] if times else spec.created_at,
        state=state.phase,
        attempt=max(known, default=None),
        restarts_used=state.budget.used,
        restarts_left=max(0, spec.max_restarts - state.budget.used),
        world_size=None if spec.is_command else spec.nproc,
        started_at=spec.created_at,
        attempt_started_at=state.attempt_started_at,
        ended_at=state.ended_at,
        exit_code=state.exit_code,
        cause=state.cause,
        previous_cause=state.previous_cause,
        guardian=processes.get("guardian"),
        supervisor=processes.get("supervisor"),
        ranks=[_rank(spec, rank, life) for rank, life in sorted(state.ranks.items())],
        requeue=state.requeue,
        checkpoint=state.checkpoint,
        policy=state.policy,
        restart_at=None if state.restart is None else state.restart.at,
        alerts=[alert, *state.alerts_at(utc_now())],
        memory=memory_of(state, rows[-1].seq if rows else 0),
    )


def _rank(spec: JobSpec, rank: int, life: RankLife) -> RankSample:
    exit_code, signal = (None, None) if life.status is None else split_status(life.status)
    return RankSample(
        rank=rank,
        local_rank=rank,
        host=spec.host,
        pid=life.pid,
        exit_code=exit_code,
        signal=signal,
    )


def _processes(folder: RunFolder, job_id: str) -> dict[str, ProcessId]:
    """The living guardian and supervisor, by their command lines."""
    found = {}
    for pid in procs.pids_of_job(job_id):
        words = own_words(procs.argv(pid))
        if words[1:2] == [str(folder.path)]:
            found[words[0]] = procs.identify(pid)
    return found
