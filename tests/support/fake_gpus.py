"""A job with eight ranks on eight devices, and the feed that reports them."""

from __future__ import annotations

from pathlib import Path

from tests.support.fake_home import (
    GIB,
    H100,
    HOST,
    NOW,
    ago,
    event,
    gpu,
    make_folder,
    snapshot_of,
    spec_of,
    uuid,
    write_history,
    write_log,
    write_snapshot,
)

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.devices.report import DeviceReport
from ddptop_runner.judge.balance import imbalance
from ddptop_runner.model.snapshot import Alert, GpuProcess, RankSample
from ddptop_runner.model.spec import Device


def eight_gpu_ranks(home: Path) -> RunFolder:
    """Rank 5 is slow and its loss drifts; GPU 0 uses more memory than the others."""
    spec = spec_of(
        "llama-ft",
        8,
        4330,
        args=["--config", "configs/[7b].yaml"],
        devices=[Device(index=i, uuid=uuid(i), name=H100) for i in range(8)],
    )
    folder = make_folder(home, spec)
    ranks = [
        RankSample(
            rank=rank,
            local_rank=rank,
            host=HOST,
            pid=52340 + rank,
            gpu=rank,
            gpus=[uuid(rank)],
            state="running",
            step=12340 - (rank == 5),
            loss=2.1204 + 0.013 * ((rank * 5) % 7) + (1.6 if rank == 5 else 0),
            loss_step=12340,
            loss_state="ok",
            loss_source="probe",
            step_time_s=0.301 + 0.002 * (rank % 3) + (0.141 if rank == 5 else 0),
            steps_per_s=3.02,
            data_wait_s=0.012 if rank != 5 else 0.139,
            cpu_percent=104.0 + rank,
            rss_bytes=int(11.3 * GIB),
            gpu_util_percent=98.0,
            gpu_mem_used_bytes=(74 if rank == 0 else 61) * GIB,
            last_progress_at=ago(0.4 if rank != 5 else 0.7),
            has_probe=True,
        )
        for rank in range(8)
    ]
    gpus = [
        gpu(
            index,
            mem_used_bytes=int((74.8 if index == 0 else 61.2) * GIB),
            util_percent=71.0 if index == 5 else 98.0,
            power_w=388.0 if index == 5 else 612.0 + index,
            throttle_reasons=["thermal, by hardware"] if index == 5 else [],
            temperature_c=88.0 if index == 5 else 61.0 + index,
            processes=[
                GpuProcess(
                    pid=52340 + index,
                    user="ada",
                    command="python",
                    mem_used_bytes=61 * GIB,
                    job="llama-ft",
                    rank=index,
                )
            ],
        )
        for index in range(8)
    ]
    write_snapshot(
        folder,
        snapshot_of(
            spec,
            ranks=ranks,
            gpus=gpus,
            attempt=1,
            restarts_used=1,
            restarts_left=2,
            step=12339,
            total_steps=50_000,
            eta_s=12470.0,
            attempt_started_at=ago(2300),
            imbalance=imbalance.of_job(ranks, gpus),
            alerts=[
                Alert(
                    id="straggler",
                    severity="warning",
                    ranks=[5],
                    gpus=[5],
                    message="rank 5 is slow: its steps take 46% longer than the median",
                    since=ago(312),
                ),
                Alert(
                    id="throttle-5",
                    severity="warning",
                    gpus=[5],
                    message="GPU 5 is throttled: hardware thermal slowdown",
                    since=ago(305),
                ),
            ],
            source="nvml",
            driver="570.86.15",
        ),
    )
    write_history(
        folder,
        8,
        4330,
        every_s=5,
        gap=(1950, 2030),
        odd_rank=5,
        events=[
            event(4330, "launched", "python train.py --config configs/[7b].yaml", attempt=0),
            event(4328, "attempt_started", "attempt 0 starts with 8 ranks", attempt=0),
            event(
                2380,
                "rank_exited",
                "rank 3 ended with SIGKILL",
                attempt=0,
                rank=3,
                pid=51003,
                signal="SIGKILL",
            ),
            event(2379, "failure", "rank 3 was killed (SIGKILL), perhaps out of memory", attempt=0),
            event(2301, "group_restart", "all ranks restart: 1 of 3 restarts used", attempt=1),
            event(2300, "attempt_started", "attempt 1 starts with 8 ranks", attempt=1),
            event(2290, "training", "first step of every rank", attempt=1),
            event(312, "alert", "rank 5 is slow: its steps take 46% longer", attempt=1, rank=5),
        ],
    )
    for rank in range(8):
        write_log(folder, 0, rank, "attempt 0\n")
        write_log(
            folder,
            1,
            rank,
            "".join(
                f"[{rank}] step {12240 + i} loss {2.12 + (i * 7 % 13) / 100:.4f} lr 3.0e-04 "
                f"grad_norm {0.8 + (i % 5) / 10:.2f}\n"
                for i in range(100)
            ),
        )
    return folder


class FrozenFeed:
    """Replaces the sampler process: eight devices, four of them free."""

    running = 0

    def __init__(self, uuids: object = None) -> None:
        gpus = [
            gpu(
                index,
                util_percent=0.0 if index > 3 else 97.0,
                mem_used_bytes=(612 << 20) if index > 3 else 55 * GIB,
                power_w=71.0 if index > 3 else 530.0,
                processes=[]
                if index > 3
                else [GpuProcess(pid=9000 + index, user="bob", command="python eval.py")],
            )
            for index in range(8)
        ]
        self.latest = DeviceReport(ts=NOW, boottime_s=0.0, source="nvml", gpus=gpus)

    async def start(self) -> None:
        FrozenFeed.running += 1

    async def stop(self) -> None:
        FrozenFeed.running -= 1
