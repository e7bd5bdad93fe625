"""Derives the outcome and cause of a failed attempt from its exits and logs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from signal import Signals

import msgspec

from ddptop_runner.base import bounded
from ddptop_runner.base.exit_status import split_status
from ddptop_runner.base.paths import LAUNCHER, RunFolder
from ddptop_runner.host.oom import OomWatch
from ddptop_runner.job import evidence
from ddptop_runner.job.ranks import OwnRanks, RankRecord
from ddptop_runner.job.state import JobState, hosts_of_ranks
from ddptop_runner.judge.causes import culprit, paragraph
from ddptop_runner.judge.causes.culprit import (
    RAISED_CODES,
    WRAPPERS,
    RankEnd,
    by_themselves,
    ended_well,
    exception_in_log,
    exception_in_words,
)
from ddptop_runner.judge.causes.error_text import (
    NOT_A_VICTIM,
    last_exception,
    unopened_script,
)
from ddptop_runner.judge.checkpoints import CheckpointBook
from ddptop_runner.judge.hangs import records
from ddptop_runner.model import diagnose, run_step
from ddptop_runner.model.diagnose import AttemptOutcome, Held, RankExit
from ddptop_runner.model.protocol import RanksJudged
from ddptop_runner.model.snapshot import (
    Cause,
    GpuSample,
    NodeSnapshot,
    RankSample,
    read_snapshot,
)
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.store import evidence_folder
from ddptop_runner.store.disk import room
from ddptop_runner.store.logs import log_end

CRASHES = frozenset(
    (Signals.SIGSEGV, Signals.SIGABRT, Signals.SIGBUS, Signals.SIGFPE, Signals.SIGILL)
)
"""Signals whose location the probe's faulthandler reports."""
KEPT_CHARACTERS = 4000
"""Limit for a rank's last lines, and for its exception, in an event."""


def judge(
    folder: RunFolder,
    attempt: int,
    table: OwnRanks,
    lived_s: float,
    *,
    oom: OomWatch,
    xids_before: Mapping[int, Sequence[int]] | None = None,
    sees_all_ranks: bool = True,
    offers_memory_snapshots: bool = True,
) -> tuple[AttemptOutcome, Cause]:
    """The outcome of a completed attempt and the cause of its failure.

    Args:
        folder: the job's run folder, whose logs are read.
        attempt: the attempt's number.
        table: its ranks, with their exits.
        lived_s: how long the attempt lived.
        oom: knows whether the kernel killed a process for its memory use.
        xids_before: by machine index, device errors reported before the attempt.
        sees_all_ranks: whether no other node has ranks of the attempt.
        offers_memory_snapshots: whether other ranks could record what allocates device memory.
    """
    kept = evidence_folder.latest(folder, attempt, "failure")
    snapshot = None if kept is None else read_snapshot(kept / "snapshot.json")
    ends = ends_of(folder, attempt, table)
    steps = table.most_steps()
    if table.launcher is not None:
        ends = _ends_in_command(folder, attempt, table.launcher, ends)
    blamed = culprit.find(ends)
    if blamed is None:
        summary = "The worker group exited; the cause is unknown."
        cause = Cause(kind="unknown", summary=summary, evidence=None if kept is None else str(kept))
        return AttemptOutcome(attempt, lived_s, steps, None, None, None), cause
    gpus = [] if snapshot is None else snapshot.gpus
    around = paragraph.Surroundings(
        killed_for_memory=oom.explain,
        xids=new_xids(gpus, xids_before or {}),
        lost_gpus=[gpu.index for gpu in gpus if gpu.lost],
        sees_all_ranks=sees_all_ranks,
        offers_memory_snapshots=offers_memory_snapshots,
        is_disk_full=(disk := room(folder.path)) is not None and disk.is_full,
    )
    cause = paragraph.cause_of(blamed, ends, around, None if kept is None else str(kept))
    evidence_folder.summarize(cause)
    raised = blamed.end.raised if blamed.how in ("failed", "raised", "victim") else None
    by_itself = raised is not None and raised.short_type not in WRAPPERS
    outcome = AttemptOutcome(
        attempt,
        lived_s,
        steps,
        cause.exit_code,
        cause.signal,
        raised,
        hung=cause.kind == "hang",
        kind=cause.kind,
        unopened=None if by_itself else unopened_script(blamed.end.tail),
    )
    return outcome, cause


