"""Derives the cause and outcome of a failed attempt over all nodes of a job. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from msgspec.structs import replace

from ddptop_runner.job import failure
from ddptop_runner.job.decide_nodes import hosts_of_ranks
from ddptop_runner.job.state import JobState
from ddptop_runner.judge.causes import culprit, paragraph
from ddptop_runner.judge.causes.culprit import RankEnd
from ddptop_runner.judge.causes.error_text import NOT_A_VICTIM
from ddptop_runner.judge.checkpoints import CheckpointBook
from ddptop_runner.model.diagnose import AttemptOutcome
from ddptop_runner.model.snapshot import Cause, RankSample
from ddptop_runner.model.spec import JobSpec


def blame(
    job: JobState, spec: JobSpec, ends: Sequence[RankEnd]
) -> tuple[Cause | None, AttemptOutcome | None]:
    """(cause, outcome), blaming the first rank that failed by itself, or else a missing node.

    Args:
        job: the job's state.
        spec: the job.
        ends: the ends of all nodes' ranks.
    """
    hosts = hosts_of_ranks(job, spec)
    failed = {host: life for host, life in job.nodes.items() if life.failed}
    blamed = culprit.find(ends) if ends else None
    gone = [host for host, life in failed.items() if life.outcome is None]
    away = [host for host, life in job.nodes.items() if life.unknown_since is not None]
    is_victim = blamed is not None and blamed.end.victim != NOT_A_VICTIM
    if blamed is None or (is_victim and (gone or away)):
        if not gone:
            return _absence(away, blamed), None
        cause = failed[gone[0]].cause
        return None if cause is None else replace(cause, host=gone[0]), None
    host = hosts.get(blamed.end.rank)
    life = None if host is None else failed.get(host)
    cause = None if life is None else life.cause
    if cause is None or cause.rank != blamed.end.rank:
        cause = paragraph.cause_of(blamed, ends, paragraph.Surroundings(), None)
    elif others := paragraph.others(blamed, ends):
        cause = replace(cause, summary=f"{cause.summary} {others}")
    return replace(cause, host=host), None if life is None else life.outcome


def _absence(away: Sequence[str], blamed: culprit.Culprit | None) -> Cause:
    """The cause if nodes were unreachable and no failed rank failed by itself."""
    who = ", ".join(away) or "a node"
    other = "" if blamed is None else f" while rank {blamed.end.rank} failed: it lost a connection"
    return Cause(kind="node", summary=f"Cannot reach {who}{other}.", host=away[0] if away else None)


def hang_without(away: Sequence[str], hang: Cause) -> Cause:
    """The cause of a hang, given nodes that have been away for long."""
    if not away:
        return hang
    words = f"{', '.join(away)} cannot be reached, and the other nodes cannot continue."
    return Cause(
        kind="node", summary=f"{words} {hang.summary}", host=away[0], evidence=hang.evidence
    )


def with_achievements(
    outcome: AttemptOutcome,
    cause: Cause,
    job: JobState,
    ranks: Sequence[RankSample],
    checkpoints: CheckpointBook,
) -> tuple[AttemptOutcome, Cause]:
    """Both, completed with all nodes' progress (only rank 0 may save) and the lost work.

    Args:
        outcome: what is known about the end.
        cause: names its host.
        job: the job's state.
        ranks: all nodes' ranks, as last seen in the attempt.
        checkpoints: knows when the last one was saved.
    """
    lives = [life.outcome for life in job.nodes.values() if life.outcome is not None]
    steps = [one.steps for one in lives if one.steps is not None]
    steps += [one.step for one in ranks if one.step is not None and one.step_source != "log"]
    outcome = failure.with_achievements(
        dataclasses.replace(outcome, steps=max(steps, default=outcome.steps)),
        cause.kind,
        [*(one.global_step for one in lives), *(one.run_step for one in ranks)],
        checkpoints.last,
        job.first_step_after_s,
    )
    if cause.host and cause.kind not in ("node", "launch"):
        cause = replace(cause, summary=f"On {cause.host}: {cause.summary}")
    lost = checkpoints.work_lost(outcome.attempt, outcome.steps, outcome.lived_s)
    return outcome, failure.with_work_lost(cause, lost)
