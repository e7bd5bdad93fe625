"""Run folders as the engine writes them, with constant times and values."""

from __future__ import annotations

import datetime as dt
import math
import os
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
from tests.support.builders import make_snapshot, make_spec, with_run_step
from tests.support.rows import row

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.host import procs
from ddptop_runner.judge.balance import imbalance
from ddptop_runner.model.snapshot import (
    Alert,
    Cause,
    Event,
    GpuSample,
    NodeSnapshot,
    RankSample,
    encode,
)
from ddptop_runner.model.spec import JobSpec, Waiting, write_spec
from ddptop_runner.store.history import HistoryWriter

NOW = dt.datetime(2026, 3, 14, 12, 0, 0, tzinfo=dt.timezone.utc)


HOST = "node-a"


GIB = 1 << 30


H100 = "NVIDIA H100 80GB HBM3"


def ago(seconds: float) -> dt.datetime:
    return NOW - dt.timedelta(seconds=seconds)


def uuid(index: int) -> str:
    return f"GPU-{index:08d}-0000-0000-0000-000000000000"


def make_folder(home: Path, spec: JobSpec) -> RunFolder:
    folder = RunFolder(home / "runs" / spec.job)
    folder.nodes_dir.mkdir(parents=True)
    folder.evidence_dir.mkdir()
    write_spec(folder, spec)
    return folder


def spec_of(job: str, nproc: int, created_s: float, **more: object) -> JobSpec:
    return make_spec(
        job,
        **{
            "job_id": f"{job}@00c0ffee",
            "host": HOST,
            "created_at": ago(created_s),
            "target": "train.py",
            "python": "/opt/train/bin/python",
            "cwd": "/home/ada/code",
            "nproc": nproc,
            **more,
        },
    )


def snapshot_of(spec: JobSpec, **more: object) -> NodeSnapshot:
    values = {
        "seq": 4000,
        "ts": ago(0.4),
        "world_size": spec.nproc,
        "attempt_started_at": spec.created_at,
        "guardian": procs.identify(os.getpid()),
    }
    return make_snapshot(spec, **{**values, **more})


def write_snapshot(folder: RunFolder, snapshot: NodeSnapshot) -> None:
    folder.node_file(snapshot.host).write_bytes(encode(snapshot))


def gpu(index: int, **more: object) -> GpuSample:
    values: dict[str, object] = {
        "index": index,
        "uuid": uuid(index),
        "host": HOST,
        "name": H100,
        "util_percent": 98.0 - index % 3,
        "mem_util_percent": 61.0,
        "mem_used_bytes": int((61.2 + 0.1 * (index % 4)) * GIB),
        "mem_total_bytes": 80 * GIB,
        "mem_reserved_bytes": GIB // 2,
        "temperature_c": 61.0 + index,
        "power_w": 600.0 + 7 * (index % 5),
        "power_limit_w": 700.0,
        "sm_clock_mhz": 1755,
        "throttle_reasons": [],
        "ecc_uncorrected": 0,
        "xid": [],
        "processes": [],
    }
    return GpuSample(**{**values, **more})


_RECORDED: dict[tuple[bytes, str], bytes] = {}


def record(
    path: Path, key: object, write: Callable[[HistoryWriter], None], *, final: bool = False
) -> None:
    """Write a history, or copy the one that this process already wrote for `key`."""
    same = path.read_bytes() if path.exists() else b"", f"{path.name} {key!r} {final}"
    if same not in _RECORDED:
        writer = HistoryWriter(path, batch_s=1e9)
        write(writer)
        writer.close(final=final)
        _RECORDED[same] = path.read_bytes()
    path.write_bytes(_RECORDED[same])


def write_history(
    folder: RunFolder,
    ranks: int,
    seconds: int,
    *,
    until: dt.datetime = NOW,
    every_s: int = 1,
    gap: tuple[int, int] | None = None,
    odd_rank: int | None = None,
    nan_at: int | None = None,
    events: list[Event] | None = None,
    final: bool = False,
) -> None:
    """Typically falling losses; `gap` seconds without samples are a restart."""
    key = ("losses", ranks, seconds, until, every_s, gap, odd_rank, nan_at, events)
    start = until.timestamp() - seconds

    def write(writer: HistoryWriter) -> None:
        chance = random.Random(7)
        for second in range(0, seconds + 1, every_s):
            if gap and gap[0] <= second < gap[1]:
                continue
            attempt = 1 if gap and second >= gap[1] else 0
            samples = []
            for rank in range(ranks):
                loss = 2.1 + 6.5 * math.exp(-second / (seconds / 7)) + chance.gauss(0, 0.05)
                if rank == odd_rank and second > seconds * 0.6:
                    loss *= 1 + 1.9 * (second / seconds - 0.6)
                samples.append(
                    RankSample(
                        rank=rank,
                        local_rank=rank,
                        host=HOST,
                        step=second * 3,
                        loss=None if nan_at == second and rank == 0 else loss,
                        loss_state="nan" if nan_at == second and rank == 0 else "ok",
                        step_time_s=0.33,
                        cpu_percent=100.0,
                        rss_bytes=GIB,
                    )
                )
            writer.add(start + second, attempt, samples, [])
        for event in events or []:
            writer.event(event)

    record(folder.history_db, key, write, final=final)