def ends_of(folder: RunFolder, attempt: int, table: OwnRanks) -> list[RankEnd]:
    """All that is known about the ends of an attempt's ranks."""
    kept = evidence_folder.latest(folder, attempt, "failure")
    snapshot = None if kept is None else read_snapshot(kept / "snapshot.json")
    return [
        _end(folder, attempt, record, record.exit, table.steps_at_exit(record), kept, snapshot)
        for record in table
        if record.exit is not None
    ]


def shortened(end: RankEnd) -> RankEnd:
    """The end, shortened for an event; a message may list every key of a model."""
    exception = end.exception
    if exception is not None:
        exception = msgspec.structs.replace(
            exception,
            message=diagnose.clipped(exception.message, KEPT_CHARACTERS),
            because=None if exception.because is None else diagnose.clipped(exception.because),
        )
    return dataclasses.replace(end, exception=exception, tail=end.tail[-KEPT_CHARACTERS:])


def _ends_in_command(
    folder: RunFolder, attempt: int, launcher: RankRecord, ranks: Sequence[RankEnd]
) -> list[RankEnd]:
    """The candidates for blame: the ranks' ends, or the command's if no rank failed by itself."""
    tail = log_end(folder.log_file(attempt, LAUNCHER))
    over_s = None if launcher.exit is None else launcher.exit.at_boottime_s
    ends = [end for end in ranks if not ended_well(end)]
    if launcher.exit is not None:  # the command is itself a rank, with two records of the same end
        pid, at_s = launcher.exit.pid, launcher.exit.at_boottime_s
        ends = [
            dataclasses.replace(end, exit=msgspec.structs.replace(end.exit, at_boottime_s=at_s))
            if end.exit.pid == pid
            else end
            for end in ends
        ]
    ends = by_themselves(ends, over_s)
    if launcher.exit is not None and not any(end.failed for end in ends):
        return [RankEnd(launcher.exit, exception=exception_in_log(tail), tail=tail)]
    unexplained = [end for end in ends if end.failed and end.exception is None]
    if (
        unexplained and unexplained[0].exit_code in RAISED_CODES
    ):  # its probe did not report a reason
        explained = dataclasses.replace(unexplained[0], exception=exception_in_log(tail))
        return [explained if end is unexplained[0] else end for end in ends]
    return ends


def _end(
    folder: RunFolder,
    attempt: int,
    record: RankRecord,
    exit_: RankExit,
    steps: int | None,
    kept: Path | None,
    snapshot: NodeSnapshot | None,
) -> RankEnd:
    """All that is known about one rank's end; if we ended it, its state before any signal.

    `steps` is how many it had done.
    """
    log = folder.log_file(attempt, record.rank)
    is_shared = record.rank_source is not None  # ranks of a command share one log
    if exit_.ended_by_us:
        tail = _text(kept, f"tail-rank-{record.rank}.txt")
    elif exit_.failed:
        tail = log_end(log)
    else:
        tail = ""
    exception = None
    if exit_.failed or exit_.ended_by_us:
        reported = exception_in_words(record.reported.raised, record.reported.raised_at)
        exception = last_exception(tail) or reported
    samples = [] if snapshot is None else snapshot.ranks
    gpu = next((sample.gpu for sample in samples if sample.rank == record.rank), None)
    return RankEnd(
        exit=exit_,
        exception=exception,
        tail=tail,
        has_log=not is_shared,
        step=record.steps,
        at_step="" if steps is None else run_step.own_in_words(steps, record.began, attempt),
        stands_at=record.reported.stands_at,
        crashed_at=_crashed_at(folder, attempt, exit_),
        entered=record.entered,
        paused=record.usage is not None and record.usage.state_letter in "Tt",
        leaving=record.leaving,
        gpu=gpu,
        peak_bytes=record.gpu_mem_peak_bytes,
        held=_held(evidence_folder.written_by(folder, attempt, record.rank, "memory.json")),
    )


