"""Measure the CPU time of a job's head with many nodes, fed with simulated reports at 1 Hz.

    python benchmarks/head_cost.py [--nodes 128] [--ranks 8] [--seconds 30]

Each node sends one line per second with samples of its ranks and devices, as `ddptop-node` does.
The real head decodes and merges them, makes decisions, evaluates alerts, and writes the snapshot
and the history. The clock is simulated; the result is CPU time per simulated second. It excludes
the nodes themselves, ssh, and the kernel's work on the pipes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import msgspec

from ddptop_runner.base import clock
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.launch import ssh
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.snapshot import GpuSample, NodeSnapshot, RankSample
from ddptop_runner.model.spec import JobSpec, NodeSpec, Placement, write_spec
from ddptop_runner.node import engine, process, remote_nodes
from ddptop_runner.node import head as head_module

ALLOWED_PERCENT = 12.0


def spec_of(nodes: int, ranks: int, folder: Path) -> JobSpec:
    """Return the spec of a job on `nodes` nodes."""
    return JobSpec(
        job="many",
        job_id="many@bench",
        host="head",
        created_at=utc_now(),
        kind="script",
        target="train.py",
        python=sys.executable,
        cwd=str(folder),
        nproc=nodes * ranks,
        backing="daemon",
        hang_auto=True,
        placement=Placement(
            by="pipe",
            min_nodes=1,
            nodes=[
                NodeSpec(
                    host=f"node-{number:03d}",
                    address="127.0.0.1",
                    nproc=ranks,
                    python=sys.executable,
                    command=["true"],
                    ports=[29500],
                )
                for number in range(nodes)
            ],
        ),
    )


def line_of(number: int, ranks: int, second: int) -> bytes:
    """Return the line that one node sends in a given second."""
    first = number * ranks
    samples = [
        RankSample(
            rank=first + local,
            local_rank=local,
            host="x",
            pid=1000 + local,
            gpu=local,
            gpus=[f"GPU-{number}-{local}"],
            state="running",
            step=10 * second,
            step_source="probe",
            loss=2.5 - 0.001 * second + 0.01 * local,
            loss_step=10 * second,
            loss_state="ok",
            loss_source="probe",
            step_time_s=0.1 + 0.001 * local,
            steps_per_s=10.0,
            data_wait_s=0.001,
            sync_s=0.01,
            compute_s=0.08,
            cpu_percent=99.0,
            rss_bytes=3 << 30,
            gpu_util_percent=97.0,
            gpu_mem_used_bytes=60 << 30,
            last_progress_at=utc_now(),
            has_probe=True,
            phase="steps",
        )
        for local in range(ranks)
    ]
    gpus = [
        GpuSample(
            index=local,
            uuid=f"GPU-{number}-{local}",
            name="NVIDIA H200",
            util_percent=97.0,
            mem_used_bytes=60 << 30,
            mem_total_bytes=140 << 30,
            temperature_c=61.0,
            power_w=620.0,
            power_limit_w=700.0,
            throttle_reasons=[],
        )
        for local in range(ranks)
    ]
    snapshot = NodeSnapshot(
        job="many",
        job_id=f"many@bench.{number}",
        host="x",
        seq=second,
        ts=utc_now(),
        state="running",
        attempt=0,
        started_at=utc_now(),
        ranks=samples,
        gpus=gpus,
        step=10 * second,
    )
    progress = [
        {
            "rank": one.rank,
            "alive": True,
            "paused": False,
            "steps": one.step,
            "since_progress_s": 0.05,
            "unheard_s": 0.2,
            "phase": "steps",
        }
        for one in samples
    ]
    return msgspec.json.encode(pt.NodeState(snapshot=snapshot, progress=progress))


async def measure(nodes: int, ranks: int, seconds: int) -> float:
    """Print the CPU time per simulated second; return the mean in percent of a core."""
    with tempfile.TemporaryDirectory(prefix="ddptop-bench-") as name:
        folder = RunFolder(Path(name) / "runs" / "many")
        folder.nodes_dir.mkdir(parents=True)
        spec = spec_of(nodes, ranks, folder.path)
        write_spec(folder, spec)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.setblocking(False)
        head = head_module.Head(folder, spec, theirs)
        with mock.patch.object(head, "_carry_out"):
            head._greet(pt.GuardianHello(attempt=0, guardian_pid=os.getpid(), agent_pid=None))
        assert head.job.attempt == 0
        size, times = 0, []
        began_s = clock.boottime_s()
        for second in range(1, seconds + 1):
            lines = {
                host: line_of(number, ranks, second)
                for number, host in enumerate(head.nodes.by_host)
            }
            now_s = began_s + second
            with (
                mock.patch.object(head_module, "boottime_s", lambda now_s=now_s: now_s),
                mock.patch.object(remote_nodes, "boottime_s", lambda now_s=now_s: now_s),
                mock.patch.object(engine, "boottime_s", lambda now_s=now_s: now_s),
                mock.patch.object(process, "boottime_s", lambda now_s=now_s: now_s),
            ):
                if second == 1:
                    for number, (host, part) in enumerate(head.nodes.by_host.items()):
                        part.link.is_up, part.ended = True, False
                        part.reported = remote_nodes.Reported.COMPLETE
                        workers = [
                            pt.Worker(rank=number * ranks + local, pid=1000 + local)
                            for local in range(ranks)
                        ]
                        head.take(pt.GroupStarted(node=host, attempt=0, workers=workers))
                used_s = time.process_time()
                for host, line in lines.items():
                    size += len(line)
                    report = ssh.decode_report(line)
                    assert isinstance(report, pt.NodeState)
                    head.nodes.take_report(head.nodes.by_host[host].link, report)
                head._tick()
                times.append(time.process_time() - used_s)
            while True:  # drain what the pane would show
                try:
                    ours.recv(65536, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    break
        later = times[len(times) // 3 :]
        percent = 100 * statistics.mean(later)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{nodes} nodes x {ranks} ranks at 1 Hz: head {percent:.1f} % "
            f"of a core (limit: {ALLOWED_PERCENT:.0f} %; worst second {100 * max(later):.1f} %),"
            f" {memory:.0f} MiB; "
            f"{size / seconds / nodes:.0f} bytes per second and node on the link"
        )
        for task in list(head.process.tasks):
            task.cancel()
        return percent


def main() -> None:
    """Measure; exit with 1 if the head uses more CPU time than ALLOWED_PERCENT."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=30)
    args = parser.parse_args()
    sys.exit(asyncio.run(measure(args.nodes, args.ranks, args.seconds)) > ALLOWED_PERCENT)


if __name__ == "__main__":
    main()