def event(seconds_ago: float, kind: str, message: str, **more: object) -> Event:
    return row(ago(seconds_ago), kind, message, **more)


def write_log(folder: RunFolder, attempt: int, rank: int, text: str) -> None:
    path = folder.log_file(attempt, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


# --- whole jobs ------------------------------------------------------------------------------


def two_cpu_ranks(home: Path) -> RunFolder:
    """A job without devices, with an unknown total number of steps."""
    spec = spec_of("mlp-cpu", 2, 754, args=["--epochs", "20"])
    folder = make_folder(home, spec)
    ranks = [
        RankSample(
            rank=rank,
            local_rank=rank,
            host=HOST,
            pid=4100 + rank,
            state="running",
            step=2262 - rank,
            loss=2.1204 + 0.02 * rank,
            loss_step=2262 - rank,
            loss_state="ok",
            loss_source="probe",
            step_time_s=0.332,
            steps_per_s=3.01,
            data_wait_s=0.004,
            cpu_percent=99.0 - 4 * rank,
            rss_bytes=412 << 20,
            last_progress_at=ago(0.6),
            has_probe=True,
        )
        for rank in range(2)
    ]
    write_snapshot(
        folder,
        snapshot_of(
            spec, ranks=ranks, step=2261, imbalance=imbalance.of_job(ranks, []), device_note=None
        ),
    )
    write_history(
        folder,
        2,
        754,
        events=[
            event(754, "launched", "python train.py --epochs 20", attempt=0),
            event(753, "attempt_started", "attempt 0 starts with 2 ranks", attempt=0),
            event(752, "rank_started", "rank 0 starts", attempt=0, rank=0, pid=4100),
            event(752, "rank_started", "rank 1 starts", attempt=0, rank=1, pid=4101),
            event(748, "training", "first step of every rank", attempt=0),
        ],
    )
    for rank in range(2):
        write_log(
            folder,
            0,
            rank,
            "".join(
                f"epoch {i // 100} step {i} loss {2.1 + 3 / (i + 1):.4f}\n"
                for i in range(0, 400, 5)
            ),
        )
    return folder


def failed_job(home: Path) -> RunFolder:
    """Rank 1 raised an exception that a restart would not fix."""
    spec = spec_of("vit-base", 4, 9000, args=["--data", "/data/imagenet"])
    folder = make_folder(home, spec)
    ranks = [
        RankSample(
            rank=rank,
            local_rank=rank,
            host=HOST,
            pid=None,
            state="failed" if rank in (1, 2) else "stopped",
            step=4210,
            loss=3.0123 + 0.01 * rank,
            loss_state="ok",
            exit_code=1 if rank == 1 else None,
            signal="SIGABRT" if rank == 2 else None if rank == 1 else "SIGTERM",
            has_probe=True,
        )
        for rank in range(4)
    ]
    evidence = folder.evidence_dir / "attempt-2-failure"
    evidence.mkdir()
    for rank in range(4):
        (evidence / f"stacks-rank-{rank}.txt").write_text(
            f'Thread 0x00007f1 (most recent call first):\n  File "train.py", line 8{rank} in step\n'
        )
    write_snapshot(
        folder,
        snapshot_of(
            spec,
            state="failed",
            ts=ago(5400),
            ranks=ranks,
            attempt=2,
            restarts_used=2,
            restarts_left=1,
            step=4210,
            total_steps=20_000,
            started_at=ago(9000),
            ended_at=ago(5400),
            exit_code=1,
            guardian=None,
            requeue=False,
            cause=Cause(
                kind="exception",
                rank=1,
                exit_code=1,
                headline="rank 1: RuntimeError: shape '[64, 3, 224]' is invalid for input of size "
                "9633792",
                summary="RuntimeError: shape '[64, 3, 224]' is invalid for input of size 9633792; "
                "the same exception at train.py:81 ended attempt 1, so it is not tried again",
                evidence=str(Path("evidence") / evidence.name),
            ),
        ),
    )
    write_history(
        folder,
        4,
        3600,
        until=ago(5400),
        every_s=10,
        nan_at=2400,
        final=True,
        events=[
            event(9000, "launched", "python train.py --data /data/imagenet", attempt=0),
            event(5402, "rank_exited", "rank 1 ended with exit code 1", attempt=2, rank=1),
            event(5401, "failed", "RuntimeError on rank 1: it would fail again", attempt=2),
        ],
    )
    write_log(
        folder,
        2,
        1,
        "step 4208 loss 3.0131\nstep 4209 loss 3.0127\nstep 4210 loss 3.0123\n"
        "Traceback (most recent call last):\n"
        '  File "train.py", line 140, in <module>\n    main()\n'
        '  File "train.py", line 81, in step\n    x = x.view(64, 3, 224)\n'
        "RuntimeError: shape '[64, 3, 224]' is invalid for input of size 9633792\n",
    )
    return folder


def finished_job(home: Path) -> RunFolder:
    """An old job that finished, of which only spec and snapshot matter."""
    spec = spec_of("resnet-a", 4, 90_000)
    folder = make_folder(home, spec)
    write_snapshot(
        folder,
        snapshot_of(
            spec,
            state="finished",
            ts=ago(60_000),
            ended_at=ago(60_000),
            exit_code=0,
            step=9000,
            total_steps=9000,
            guardian=None,
            ranks=[
                RankSample(rank=r, local_rank=r, host=HOST, state="exited", loss=0.4, exit_code=0)
                for r in range(4)
            ],
        ),
    )
    return folder


def change(folder: RunFolder, **fields: object) -> NodeSnapshot:
    """Rewrite parts of a job's snapshot."""
    path = folder.node_file(HOST)
    old = msgspec.json.decode(path.read_bytes(), type=NodeSnapshot)
    new = with_run_step(msgspec.structs.replace(old, **fields), fields)
    path.write_bytes(encode(new))
    return new


SWEEP = (
    ("1e-3", "1", "finished", 1.31),
    ("1e-3", "2", "finished", 1.42),
    ("1e-3", "3", "failed", 1.9),
    ("1e-4", "1", "running", 2.2),
    ("1e-4", "2", "running", 1.24),
    ("1e-4", "3", "queued", None),
)
"""Learning rate, seed, state, and latest loss; a validation loss is 0.1 higher."""


def sweep(home: Path, name: str = "bert") -> list[RunFolder]:
    """Jobs of one sweep in all states, the best of which is still running."""
    return [
        _of_sweep(home, name, place, lr, seed, state, loss)
        for place, (lr, seed, state, loss) in enumerate(SWEEP)
    ]


def _of_sweep(
    home: Path, group: str, place: int, lr: str, seed: str, state: str, loss: float | None
) -> RunFolder:
    waiting = Waiting(since=ago(900)) if state == "queued" else None
    spec = spec_of(
        f"{group}-lr{lr}-seed{seed}",
        1,
        900 - place / 1000,
        args=["--lr", lr, "--seed", seed],
        group=group,
        array={"lr": lr, "seed": seed},
        parallel=2,
        queue=waiting,
    )
    folder = make_folder(home, spec)
    is_live = state in ("running", "queued")
    metrics = {} if loss is None else {"val_loss": loss + 0.1}
    rank = RankSample(
        rank=0, local_rank=0, host=HOST, state="running" if is_live else "exited", pid=4000 + place,
        step=500 if state == "finished" else 500 - 100 * place, loss=loss, loss_state="ok",
        metrics=metrics, steps_per_s=2.0, last_progress_at=ago(0.4),
    )  # fmt: skip
    cause = None
    if state == "failed":
        headline = "rank 0: RuntimeError: CUDA error: an illegal memory access"
        cause = Cause(kind="exception", headline=headline, summary=f"{headline}.", rank=0)
    alert = Alert(
        id="queued",
        severity="info",
        message="waiting for a job of its sweep to end: bert-lr1e-4-seed1, bert-lr1e-4-seed2",
        since=ago(900),
    )
    write_snapshot(
        folder,
        snapshot_of(
            spec,
            state=state,
            ended_at=None if is_live else ago(300 - 10 * place),
            step=None if loss is None else rank.step,
            total_steps=500,
            ranks=[] if loss is None else [rank],
            cause=cause,
            alerts=[alert] if state == "queued" else [],
            **({} if is_live else {"guardian": None}),
        ),
    )
    return folder
