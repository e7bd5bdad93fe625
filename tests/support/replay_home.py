"""A recorded job: eight ranks, one of them slow, a hang in between, and its end."""

from __future__ import annotations

import math
import random
from pathlib import Path

from tests.support.fake_home import (
    GIB,
    HOST,
    ago,
    event,
    gpu,
    make_folder,
    record,
    snapshot_of,
    spec_of,
    write_log,
    write_snapshot,
)

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.model.snapshot import GpuSample, RankSample
from ddptop_runner.store.history import HistoryWriter

JOB = "gpt-a"
SECONDS, HANG, AGAIN = 480, 300, 330
"""Its duration, and the seconds after which it hung and the next attempt began."""
RANKS = 8
SLOW = 5
LINE = "step {step:5} rank {rank} loss {loss:.4f}\n"


def begin() -> float:
    """The time of its first sample, in Unix seconds."""
    return ago(SECONDS).timestamp()


def step_at(second: int) -> int:
    """The steps of every rank; each attempt starts from 0."""
    return 2 * (min(second, HANG - 8) if second < AGAIN else second - AGAIN)


def loss_at(second: int, rank: int) -> float:
    """The losses of one rank."""
    done = step_at(second) if second < AGAIN else step_at(HANG) + step_at(second)
    return 2.1 + 6.5 * math.exp(-done / 130) + 0.02 * (rank % 3)


def ranks_at(second: int, log_bytes: int | None) -> list[RankSample]:
    """Every rank as it was sampled."""
    chance = random.Random(second)
    return [
        RankSample(
            rank=rank,
            local_rank=rank,
            host=HOST,
            step=step_at(second),
            loss=loss_at(second, rank) + chance.gauss(0, 0.02),
            loss_state="ok",
            step_time_s=0.5,
            data_wait_s=0.02,
            sync_s=0.01 if rank == SLOW else 0.18,
            compute_s=0.47 if rank == SLOW else 0.3,
            cpu_percent=100.0 - rank,
            rss_bytes=9 * GIB,
            log_bytes=log_bytes,
        )
        for rank in range(RANKS)
    ]


def gpus_at(second: int) -> list[GpuSample]:
    """Every device; during the hang, they wait at full utilization and low power."""
    hangs = HANG - 8 <= second < AGAIN
    return [
        gpu(index, util_percent=100.0, power_w=140.0) if hangs else gpu(index)
        for index in range(RANKS)
    ]


def recorded_job(home: Path, *, log_sizes: bool = True, every_s: int = 1) -> RunFolder:
    """The job, which has just ended."""
    spec = spec_of(JOB, RANKS, SECONDS + 4, args=["--model", "350m"])
    folder = make_folder(home, spec)
    texts: dict[int, str] = {0: "", 1: ""}
    sizes: dict[int, int | None] = {}
    for second in range(0, SECONDS, every_s):
        if HANG <= second < AGAIN:
            continue
        attempt = int(second >= AGAIN)
        if second % 5 == 0 and second != HANG - 5:
            loss = loss_at(second, 0)
            texts[attempt] += LINE.format(step=step_at(second), rank=0, loss=loss)
        sizes[second] = len(texts[attempt]) if log_sizes else None

    def write(writer: HistoryWriter) -> None:
        for second, size in sizes.items():
            attempt = int(second >= AGAIN)
            writer.add(begin() + second, attempt, ranks_at(second, size), gpus_at(second))
        for one in events():
            writer.event(one)

    record(folder.history_db, ("replay", log_sizes, every_s), write, final=True)
    for attempt, text in texts.items():
        for rank in range(RANKS):
            write_log(folder, attempt, rank, text.replace("rank 0", f"rank {rank}"))
    write_snapshot(
        folder,
        snapshot_of(
            spec,
            state="finished",
            ts=ago(0),
            attempt=1,
            restarts_used=1,
            step=step_at(SECONDS),
            total_steps=600,
            started_at=ago(SECONDS),
            ended_at=ago(0),
            exit_code=0,
            guardian=None,
            gpus=gpus_at(SECONDS),
            source="nvml",
            ranks=[
                RankSample(
                    rank=rank, local_rank=rank, host=HOST, gpu=rank, state="exited", exit_code=0
                )
                for rank in range(RANKS)
            ],
        ),
    )
    return folder


def events() -> list:
    """Its events."""

    def told(second: float, kind: str, message: str, **more: object) -> object:
        return event(SECONDS - second, kind, message, **more)

    starts = [
        told(at, "rank_started", f"rank {rank} started (pid {pid + rank})",
             attempt=attempt, rank=rank,
             pid=pid + rank)
        for attempt, at, pid in ((0, 1.5, 5100), (1, AGAIN, 5200))
        for rank in range(RANKS)
    ]  # fmt: skip
    told_of = [
        told(0, "launched", "launched train.py with 8 ranks", attempt=0),
        told(1, "attempt_started", "attempt 0: 8 ranks started", attempt=0),
        told(6, "training", "first step after 5.0 s", attempt=0),
        told(120, "checkpoint", "rank 0 saved /ck/a.pt at step 240 (1.4 GiB in 2.0 s)", attempt=0,
             path="/ck/a.pt", step=240),
        told(240, "checkpoint", "rank 0 saved /ck/b.pt at step 480 (1.4 GiB in 2.0 s)", attempt=0,
             path="/ck/b.pt", step=480),
        told(HANG - 1, "hang", "The job hung: rank 5 did not enter collective 584.", attempt=0,
             rank=SLOW),
        told(HANG, "group_restart", "restarting all ranks as attempt 1 (restart 1 of 3)",
             attempt=0),
        told(AGAIN - 1, "attempt_started", "attempt 1: 8 ranks started", attempt=1),
        told(AGAIN + 5, "training", "first step after 6.0 s", attempt=1),
        told(420, "checkpoint", "rank 0 saved /ck/c.pt at step 180 (1.4 GiB in 2.0 s)", attempt=1,
             path="/ck/c.pt", step=180),
        told(SECONDS - 1, "finished", "finished: all ranks exited with status 0", attempt=1),
    ]  # fmt: skip
    return sorted([*told_of, *starts], key=lambda one: one.ts)
