"""Write a run folder as a supervisor does, with figures that all change every second.

A separate process writes it, so that the cost is not attributed to the viewer.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.base.files import write_atomic
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.host import procs
from ddptop_runner.judge.balance import imbalance
from ddptop_runner.model.snapshot import (
    Event,
    GpuSample,
    NodeSnapshot,
    Progress,
    RankSample,
    encode,
)
from ddptop_runner.model.spec import Device, JobSpec, NodeSpec, Placement, write_spec
from ddptop_runner.store.history import HistoryWriter

JOB = "bench"
TOTAL_STEPS = 10**6


def samples(
    second: int,
    now_s: float,
    ranks: int,
    gpus: int,
    rng: random.Random,
    hosts: Sequence[str] = (),
) -> tuple[list[RankSample], list[GpuSample]]:
    """Return samples that all change every second, as those of a busy job do.

    With `hosts`, each host gets an equal share of the ranks and devices, in order.
    """
    here = procs.host_name()

    def place(number: int, total: int) -> tuple[str, int]:
        each = total // max(1, len(hosts))
        return (hosts[number // each], number % each) if hosts else (here, number)

    loss = 2.0 + 6.0 * math.exp(-second / 2000)
    now = dt.datetime.fromtimestamp(now_s, dt.timezone.utc)
    rank_samples = [
        RankSample(
            rank=rank,
            local_rank=place(rank, ranks)[1],
            host=place(rank, ranks)[0],
            pid=100_000 + place(rank, ranks)[1],
            gpu=place(rank, ranks)[1] if rank < gpus else None,
            state="running",
            step=3 * second + rank % 2,
            loss=loss + rng.gauss(0, 0.05),
            loss_state="ok",
            step_time_s=0.33 + rng.gauss(0, 0.01),
            steps_per_s=3.0 + rng.gauss(0, 0.05),
            cpu_percent=100 + rng.gauss(0, 5),
            rss_bytes=int(4e9 + rng.gauss(0, 1e7)),
            last_progress_at=now,
        )
        for rank in range(ranks)
    ]
    gpu_samples = [
        GpuSample(
            index=place(index, gpus)[1],
            host=place(index, gpus)[0],
            uuid=f"GPU-{index:08x}-1111-2222-3333-444455556666",  # as in the stub driver
            name="NVIDIA H100 80GB HBM3",
            util_percent=round(95 + rng.gauss(0, 3)),
            mem_used_bytes=int(6e10 + rng.gauss(0, 1e8)),
            mem_total_bytes=80 << 30,
            temperature_c=round(60 + rng.gauss(0, 1)),
            power_w=600 + rng.gauss(0, 10),
            power_limit_w=700.0,
            processes=[],
        )
        for index in range(gpus)
    ]
    return rank_samples, gpu_samples


def _placement(hosts: Sequence[str], ranks: int, gpus: int) -> Placement:
    devices = [Device(index=index) for index in range(gpus // len(hosts))]
    nodes = [
        NodeSpec(
            host=host,
            address=host,
            nproc=ranks // len(hosts),
            devices=devices or None,
            python=sys.executable,
            command=["ddptop-node"],
            ports=[29500],
        )
        for host in hosts
    ]
    return Placement(by="ssh", nodes=nodes, min_nodes=len(hosts))


class Feed:
    """The run folder of one live job; each `tick` adds one second."""

    def __init__(
        self,
        home: Path,
        ranks: int,
        gpus: int,
        *,
        history_s: int = 3600,
        step_s: int = 1,
        now_s: float | None = None,
        hosts: Sequence[str] = (),
    ) -> None:
        """Write the history of the job, from `history_s` before `now_s` up to it, every `step_s`.

        With `hosts`, the folder is the head's merged view of a job on several nodes.
        """
        self._hosts = hosts
        self._ranks, self._gpus = ranks, gpus
        self._rng = random.Random(1)
        self._second = history_s
        now_s = time.time() if now_s is None else now_s
        self._started = dt.datetime.fromtimestamp(now_s - history_s, dt.timezone.utc)
        self._spec = JobSpec(
            job=JOB,
            job_id=f"{JOB}@1",
            host=procs.host_name(),
            created_at=self._started,
            kind="script",
            target="train.py",
            python=sys.executable,
            cwd="/",
            nproc=ranks,
            placement=_placement(hosts, ranks, gpus) if hosts else None,
        )
        self.folder = RunFolder(home / "runs" / JOB)
        self.folder.nodes_dir.mkdir(parents=True)
        self._log = self.folder.log_file(0, 0)
        self._log.parent.mkdir(parents=True)
        past = HistoryWriter(self.folder.history_db, batch_s=600.0, hosts=hosts)
        for second in range(0, history_s, step_s):
            at_s = now_s - history_s + second
            past.add(at_s, 0, *samples(second, at_s, ranks, gpus, self._rng, hosts))
        past.event(Event(ts=self._started, type="launched", message="train.py", attempt=0))
        past.close()
        self._history = HistoryWriter(self.folder.history_db, hosts=hosts)
        self.tick(now_s)
        write_spec(self.folder, self._spec)

    def tick(self, now_s: float) -> None:
        """Write the second that starts at `now_s`."""
        second = self._second
        ranks, gpus = samples(second, now_s, self._ranks, self._gpus, self._rng, self._hosts)
        snapshot = NodeSnapshot(
            job=JOB,
            job_id=self._spec.job_id,
            host=self._spec.host,
            seq=second,
            ts=dt.datetime.fromtimestamp(now_s, dt.timezone.utc),
            boottime_s=boottime_s(),
            boot_id=procs.boot_id(),
            pid_ns=procs.pid_namespace(),
            state="running",
            attempt=0,
            restarts_left=3,
            world_size=self._ranks,
            started_at=self._started,
            step=3 * second,
            total_steps=TOTAL_STEPS,
            eta_s=(TOTAL_STEPS - 3 * second) / 3,
            progress=Progress(
                fraction=3 * second / TOTAL_STEPS,
                step=3 * second,
                total=TOTAL_STEPS,
                counts="run",
                eta_s=(TOTAL_STEPS - 3 * second) / 3,
                source="api",
            ),
            guardian=procs.identify(os.getpid()),
            ranks=ranks,
            gpus=gpus,
            imbalance=imbalance.of_job(ranks, gpus),
        )
        write_atomic(self.folder.node_file(self._spec.host), encode(snapshot))
        self._history.add(now_s, 0, ranks, gpus)
        with self._log.open("a", encoding="utf-8") as file:
            file.write(f"step {second * 3} loss {ranks[0].loss:.4f} lr 3e-4\n" * 3)
        self._second += 1
        self._last = snapshot

    def end(self) -> None:
        """Finish the job, after which nothing in the folder changes."""
        now = dt.datetime.now(dt.timezone.utc)
        done = [msgspec.structs.replace(rank, state="finished") for rank in self._last.ranks]
        snapshot = msgspec.structs.replace(
            self._last, state="finished", ended_at=now, exit_code=0, ranks=done, guardian=None
        )
        self._history.event(Event(ts=now, type="finished", message="finished", attempt=0))
        self._history.close(final=True)
        write_atomic(self.folder.node_file(self._spec.host), encode(snapshot))


class Feeder:
    """A process that creates a feed and ticks it once a second, or ends it immediately."""

    def __init__(self, make: Callable[[], Feed], *, ends: bool = False) -> None:
        ready, notify = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.nice(5)
            try:
                feed = make()
                if ends:
                    feed.end()
                os.write(notify, b".")
                while not ends:
                    time.sleep(1.0 - time.time() % 1.0 + 0.2)
                    feed.tick(time.time())
            except BaseException as error:
                print(f"the feed failed: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(1)
        os.close(notify)
        if not os.read(ready, 1):
            raise SystemExit("the feed did not start")
        os.close(ready)

    def close(self) -> None:
        """Kill the process."""
        try:
            os.kill(self._pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(self._pid, 0)