def _held(path: Path) -> Held | None:
    try:
        return bounded.decode_json(msgspec.json.Decoder(Held), bounded.read_bytes(path))
    except (OSError, msgspec.MsgspecError):
        return None


def _crashed_at(folder: RunFolder, attempt: int, exit_: RankExit) -> str | None:
    if exit_.ended_by_us or exit_.returncode is None or -exit_.returncode not in CRASHES:
        return None
    return records.of_crash(log_end(evidence.stacks_file(folder, attempt, exit_.rank)))


def _text(kept: Path | None, name: str) -> str:
    if kept is None:
        return ""
    try:
        return bounded.read_text(kept / name)
    except OSError:
        return ""


def xids_of(gpus: Sequence[GpuSample]) -> dict[int, list[int]]:
    """By machine index, the device errors reported so far."""
    return {gpu.index: list(gpu.xid) for gpu in gpus if gpu.xid}


def new_xids(
    gpus: Sequence[GpuSample], before: Mapping[int, Sequence[int]]
) -> list[paragraph.XidReport]:
    """Device errors reported since."""
    found = []
    for gpu in gpus:
        new = Counter(gpu.xid or []) - Counter(before.get(gpu.index, ()))
        found += [paragraph.XidReport(gpu.index, code) for code in sorted(new)]
    return found


def after_hang(cause: Cause, table: OwnRanks) -> Cause:
    """The cause of a hang, with another kind if the rank to blame had exited with 0."""
    record = None if cause.rank is None else table.get(cause.rank)
    exit_ = None if record is None else record.exit
    if record is None or exit_ is None or exit_.failed or exit_.ended_by_us:
        return cause
    at = "" if record.run_step is None else f" at step {record.run_step}"
    opening = (
        f"Rank {exit_.rank} (pid {exit_.pid}) exited with status 0{at} while the others continued."
    )
    return msgspec.structs.replace(
        cause, kind="early_exit", exit_code=0, summary=f"{opening} {cause.summary}"
    )


def never_started(folder: RunFolder, returncode: int | None) -> Cause:
    """The cause for a job whose agent ended before starting any rank.

    Args:
        folder: the job's run folder; its supervisor's log contains the agent's output.
        returncode: the agent's, negative for a signal; None if unknown.
    """
    words = diagnose.RankExit(0, 0, returncode, 0.0).in_words()
    exit_code, signal = (None, None) if returncode is None else split_status(returncode)
    tail = [line for line in log_end(folder.supervisor_log).splitlines() if line]
    last = f" Last line: {diagnose.clipped(tail[-1])!r}." if tail else ""
    return Cause(
        kind="launch",
        exit_code=exit_code or None,
        signal=signal,
        summary=f"The agent {words} before starting any rank.{last}",
        evidence=str(folder.supervisor_log),
    )


