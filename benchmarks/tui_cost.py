"""What watching a live job costs: CPU, memory and bytes of the interface in a real pty.

    python benchmarks/tui_cost.py [--ranks 8] [--gpus 8] [--history-s 3600] [--seconds 30]

A writer process plays the supervisor: it replaces the snapshot and appends to the history once a
second. The interface runs as a person starts it, `ddptop attach JOB`, in a pty of 120 by 40.
"""

from __future__ import annotations

import argparse
import datetime as dt
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from common import Screen, cpu_s_of_tree

from ddptop_runner import procs
from ddptop_runner.balance import imbalance
from ddptop_runner.history import HistoryWriter
from ddptop_runner.model import Event, GpuSample, NodeSnapshot, RankSample, encode
from ddptop_runner.paths import RunFolder
from ddptop_runner.spec import JobSpec, write_atomic, write_spec

JOB = "bench"


def samples(
    second: int, ranks: int, gpus: int, chance: random.Random
) -> tuple[list[RankSample], list[GpuSample]]:
    """Figures that all change from second to second, as a busy job's do."""
    loss = 2.0 + 6.0 * math.exp(-second / 2000)
    rank_samples = [
        RankSample(
            rank=rank,
            local_rank=rank,
            host=procs.host_name(),
            pid=1000 + rank,
            gpu=rank if gpus else None,
            state="running",
            step=3 * second + rank % 2,
            loss=loss + chance.gauss(0, 0.05),
            loss_state="ok",
            step_time_s=0.33 + chance.gauss(0, 0.01),
            steps_per_s=3.0 + chance.gauss(0, 0.05),
            cpu_percent=100 + chance.gauss(0, 5),
            rss_bytes=int(4e9 + chance.gauss(0, 1e7)),
            last_progress_at=dt.datetime.now(dt.timezone.utc),
        )
        for rank in range(ranks)
    ]
    gpu_samples = [
        GpuSample(
            index=index,
            uuid=f"GPU-{index}",
            name="NVIDIA H100 80GB HBM3",
            util_percent=round(95 + chance.gauss(0, 3)),
            mem_used_bytes=int(6e10 + chance.gauss(0, 1e8)),
            mem_total_bytes=80 << 30,
            temperature_c=round(60 + chance.gauss(0, 1)),
            power_w=600 + chance.gauss(0, 10),
            power_limit_w=700.0,
            processes=[],
        )
        for index in range(gpus)
    ]
    return rank_samples, gpu_samples


def play_supervisor(home: Path, ranks: int, gpus: int, history_s: int, step_s: int) -> None:
    """Write a run folder with a past, then go on once a second until killed."""
    chance = random.Random(1)
    now = int(time.time())
    started = dt.datetime.fromtimestamp(now - history_s, dt.timezone.utc)
    spec = JobSpec(
        job=JOB,
        job_id=f"{JOB}@1",
        host=procs.host_name(),
        created_at=started,
        kind="script",
        target="train.py",
        python=sys.executable,
        cwd="/",
        nproc=ranks,
    )
    folder = RunFolder(home / "runs" / JOB)
    folder.nodes_dir.mkdir(parents=True)
    log = folder.log_file(0, 0)
    log.parent.mkdir(parents=True)
    history = HistoryWriter(folder.history_db, batch_s=600.0)
    for second in range(0, history_s, step_s):
        history.add(now - history_s + second, 0, *samples(second, ranks, gpus, chance))
    history.event(Event(ts=started, type="launched", message="train.py", attempt=0))
    history.close()
    write_spec(folder, spec)
    history = HistoryWriter(folder.history_db)
    second = history_s
    while True:
        rank_samples, gpu_samples = samples(second, ranks, gpus, chance)
        snapshot = NodeSnapshot(
            job=JOB,
            job_id=spec.job_id,
            host=spec.host,
            seq=second,
            ts=dt.datetime.now(dt.timezone.utc),
            state="running",
            attempt=0,
            restarts_left=3,
            world_size=ranks,
            started_at=started,
            step=3 * second,
            total_steps=10**6,
            eta_s=1e5,
            guardian=procs.identify(os.getpid()),
            ranks=rank_samples,
            gpus=gpu_samples,
            imbalance=imbalance.of_job(rank_samples, gpu_samples),
        )
        write_atomic(folder.node_file(spec.host), encode(snapshot))
        history.add(time.time(), 0, rank_samples, gpu_samples)
        with log.open("a") as file:
            file.write(f"step {second * 3} loss {rank_samples[0].loss:.4f} lr 3e-4\n" * 3)
        second += 1
        time.sleep(1.0 - time.time() % 1.0 + 0.2)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--history-s", type=int, default=3600)
    parser.add_argument("--history-step-s", type=int, default=1, help="between samples of the past")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--overview", action="store_true", help="watch all jobs, not the one")
    parser.add_argument("--keys", default="", help="typed before measuring")
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="ddptop-bench-"))
    writer = os.fork()
    if writer == 0:
        play_supervisor(
            home, options.ranks, options.gpus, options.history_s, options.history_step_s
        )
    spec, node = home / "runs" / JOB / "job.json", home / "runs" / JOB / "nodes"
    while not (spec.exists() and any(node.iterdir())):
        time.sleep(0.1)
    env = {**os.environ, "DDPTOP_HOME": str(home), "TERM": "xterm-256color"}
    started = time.monotonic()
    screen = Screen(
        [sys.executable, "-m", "ddptop", *([] if options.overview else ["attach", JOB])], env
    )
    try:
        screen.drain(10.0, until=b"start")  # the time axis of the chart: everything is there
        opened_s = time.monotonic() - started
        screen.type(options.keys)
        screen.drain(8.0)
        before, drawn = cpu_s_of_tree(screen.pid), time.monotonic()
        received = screen.drain(options.seconds)
        share = (cpu_s_of_tree(screen.pid) - before) / (time.monotonic() - drawn)
        print(
            f"{options.ranks} ranks, {options.gpus} GPUs, {options.history_s} s of history:"
            f" {100 * share:.1f} % of a core, {received / options.seconds / 1000:.1f} kB/s,"
            f" RSS {screen.rss_bytes() / 2**20:.0f} MiB, whole screen {opened_s:.2f} s after the"
            " start"
        )
    finally:
        screen.close()
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
