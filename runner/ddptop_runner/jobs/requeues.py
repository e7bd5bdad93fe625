"""Counts how often a job was requeued in Slurm, and decides whether it may be again."""

from __future__ import annotations

import contextlib
import datetime as dt
from pathlib import Path

import msgspec

from ddptop_runner.base import bounded
from ddptop_runner.base.files import write_atomic
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.judge.restarts.policy import History, record
from ddptop_runner.model import run_step
from ddptop_runner.model.diagnose import AttemptOutcome
from ddptop_runner.model.snapshot import Checkpoint, NodeSnapshot
from ddptop_runner.model.words import Base

IDLE_REQUEUES = 3
"""How many requeues in a row may pass without progress."""


class Requeues(Base, frozen=True, kw_only=True):
    """A job's requeue counts, stored in its run folder."""

    slurm_job: str
    count: int = 0
    without_progress: int = 0
    """Requeues in a row without progress."""
    attempt: int | None = None
    """The attempt at the last requeue."""
    step: int | None = None
    """The furthest known step of the run at a requeue."""
    checkpoint_step: int | None = None
    """The same of its checkpoints."""
    saved_at: dt.datetime | None = None
    """When the last checkpoint known at a requeue was saved."""


def requeued(before: Requeues, snapshot: NodeSnapshot | None) -> Requeues:
    """The counts after one more requeue, of a job last seen in that state.

    Progress is what refills the budget of restarts; unknown progress does not count as none.
    """
    if snapshot is None or snapshot.attempt == before.attempt:  # it did not run since
        return msgspec.structs.replace(
            before, count=before.count + 1, without_progress=before.without_progress + 1
        )
    saved = snapshot.checkpoint
    is_new = saved is not None and saved.at != before.saved_at
    outcome = _outcome(snapshot, saved if is_new else None, saves=saved is not None)
    past = History(furthest_step=before.step, checkpointed_step=before.checkpoint_step)
    now = record(past, outcome)
    last = now.failed[-1]
    return Requeues(
        slurm_job=before.slurm_job,
        count=before.count + 1,
        without_progress=0 if last.progress else before.without_progress + last.in_vain,
        attempt=snapshot.attempt,
        step=now.furthest_step,
        checkpoint_step=now.checkpointed_step,
        saved_at=None if saved is None else saved.at,
    )


def _outcome(snapshot: NodeSnapshot, saved: Checkpoint | None, *, saves: bool) -> AttemptOutcome:
    """What the restart policy considers, for an attempt that has to leave its nodes.

    Args:
        snapshot: the job's last.
        saved: the checkpoint that it saved since the last requeue, if any.
        saves: whether it is known to save.
    """
    run = run_step.of_snapshot(snapshot)
    began = snapshot.attempt_started_at
    return AttemptOutcome(
        attempt=snapshot.attempt or 0,
        lived_s=0.0 if began is None else (snapshot.ts - began).total_seconds(),
        steps=None if saved is not None or run is None else run.step - (run.began or 0),
        exit_code=None,
        signal=None,
        exception=None,
        new_checkpoint=True if saved is not None else False if saves else None,
        global_step=run.step if run is not None and run.counts == "run" else None,
        checkpoint_step=run_step.run_step(saved),
    )


def why_no_requeue(counts: Requeues, most: int | None) -> str | None:
    """Why a job must not be requeued; None if it may be.

    Args:
        counts: its requeues, including this one.
        most: --max-requeues; None for no limit.
    """
    if most is not None and counts.count > most:
        return f"it was requeued {counts.count - 1} times (--max-requeues {most})"
    if counts.without_progress > IDLE_REQUEUES:
        return f"no progress in the last {IDLE_REQUEUES} requeues"
    return None


def requeues_file(folder: RunFolder) -> Path:
    """The file with a job's requeue counts."""
    return folder.path / "requeues.json"


def read_requeues(folder: RunFolder, slurm_job: str) -> Requeues:
    """A job's requeue counts so far, without those of an earlier Slurm job."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        decoder = msgspec.json.Decoder(Requeues)
        found = bounded.decode_json(decoder, bounded.read_bytes(requeues_file(folder)))
        if found.slurm_job == slurm_job:
            return found
    return Requeues(slurm_job=slurm_job)


def write_requeues(folder: RunFolder, counts: Requeues) -> None:
    """Store the counts; if the disk is full, the old ones remain."""
    with contextlib.suppress(OSError):
        write_atomic(requeues_file(folder), msgspec.json.encode(counts))
