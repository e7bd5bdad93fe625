"""A job with several attempts as the engine writes it, and two that differ in one option."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path

import msgspec
from tests.support.fake_home import (
    HOST,
    ago,
    make_folder,
    record,
    snapshot_of,
    spec_of,
    write_log,
    write_snapshot,
)
from tests.support.rows import row

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.model.events import FailureJudged
from ddptop_runner.model.snapshot import Cause, Event, RankSample, RunStep
from ddptop_runner.store.history import HistoryWriter

STARTED_S = 3600.0
"""How long ago the job was launched."""


def at(seconds: float) -> dt.datetime:
    """A time, in seconds after the launch."""
    return ago(STARTED_S - seconds)


def told(seconds: float, kind: str, message: str, **more: object) -> Event:
    return row(at(seconds), kind, message, **more)


def started(seconds: float, attempt: int, ranks: int = 4) -> list[Event]:
    """An attempt starts."""
    begun = told(seconds, "attempt_started", f"attempt {attempt}: 4 ranks started", attempt=attempt)
    each = [
        told(
            seconds + 0.1,
            "rank_started",
            f"rank {rank} started (pid {4000 + 10 * attempt + rank})",
            attempt=attempt,
            rank=rank,
            pid=4000 + 10 * attempt + rank,
        )
        for rank in range(ranks)
    ]
    first = told(seconds + 9, "training", "first step after 9.0 s", attempt=attempt)
    return [begun, *each, first]


def ended(seconds: float, attempt: int, first: int, how: str, **more: object) -> list[Event]:
    """One rank fails, and the others are ended."""
    found = [
        told(seconds, "rank_exited", f"rank {first} {how}", attempt=attempt, rank=first, **more)
    ]
    found += [
        told(
            seconds + 0.3,
            "rank_exited",
            f"rank {rank} was killed by SIGTERM",
            attempt=attempt,
            rank=rank,
            signal="SIGTERM",
        )
        for rank in range(4)
        if rank != first
    ]
    return found


def cause_of(folder: RunFolder, attempt: int, **more: object) -> Cause:
    """A cause, with its evidence folder."""
    kept = folder.evidence_dir / f"attempt-{attempt}-failure"
    kept.mkdir(parents=True, exist_ok=True)
    (kept / "summary.txt").write_text(f"{more['summary']}\n", encoding="utf-8")
    return Cause(evidence=str(kept), **more)


def many_attempts(home: Path, *, attempts: int = 3, checkpoints: int = 4) -> RunFolder:
    """Failed for good, after exceptions, a kill, and a hang, with checkpoints in between."""
    spec = spec_of("gpt-small", 4, STARTED_S, args=["--lr", "3e-4"])
    folder = make_folder(home, spec)
    events = [told(0, "launched", "launched train.py with 4 ranks on CPU", attempt=0)]
    cause = None
    for attempt in range(attempts):
        begin = 3 + attempt * 600.0
        end = begin + 300
        events += started(begin, attempt)
        events += [
            told(
                begin + 20 + 30 * number,
                "checkpoint",
                f"rank 0 saved /data/ck/gpt-{attempt}-{number}.pt at step {100 * (number + 1)} "
                "(1.2 GiB in 3.1 s)",
                attempt=attempt,
                rank=0,
            )
            for number in range(checkpoints)
        ]
        cause = _fail(folder, events, attempt, end, is_last=attempt == attempts - 1)
        for rank in range(4):
            write_log(folder, attempt, rank, _log(rank, attempt))
    last = attempts - 1
    writer = HistoryWriter(folder.history_db, batch_s=1e9)
    for event in events:
        writer.event(event)
    for second in range(0, 300, 10):
        samples = [
            RankSample(rank=r, local_rank=r, host=HOST, step=second + 3, loss=3.0, loss_state="ok")
            for r in range(4)
        ]
        writer.add(at(3 + last * 600 + second).timestamp(), last, samples, [])
    writer.close(final=True)
    write_snapshot(
        folder,
        snapshot_of(
            spec,
            state="failed",
            ts=events[-1].ts,
            ended_at=events[-1].ts,
            attempt=last,
            restarts_used=last,
            restarts_left=max(0, 3 - last),
            step=457,
            cause=cause,
            exit_code=1,
            guardian=None,
            requeue=False,
            attempt_started_at=at(3 + last * 600),
        ),
    )
    return folder


def _fail(
    folder: RunFolder, events: list[Event], attempt: int, end: float, *, is_last: bool
) -> Cause:
    if attempt % 3 == 1:
        how, signal, code = "was killed by SIGKILL", "SIGKILL", None
        cause = cause_of(
            folder,
            attempt,
            kind="signal",
            rank=0,
            signal="SIGKILL",
            headline="rank 0 was killed by SIGKILL after step 412",
            summary="Rank 0 (pid 4010) was the first to fail: SIGKILL, after step 412. Killed from "
            "outside or out of memory: cannot tell. 3 other ranks were stopped as a result. Work "
            "lost: 12 steps (9.1 s) since gpt-1-3.pt at step 400.",
            work_lost_steps=12,
            work_lost_s=9.1,
        )
    else:
        how, signal, code = "exited with 1", None, 1
        cause = cause_of(
            folder,
            attempt,
            kind="exception",
            rank=2,
            exit_code=1,
            exception="ValueError",
            place="/home/ada/code/data.py:81 in collate",
            headline="rank 2: ValueError: label 1003 is outside of the 1000 classes at data.py:81",
            summary=f"Rank 2 (pid {4002 + 10 * attempt}) was the first to fail: exit status 1, at "
            "step 457. ValueError: label 1003 is outside of the 1000 classes (at "
            "/home/ada/code/data.py:81 in collate). 3 other ranks were stopped as a result. Work "
            "lost: 57 steps (43.0 s) since gpt-2-3.pt at step 400.",
            work_lost_steps=57,
            work_lost_s=43.0,
        )
    first = cause.rank or 0
    events += ended(end, attempt, first, how, exit_code=code, signal=signal)
    events.append(
        told(
            end + 0.5,
            "failure",
            cause.summary,
            attempt=attempt,
            rank=cause.rank,
            exit_code=code,
            signal=signal,
            evidence=cause.evidence,
            data=msgspec.to_builtins(FailureJudged(attempt=attempt, cause=cause)),
        )
    )
    if is_last:
        events.append(
            told(
                end + 0.6,
                "failed",
                f"failed in attempt {attempt}: ValueError will be raised again",
                attempt=attempt,
            )
        )
    else:
        events.append(
            told(
                end + 0.6,
                "group_restart",
                f"restarting all ranks as attempt {attempt + 1} (restart {attempt + 1} of 3); the "
                "attempt had made progress (a checkpoint at step 400)",
                attempt=attempt,
            )
        )
    return cause


def _log(rank: int, attempt: int) -> str:
    lines = [f"step {step} loss 3.0{step % 10}\n" for step in range(440, 457)]
    if rank == 2:
        lines += [
            "Traceback (most recent call last):\n",
            '  File "/home/ada/code/train.py", line 140, in <module>\n    main()\n',
            '  File "/home/ada/code/data.py", line 81, in collate\n',
            "    raise ValueError(...)\n          ^^^^^^^^^^\n",
            "ValueError: label 1003 is outside of the 1000 classes\n",
        ]
    return "".join(lines)


def one_attempt(home: Path) -> RunFolder:
    """A running job without failures."""
    spec = spec_of("calm", 4, STARTED_S)
    folder = make_folder(home, spec)
    ranks = [
        RankSample(rank=r, local_rank=r, host=HOST, state="running", step=1200) for r in range(4)
    ]
    write_snapshot(folder, snapshot_of(spec, ranks=ranks, step=1200, attempt_started_at=at(3)))
    writer = HistoryWriter(folder.history_db, batch_s=1e9)
    for event in [told(0, "launched", "launched train.py with 4 ranks", attempt=0), *started(3, 0)]:
        writer.event(event)
    writer.close(final=False)
    return folder


def learner(
    home: Path,
    job: str,
    lr: str,
    *,
    steps: int = 600,
    falls: float = 120.0,
    ago_s: float = 7200.0,
    restart_at: int | None = None,
    bad_from: int | None = None,
    scalars_from: float | None = None,
    **more: object,
) -> RunFolder:
    """A job that ended, whose loss falls for `falls` steps; `restart_at` goes back to step 0.

    With `scalars_from` it reports a learning rate of that, and a validation loss each minute.
    """
    rate = {} if scalars_from is None else {"lr": scalars_from}
    spec = spec_of(job, 2, ago_s, args=["--lr", lr, "--epochs", "3"], **more)
    folder = make_folder(home, spec)
    start = spec.created_at.timestamp() + 5
    attempt = step = 0
    events = [Event(ts=spec.created_at, type="launched", message="launched", attempt=0)]
    events.append(Event(ts=ago(ago_s - 5), type="attempt_started", message="starts", attempt=0))
    samples: list[tuple[int, int, list[RankSample]]] = []
    for second in range(0, steps // 2):
        step += 2
        if restart_at is not None and second * 2 == restart_at:
            attempt, step = 1, 2
            moment = ago(ago_s - 5 - second)
            events.append(Event(ts=moment, type="attempt_started", message="again", attempt=1))
        bad = bad_from is not None and second * 2 >= bad_from
        loss = 0.4 + 7.0 * math.exp(-2 * second / falls) + 0.03 * math.sin(second)
        ranks = [
            RankSample(
                rank=rank,
                local_rank=rank,
                host=HOST,
                step=step,
                loss=None if bad else loss + 0.01 * rank,
                loss_state="nan" if bad else "ok",
                metrics=rate and {**rate, "val_loss": 3 + rate["lr"] - second // 60},
            )
            for rank in range(2)
        ]
        samples.append((second, attempt, ranks))

    def write(writer: HistoryWriter) -> None:
        for second, attempt, ranks in samples:
            writer.add(start + second, attempt, ranks, [])
        for event in events:
            writer.event(event)

    what = (steps, falls, ago_s, restart_at, bad_from, scalars_from)
    record(folder.history_db, what, write, final=True)
    end = ago(ago_s - 5 - steps // 2)
    write_snapshot(
        folder,
        snapshot_of(
            spec,
            state="finished",
            ts=end,
            ended_at=end,
            ran_s=steps / 2 + 5,
            attempt=attempt,
            step=step,
            run_step=RunStep(step=steps, counts="run", attempt=attempt),
            attempts_began={0: 0, 1: steps - step},
            total_steps=steps,
            exit_code=0,
            guardian=None,
        ),
    )
    return folder


def without_history(folder: RunFolder) -> None:
    """A job without any samples."""
    folder.history_db.unlink()
