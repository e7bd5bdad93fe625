"""A job with eight ranks and logs of two attempts, whose lines never change."""

from __future__ import annotations

from pathlib import Path

from tests.support.fake_home import (
    HOST,
    RankSample,
    make_folder,
    snapshot_of,
    spec_of,
    write_log,
    write_snapshot,
)

from ddptop_runner.base.paths import RunFolder

JOB = "chat"
RANKS = 8
STEPS = 60


def lines_of(rank: int, steps: int = STEPS) -> list[str]:
    """The output of a rank in attempt 1."""
    lines = [
        "loading 48 shards from /data/[shards]",
        f"[rank{rank}]: device cuda:{rank} is ready",
        "train.py:31: UserWarning: the batch is not divisible by 8",
        "  warnings.warn('the batch is not divisible by 8')",
    ]
    for step in range(steps):
        if rank == 0:
            loss = 2 + 3 / (step + 1)
            lines.append(f"2026-03-14 11:{step:02}:00 train INFO step {step} loss {loss:.4f}")
        if step % 10 == 9:
            lines.append(f"epoch {step // 10}: 100%|██████████| 10/10 日本語 ok")
        if rank == 3 and step % 20 == 12:
            lines.append(f"2026-03-14 11:{step:02}:30 train WARNING worker 2 is slow: 4.{step} s")
    if rank == 5:
        lines += [
            "Traceback (most recent call last):",
            '  File "train.py", line 81, in step',
            "    loss.backward()",
            "RuntimeError: CUDA error: an illegal memory access was encountered, and this line is "
            "long enough to need more than the width of a terminal, so that it is cut or wrapped",
        ]
    return lines


def eight_ranks(home: Path, **more: object) -> RunFolder:
    """A live job in its second attempt."""
    spec = spec_of(JOB, RANKS, 4000)
    folder = make_folder(home, spec)
    ranks = [
        RankSample(rank=rank, local_rank=rank, host=HOST, state="running") for rank in range(RANKS)
    ]
    write_snapshot(folder, snapshot_of(spec, ranks=ranks, attempt=1, **more))
    for rank in range(RANKS):
        write_log(folder, 0, rank, f"attempt 0 of rank {rank}\nKilled\n")
        write_log(folder, 1, rank, "".join(f"{line}\n" for line in lines_of(rank)))
    return folder


def append(folder: RunFolder, rank: int, text: str, attempt: int = 1) -> None:
    """A rank prints more lines."""
    with folder.log_file(attempt, rank).open("a", encoding="utf-8") as file:
        file.write(text)
