"""Jobs that run a command: another launcher, or a single process."""

from __future__ import annotations

from pathlib import Path

from tests.support.fake_home import (
    GIB,
    HOST,
    ago,
    event,
    make_folder,
    snapshot_of,
    spec_of,
    uuid,
    write_history,
    write_log,
    write_snapshot,
)

from ddptop_runner.base.paths import LAUNCHER, RunFolder
from ddptop_runner.judge.balance import imbalance
from ddptop_runner.model.snapshot import LauncherSample, RankSample
from ddptop_runner.model.spec import JobSpec


def command_spec(job: str, launcher: str, target: str, *args: str, created_s: float) -> JobSpec:
    return spec_of(
        job, 0, created_s, kind="command", target=target, args=list(args), launcher=launcher
    )


def launcher_of(spec: JobSpec, **more: object) -> LauncherSample:
    values: dict[str, object] = {
        "name": spec.launcher,
        "pid": 4700,
        "state": "running",
        "cpu_percent": 208.0,
        "rss_bytes": 2 * GIB,
    }
    return LauncherSample(**{**values, **more})


def rank_of(rank: int, **more: object) -> RankSample:
    values: dict[str, object] = {
        "rank": rank,
        "local_rank": rank,
        "host": HOST,
        "pid": 4711 + rank,
        "state": "running",
        "step": 1200 - rank,
        "loss": 0.532 + 0.01 * rank,
        "loss_step": 1200 - rank,
        "loss_state": "ok",
        "loss_source": "probe",
        "step_time_s": 0.25,
        "steps_per_s": 4.0,
        "data_wait_s": 0.003,
        "cpu_percent": 98.0,
        "rss_bytes": 700 << 20,
        "last_progress_at": ago(0.3),
        "has_probe": True,
        "rank_source": "probe",
    }
    return RankSample(**{**values, **more})


def mpirun(home: Path) -> RunFolder:
    """Two ranks whose losses are sums of four, from a framework's adversarial training."""
    args = ("-np", "2", "-tag-output", "python", "train.py")
    spec = command_spec("gan", "mpirun", "mpirun", *args, created_s=310)
    folder = make_folder(home, spec)
    ranks = [
        rank_of(
            rank,
            loss_parts=4,
            loss_is="sum",
            losses={"Adam 1": 0.532 + 0.01 * rank, "Adam 2": 1.2},
            frameworks=["accelerate"],
            rank_source="probe" if rank == 0 else "start order",
        )
        for rank in range(2)
    ]
    write_snapshot(
        folder,
        snapshot_of(
            spec,
            ranks=ranks,
            launcher=launcher_of(spec),
            world_size=2,
            step=1199,
            imbalance=imbalance.of_job(ranks, []),
        ),
    )
    write_history(
        folder,
        2,
        310,
        events=[
            event(310, "launched", f"launched {spec.command_line()}", attempt=0),
            event(309, "attempt_started", "attempt 0: the command started (pid 4700)", attempt=0),
            event(300, "rank_started", "rank 1 started (pid 4712)", attempt=0, rank=1, pid=4712),
            event(300, "rank_started", "rank 0 started (pid 4711)", attempt=0, rank=0, pid=4711),
            event(298, "training", "first step of every rank", attempt=0),
        ],
    )
    lines = "".join(
        f"[1,{step % 2}]<stdout>:step {step} d_loss 0.53{step % 10} g_loss 1.20{step % 7}\n"
        for step in range(60)
    )
    write_log(folder, 0, LAUNCHER, f"from mpirun itself\n{lines}")
    return folder


def waiting(home: Path, since_s: float = 4.0) -> RunFolder:
    """Launched a moment ago: no process trains yet."""
    args = ("launch", "--multi_gpu", "train.py")
    spec = command_spec("sft", "accelerate", "accelerate", *args, created_s=since_s)
    folder = make_folder(home, spec)
    launcher = launcher_of(spec, cpu_percent=96.0, rss_bytes=240 << 20)
    write_snapshot(folder, snapshot_of(spec, state="starting", launcher=launcher, world_size=None))
    write_history(folder, 0, 3, events=[event(3, "launched", "launched -- accelerate", attempt=0)])
    write_log(folder, 0, LAUNCHER, "The following values were not passed to accelerate launch\n")
    return folder


def replicas(home: Path) -> RunFolder:
    """One process on four devices."""
    spec = command_spec("dp", "DataParallel", "python", "train.py", created_s=900)
    folder = make_folder(home, spec)
    ranks = [rank_of(0, pid=4700, gpu=0, gpus=[uuid(i) for i in range(4)], replicas=4)]
    launcher = launcher_of(spec)
    write_snapshot(
        folder, snapshot_of(spec, ranks=ranks, launcher=launcher, world_size=1, step=1200)
    )
    write_history(folder, 1, 300)
    write_log(folder, 0, LAUNCHER, "step 1200 loss 0.5320\n")
    return folder