def with_achievements(
    outcome: AttemptOutcome,
    cause: Cause,
    run_steps: Iterable[int | None],
    checkpoints: CheckpointBook,
    startup_s: float | None,
    *,
    sees_all_ranks: bool = True,
) -> tuple[AttemptOutcome, Cause]:
    """Both, completed with the attempt's progress, its checkpoints, and the lost work.

    Args:
        outcome: what is known about the end.
        cause: the cause.
        run_steps: the steps of the run that the attempt's ranks have reached.
        checkpoints: knows when the last one of any attempt was saved.
        startup_s: how long its first step took; None without one.
        sees_all_ranks: whether no rank on another node may have saved.
    """
    new_checkpoint, last = None, checkpoints.last
    if last is not None and last.attempt == outcome.attempt:
        new_checkpoint = True
    elif last is not None and outcome.steps is not None:
        new_checkpoint = False  # this job's script is known to save, but did not in this attempt
    known = [step for step in run_steps if step is not None]
    achieved = msgspec.structs.replace(
        outcome,
        new_checkpoint=new_checkpoint,
        checkpoint_step=last.global_step if last is not None and new_checkpoint else None,
        global_step=max(known, default=outcome.global_step),
        startup_s=startup_s,
        kind=cause.kind if outcome.kind == "unknown" else outcome.kind,
    )
    if not sees_all_ranks:
        return achieved, cause
    lost = checkpoints.work_lost(outcome.attempt, outcome.steps, outcome.lived_s)
    return achieved, msgspec.structs.replace(
        cause,
        summary=" ".join(filter(None, [cause.summary, lost.in_words()])),
        work_lost_steps=lost.steps,
        work_lost_s=lost.seconds,
    )


# -- over all nodes of a job -----------------------------------------------------------------------


def blame(
    job: JobState, spec: JobSpec, judged: Mapping[str, RanksJudged]
) -> tuple[Cause | None, AttemptOutcome | None]:
    """(cause, outcome), blaming the first rank that failed by itself, or else a missing node.

    Args:
        job: the job's state.
        spec: the job.
        judged: by host, how its ranks ended; times are the head's by now.
    """
    hosts = hosts_of_ranks(job, spec)
    ends = [msgspec.convert(end, RankEnd) for one in judged.values() for end in one.ends]
    blamed = culprit.find(ends) if ends else None
    failed = {host: life for host, life in job.nodes.items() if life.failed}
    gone = [host for host, life in failed.items() if life.cause is not None]
    away = [host for host, life in job.nodes.items() if life.unknown_since is not None]
    is_victim = blamed is not None and blamed.end.victim != NOT_A_VICTIM
    if blamed is None or (is_victim and (gone or away)):
        if not gone:
            return _absence(away, blamed), None
        life = failed[gone[0]]
        cause = None if life.cause is None else msgspec.structs.replace(life.cause, host=gone[0])
        return cause, life.outcome
    host = hosts.get(blamed.end.rank)
    seen = None if host is None else judged.get(host)
    if seen is None or seen.cause.rank != blamed.end.rank:
        cause = paragraph.cause_of(blamed, ends, paragraph.Surroundings(), None)
    else:
        others = paragraph.others(blamed, ends)
        words = filter(None, [seen.cause.summary, others])
        cause = msgspec.structs.replace(seen.cause, summary=" ".join(words))
    cause = msgspec.structs.replace(cause, host=host)
    return cause, None if seen is None else seen.outcome


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


def achieved_on_nodes(
    outcome: AttemptOutcome,
    cause: Cause,
    job: JobState,
    ranks: Sequence[RankSample],
    judged: Mapping[str, RanksJudged],
    checkpoints: CheckpointBook,
) -> tuple[AttemptOutcome, Cause]:
    """Both, completed with all nodes' progress (only rank 0 may save) and the lost work.

    Args:
        outcome: what is known about the end.
        cause: names its host.
        job: the job's state.
        ranks: all nodes' ranks, as last seen in the attempt.
        judged: by host, how its ranks ended.
        checkpoints: knows when the last one was saved.
    """
    lives = [one.outcome for one in judged.values()]
    steps = [one.steps for one in lives if one.steps is not None]
    steps += [one.step for one in ranks if one.step is not None and one.step_source != "log"]
    if cause.host and cause.kind not in ("node", "launch"):
        summary = f"On {cause.host}: {cause.summary}"
        cause = msgspec.structs.replace(cause, summary=summary)
    return with_achievements(
        msgspec.structs.replace(outcome, steps=max(steps, default=outcome.steps)),
        cause,
        [*(one.global_step for one in lives), *(one.run_step for one in ranks)],
        checkpoints,
        job.first_step_after_s,
    )
