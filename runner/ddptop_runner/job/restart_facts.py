"""What a failed attempt achieved, for the restart policy."""

from __future__ import annotations

import dataclasses

from ddptop_runner.job.rank_table import RankTable
from ddptop_runner.judge.restarts.policy import AttemptOutcome
from ddptop_runner.model.snapshot import Checkpoint


def with_facts(
    outcome: AttemptOutcome,
    table: RankTable,
    last: Checkpoint | None,
    startup_s: float | None,
    kind: str,
) -> AttemptOutcome:
    """The outcome with all that ranks and checkpoints tell of it.

    Args:
        outcome: what is known of the end.
        table: the attempt's ranks.
        last: the last checkpoint that was seen, in any attempt.
        startup_s: how long its first step took; None when there was none.
        kind: of the cause.
    """
    new_checkpoint = None
    if last is not None and last.attempt == outcome.attempt:
        new_checkpoint = True
    elif last is not None and outcome.steps is not None:
        new_checkpoint = False  # this job's script is known to save, and this attempt did not
    steps = [
        record.reported.global_step for record in table if record.reported.global_step is not None
    ]
    return dataclasses.replace(
        outcome,
        new_checkpoint=new_checkpoint,
        checkpoint_step=last.global_step if last is not None and new_checkpoint else None,
        global_step=max(steps, default=outcome.global_step),
        startup_s=startup_s,
        kind=kind if outcome.kind == "unknown" else outcome.kind,
    )
