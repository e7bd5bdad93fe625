"""Rebuilds the snapshot of a job whose file is damaged, from the history and its processes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.base.start import own_words
from ddptop_runner.host import procs
from ddptop_runner.model.snapshot import Alert, Event, NodeSnapshot, ProcessId, RankSample
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.model.words import JobState
from ddptop_runner.store import logs
from ddptop_runner.store.history import HistoryReader

_ENDS: dict[str, JobState] = {"finished": "finished", "failed": "failed", "stopped": "stopped"}
_BEGINNINGS = frozenset({"launched", "attempt_started", "rank_started", "training"})
_BUDGET = re.compile(r"\(restart (\d+) of \d+\)")


def substitute(folder: RunFolder, spec: JobSpec, words: str) -> NodeSnapshot:
    """The snapshot as far as it can be told without its file.

    Args:
        folder: the job's run folder.
        spec: the job.
        words: what is wrong with the file; becomes an alert.
    """
    events: Sequence[Event] = ()
    try:
        events = HistoryReader(folder.history_db).events()
    except DdptopError:
        words = f"{words}; the history cannot be read either"
    alert = Alert(id="damaged-file", severity="warning", message=words, since=utc_now())
    processes = _processes(folder, spec.job_id)
    return from_events(spec, events, alert, processes, logs.attempts(folder))


def from_events(
    spec: JobSpec,
    events: Sequence[Event],
    alert: Alert,
    processes: dict[str, ProcessId],
    attempts_with_logs: Sequence[int] = (),
) -> NodeSnapshot:
    """As `substitute`, of what was read."""
    state: JobState = "running" if events else "starting"
    ended: Event | None = None
    used = 0
    for event in events:
        if event.type in _ENDS:
            state, ended = _ENDS[event.type], event
        elif event.type in _BEGINNINGS:
            state, ended = "running", None
        elif event.type == "stopping":
            state = "stopping"
        elif event.type == "group_restart" and (found := _BUDGET.search(event.message)):
            used = int(found[1])
    attempts = [event.attempt for event in events if event.attempt is not None]
    attempt = max([*attempts, *attempts_with_logs], default=None)
    return NodeSnapshot(
        job=spec.job,
        job_id=spec.job_id,
        host=spec.host,
        seq=0,
        ts=events[-1].ts if events else spec.created_at,
        state=state,
        attempt=attempt,
        restarts_used=used,
        restarts_left=max(0, spec.max_restarts - used),
        world_size=None if spec.is_command else spec.nproc,
        started_at=spec.created_at,
        ended_at=None if ended is None else ended.ts,
        exit_code=None if ended is None else _exit_code(ended),
        guardian=processes.get("guardian"),
        supervisor=processes.get("supervisor"),
        ranks=_ranks(spec, [event for event in events if event.attempt == attempt]),
        alerts=[alert],
    )


def _exit_code(end: Event) -> int | None:
    if end.type == "finished":
        return 0
    return end.exit_code or 1 if end.type == "failed" else None


def _ranks(spec: JobSpec, events: Sequence[Event]) -> list[RankSample]:
    """The ranks of the latest attempt, with their pids and exits."""
    ranks: dict[int, RankSample] = {}
    for event in events:
        if event.rank is None or event.type not in ("rank_started", "rank_exited"):
            continue
        ranks[event.rank] = RankSample(
            rank=event.rank,
            local_rank=event.rank,
            host=spec.host,
            pid=event.pid,
            exit_code=event.exit_code,
            signal=event.signal,
        )
    return [ranks[rank] for rank in sorted(ranks)]


def _processes(folder: RunFolder, job_id: str) -> dict[str, ProcessId]:
    """The living guardian and supervisor, by their command lines."""
    found = {}
    for pid in procs.pids_of_job(job_id):
        words = own_words(procs.argv(pid))
        if words[1:2] == [str(folder.path)]:
            found[words[0]] = procs.identify(pid)
    return found
