"""A job with many ranks, and one with a known breakdown of step times."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
from tests.support import fake_gpus
from tests.support.fake_home import GIB, HOST, NOW, ago, change, record

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.judge.balance import imbalance
from ddptop_runner.model.snapshot import Alert, NodeSnapshot, RankSample
from ddptop_runner.store.history import HistoryWriter

SLOW = 5
"""The rank that waits for its data while the others wait for it."""


def of(folder: RunFolder) -> NodeSnapshot:
    return change(folder)


def many(home: Path, number: int) -> RunFolder:
    """Ranks on many hosts, which wait for ranks 130 and 517.

    Rank 90 has another loss, rank 700 hung, and of some ranks the data wait is unknown.
    """
    chance = random.Random(5)
    folder = fake_gpus.eight_gpu_ranks(home)
    like = of(folder).ranks
    ranks = [
        msgspec.structs.replace(
            like[number % 8 if number % 8 != SLOW else 0],
            rank=number,
            local_rank=number % 8,
            host=f"node-{number // 8:03}",
            gpu=number % 8,
            state="hung" if number == 700 else "running",
            step=12_340 - (chance.random() < 0.1),
            loss=2.12 + chance.gauss(0, 0.05) + (3 if number == 90 else 0),
            step_time_s=0.44,
            sync_s=0.0 if number in (130, 517) else 0.14 + chance.gauss(0, 0.004),
            data_wait_s=None if number % 50 == 0 else 0.012,
            gpu_util_percent=98.0 - 5 * chance.random(),
            gpu_mem_used_bytes=int((61 + chance.gauss(0, 1)) * GIB),
        )
        for number in range(number)
    ]
    named = [
        Alert(
            id="straggler",
            severity="warning",
            ranks=[130, 517],
            message="ranks 130, 517 are holding up the others: they take 440 ms for each step, the "
            "others 300 ms (median)",
            since=ago(600),
        ),
    ]
    change(
        folder,
        ranks=ranks,
        world_size=number,
        alerts=[alert for alert in named if max(alert.ranks) < number],
        imbalance=imbalance.of_job(ranks, []),
    )
    return folder


def in_parts(home: Path) -> RunFolder:
    """Eight ranks with equal step times: rank 5 waits for data, and the others wait for it."""
    folder = fake_gpus.eight_gpu_ranks(home)
    snapshot = of(folder)
    ranks = [_parts(rank) for rank in snapshot.ranks]
    alert = Alert(
        id="straggler",
        severity="warning",
        ranks=[SLOW],
        message="rank 5 is holding up the others: it waits 139 ms of each step for its "
        "data loader, they 12 ms; give it more workers, or look at its disk",
        since=ago(312),
    )
    change(
        folder,
        ranks=ranks,
        alerts=[alert, snapshot.alerts[1]],
        imbalance=imbalance.of_job(ranks, snapshot.gpus),
    )
    folder.history_db.unlink()

    def write(writer: HistoryWriter) -> None:
        for second in range(0, 1801, 5):
            late = second > 1500
            samples = [
                msgspec.structs.replace(
                    _parts(rank, late), step=(rank.step or 0) - 3 * (1800 - second)
                )
                for rank in snapshot.ranks
            ]
            gpus = [
                msgspec.structs.replace(
                    gpu, util_percent=98.0 - (27 if late and gpu.index == SLOW else second % 7)
                )
                for gpu in snapshot.gpus
            ]
            writer.add(NOW.timestamp() - 1800 + second, 1, samples, gpus)

    record(folder.history_db, "in parts", write)
    return folder


def _parts(rank: RankSample, late: bool = True) -> RankSample:
    slow = rank.rank == SLOW
    wait_s = 0.139 if slow and late else 0.012
    sync_s = 0.02 if slow else 0.147 if late else 0.02
    step_s = 0.446 if late else 0.32
    return msgspec.structs.replace(
        rank,
        host=HOST,
        loss=2.12 + 0.01 * rank.rank,
        step_time_s=step_s,
        data_wait_s=wait_s,
        sync_s=sync_s,
        compute_s=step_s - wait_s - sync_s,
    )
