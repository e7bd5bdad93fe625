"""Makes the files under tests/samples/v<N>/, in the formats of this version.

    python tests/samples/make_samples.py

Old samples stay as they are: tests prove that newer versions read them. Run this only for a new
schema, after raising VERSION.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from ddptop_runner.store.history import HistoryWriter
from ddptop_runner.model.snapshot import GpuProcess, GpuSample
from ddptop_runner.model.snapshot import (
    Alert,
    Cause,
    Event,
    Imbalance,
    NodeSnapshot,
    ProcessId,
    RankSample,
    encode,
)
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.model.spec import Device, JobSpec, write_spec

VERSION = 2
START = 1_767_225_600
"""2026-01-01T00:00:00Z."""


def make_history(path: Path) -> None:
    """Two ranks and one device for 90 s, with one restart and one loss that was not finite."""
    writer = HistoryWriter(path)

    def tell(second: int, type_: str, message: str, **fields: object) -> None:
        ts = dt.datetime.fromtimestamp(START + second + 0.25, dt.timezone.utc)
        writer.event(Event(ts=ts, type=type_, message=message, **fields))

    tell(0, "launched", "launched train.py with 2 ranks")
    for second in range(90):
        attempt = 0 if second < 50 else 1
        if second in (0, 50):
            tell(second, "attempt_started", f"attempt {attempt} started", attempt=attempt)
        if second == 45:
            tell(
                45,
                "rank_exited",
                "rank 1 was ended by SIGKILL",
                attempt=0,
                rank=1,
                pid=4711,
                signal="SIGKILL",
                evidence="evidence/attempt-0-failure",
            )
        if 45 <= second < 50:
            continue
        ranks = [
            RankSample(
                rank=rank,
                local_rank=rank,
                host="node",
                step=second,
                loss=None if second == 20 else 4.0 - second / 32 + rank,
                loss_state="nan" if second == 20 else "ok",
                step_time_s=0.25,
                rss_bytes=1_000_000 + second,
                data_wait_s=0.0625,
                sync_s=0.125,
                compute_s=0.0625,
                log_bytes=80 * second,
            )
            for rank in range(2)
        ]
        gpus = [GpuSample(index=0, util_percent=second, mem_used_bytes=2**33, power_w=250.5)]
        writer.add(START + second, attempt, ranks, gpus)
    tell(90, "finished", "finished", exit_code=0)
    writer.close(final=True)


def at(second: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(START + second, dt.timezone.utc)


def make_spec(folder: RunFolder) -> None:
    """A job on two of four devices, with every field set."""
    spec = JobSpec(
        job="train",
        job_id="train@0123abcd",
        host="node",
        created_at=at(0),
        kind="script",
        target="train.py",
        args=["--lr", "1e-3"],
        python="/venv/bin/python",
        cwd="/home/ann/project",
        nproc=2,
        devices=[
            Device(index=0, uuid="GPU-00", name="NVIDIA H100"),
            Device(index=1, uuid="GPU-01", name="NVIDIA H100"),
        ],
        max_restarts=3,
        hang_timeout_s=600.0,
        env_names=["HOME", "PATH"],
        env_overrides=["OMP_NUM_THREADS"],
        tmux_socket="ddptop",
    )
    write_spec(folder, spec)


def process(pid: int) -> ProcessId:
    return ProcessId(host="node", boot_id="b0", pid_ns=4026531836, pid=pid, start_ticks=100 + pid)


def make_snapshot(folder: RunFolder) -> None:
    """The end of a job whose rank 1 was killed and whose budget was spent."""
    common = {"host": "node", "step": 89, "last_progress_at": at(89), "has_probe": True}
    ranks = [
        RankSample(
            rank=0,
            local_rank=0,
            pid=4710,
            gpu=0,
            gpus=["GPU-00"],
            state="stopped",
            global_step=1089,
            loss=1.25,
            loss_step=89,
            loss_state="ok",
            loss_source="probe",
            step_time_s=0.25,
            data_wait_s=0.01,
            sync_s=0.09,
            compute_s=0.15,
            log_bytes=7120,
            signal="SIGTERM",
            loss_min=1.2,
            loss_max=1.3,
            metrics={"lr": 0.001, "accuracy": None},
            **common,
        ),
        RankSample(
            rank=1,
            local_rank=1,
            pid=4711,
            gpu=1,
            gpus=["GPU-01"],
            state="failed",
            loss_step=88,
            loss_state="nan",
            loss_source="api",
            signal="SIGKILL",
            **common,
        ),
    ]
    gpus = [
        GpuSample(
            index=0,
            uuid="GPU-00",
            host="node",
            name="NVIDIA H100",
            util_percent=97.0,
            mem_util_percent=40.0,
            mem_used_bytes=2**33,
            mem_total_bytes=80 * 2**30,
            mem_reserved_bytes=2**29,
            temperature_c=61.0,
            power_w=512.5,
            power_limit_w=700.0,
            sm_clock_mhz=1755,
            throttle_reasons=["sw_power_cap"],
            ecc_uncorrected=0,
            xid=[],
            processes=[GpuProcess(pid=4710, user="ann", command="python", job="train", rank=0)],
        ),
        GpuSample(index=1, uuid="GPU-01", host="node", xid=[79], lost=True),
    ]
    snapshot = NodeSnapshot(
        job="train",
        job_id="train@0123abcd",
        host="node",
        seq=91,
        ts=at(91),
        boot_id="b0",
        pid_ns=4026531836,
        state="failed",
        attempt=3,
        restarts_used=3,
        restarts_left=0,
        world_size=2,
        started_at=at(0),
        attempt_started_at=at(50),
        ended_at=at(91),
        exit_code=1,
        cause=Cause(
            kind="signal",
            rank=1,
            signal="SIGKILL",
            summary="Rank 1 (pid 4711) was ended by SIGKILL first.",
            evidence="evidence/attempt-3-failure",
        ),
        step=89,
        total_steps=5000,
        guardian=process(4700),
        supervisor=process(4701),
        agent=process(4702),
        ranks=ranks,
        gpus=gpus,
        imbalance=Imbalance(memory=0.1, utilization=0.0, power=0.05, step_time=0.2),
        alerts=[
            Alert(
                id="loss-nan",
                severity="error",
                ranks=[1],
                message="the loss of rank 1 is NaN",
                since=at(88),
            )
        ],
        source="nvml",
        driver="550.54.15",
        device_note="GPU 1 is lost",
        requeue=True,
    )
    folder.nodes_dir.mkdir(exist_ok=True)
    folder.node_file("node").write_bytes(encode(snapshot))


if __name__ == "__main__":
    folder = Path(__file__).parent / f"v{VERSION}"
    folder.mkdir(exist_ok=True)
    (folder / "history.db").unlink(missing_ok=True)
    make_history(folder / "history.db")
    make_spec(RunFolder(folder))
    make_snapshot(RunFolder(folder))
