"""What a failed attempt was: from exits and logs to an outcome and a cause in words."""

from __future__ import annotations

from ddptop_runner import diagnose, evidence
from ddptop_runner.log_clean import sanitize
from ddptop_runner.model import Cause
from ddptop_runner.oom import OomWatch
from ddptop_runner.paths import RunFolder
from ddptop_runner.rank_table import RankTable
from ddptop_runner.restarts.policy import AttemptOutcome


def judge(
    folder: RunFolder, attempt: int, table: RankTable, lived_s: float, *, oom: OomWatch
) -> tuple[AttemptOutcome, Cause]:
    """Find the first failing rank of an attempt that is over, and say what happened to it.

    Args:
        folder: the job's run folder, whose logs are read.
        attempt: the attempt's number.
        table: its ranks, with their exits.
        lived_s: how long the attempt lived.
        oom: knows whether the kernel killed a process for its memory.
    """
    exits = table.exits()
    tails = {
        exit_.rank: sanitize(evidence.log_tail(folder.log_file(attempt, exit_.rank)))
        for exit_ in exits
        if exit_.failed
    }
    exceptions = {rank: diagnose.last_exception(tail) for rank, tail in tails.items()}
    first = diagnose.first_failure(exits, exceptions)
    steps = table.most_steps()
    if first is None:
        cause = Cause(kind="unknown", summary="The worker group ended; nobody saw why.")
        return AttemptOutcome(attempt, lived_s, steps, None, None, None), cause
    kept = folder.evidence_dir / f"attempt-{attempt}-failure"
    cause = diagnose.failure_cause(
        first,
        exceptions[first.rank],
        tails[first.rank],
        others_failed=sum(exit_.failed for exit_ in exits) - 1,
        evidence=str(kept) if kept.exists() else None,
    )
    exception = exceptions[first.rank] if cause.kind == "exception" else None
    outcome = AttemptOutcome(attempt, lived_s, steps, cause.exit_code, cause.signal, exception)
    return outcome, cause


def never_started(folder: RunFolder, returncode: int) -> Cause:
    """The cause of a job whose agent ended before it had started any rank.

    Args:
        folder: the job's run folder, whose supervisor's log holds the agent's words.
        returncode: the agent's, negative for a signal.
    """
    words = diagnose.RankExit(0, 0, returncode, 0.0).in_words()
    tail = [line for line in evidence.log_tail(folder.supervisor_log).splitlines() if line]
    last = f" Its last line: {diagnose.clipped(tail[-1])!r}." if tail else ""
    return Cause(
        kind="launch",
        exit_code=returncode if returncode > 0 else None,
        summary=f"The agent {words} before any rank was started.{last}",
        evidence=str(folder.supervisor_log),
    )
