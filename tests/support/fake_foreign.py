"""Foreign jobs as their watcher reports them, on a machine with a frozen clock."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from msgspec.structs import replace
from tests.support.builders import with_run_step
from tests.support.fake_home import GIB, HOST, NOW, ago, gpu, uuid

from ddptop_runner.devices.report import DeviceReport
from ddptop_runner.foreign.types import Census, ForeignJob, ForeignRank, ForeignView, Unreadable
from ddptop_runner.foreign.watch import NewLines
from ddptop_runner.judge.balance import imbalance
from ddptop_runner.model.snapshot import (
    Alert,
    Event,
    GpuProcess,
    GpuSample,
    NodeSnapshot,
    RankSample,
)
from ddptop_runner.store.history_reader import Series


class FakeWorld:
    """What the fakes below return; reset by the fixture."""

    views: ClassVar[list[ForeignView]] = []
    unreadable: ClassVar[list[Unreadable]] = []
    losses: ClassVar[dict[str, dict[int, Series]]] = {}
    by_step: ClassVar[dict[str, dict[int, Series]]] = {}
    scalars: ClassVar[dict[str, dict[str, Series]]] = {}
    lines: ClassVar[dict[str, list[str]]] = {}
    events: ClassVar[dict[str, list[Event]]] = {}
    followed: ClassVar[list[str | None]] = []
    takes = 0

    @classmethod
    def clear(cls) -> None:
        for kept in (cls.views, cls.unreadable, cls.followed):
            kept.clear()
        for known in (cls.losses, cls.by_step, cls.scalars, cls.lines, cls.events):
            known.clear()
        cls.takes = 0


class FakeTaker:
    """Replaces the census."""

    def scan(self, gpus: Sequence[GpuSample] = ()) -> Census:
        FakeWorld.takes += 1
        return Census(unreadable=tuple(FakeWorld.unreadable))


class FakeBook:
    """Replaces the watcher of foreign jobs."""

    def update(
        self, census: Census, gpus: Sequence[GpuSample], now: Any, *, follow: str | None = None
    ) -> list[ForeignView]:
        FakeWorld.followed.append(follow)
        return list(FakeWorld.views)

    def curves(self, job: str, *, by_step: bool = False) -> SimpleNamespace:
        losses = (FakeWorld.by_step if by_step else FakeWorld.losses).get(job, {})
        found = losses, {} if by_step else FakeWorld.scalars.get(job, {})
        span = (losses[0].t[0], losses[0].t[-1]) if losses else None
        return SimpleNamespace(span=lambda: span, series=lambda *_: found)

    def is_whole(self, job: str) -> bool:
        return True

    def events(self, job: str) -> list[Event]:
        return FakeWorld.events.get(job, [])

    def lines(self, job: str, rank: int | None = None, since: Any = ()) -> NewLines:
        anew = not since
        return NewLines(tuple(FakeWorld.lines.get(job, ())) if anew else (), "", anew, (job, rank))

    def close(self) -> None:
        pass


def foreign_job(
    name: str, ranks: int, *, pid: int = 4711, launcher: str = "torchrun", **more: Any
) -> ForeignJob:
    values: dict[str, Any] = {
        "name": f"{name}:{pid}",
        "launcher": launcher,
        "root_pid": pid,
        "root_start_ticks": 1,
        "uid": os.getuid(),
        "user": "root",
        "command": f"torchrun --nproc-per-node {ranks} {name} --lr 3e-4",
        "started_at": ago(4330),
        "world_size": ranks,
        "ranks": tuple(
            ForeignRank(
                rank=rank,
                local_rank=rank,
                pid=pid + 10 + rank,
                start_ticks=2,
                devices=(uuid(rank),),
            )
            for rank in range(ranks)
        ),
        "launcher_pids": (pid,),
    }
    return ForeignJob(**{**values, **more})


def view_of(
    job: ForeignJob,
    ranks: Sequence[RankSample],
    gpus: Sequence[GpuSample],
    *,
    output: str | None = "a terminal, pts/3: what is written there cannot be read by others",
    **more: Any,
) -> ForeignView:
    values: dict[str, Any] = {
        "job": job.name,
        "job_id": job.name,
        "host": HOST,
        "seq": 1,
        "ts": NOW,
        "state": "running",
        "world_size": job.world_size,
        "started_at": job.started_at,
        "ranks": list(ranks),
        "gpus": list(gpus),
        "imbalance": imbalance.of_job(ranks, gpus),
        "source": "nvml",
        "driver": "570.86.15",
    }
    snapshot = with_run_step(NodeSnapshot(**{**values, **more}), more)
    return ForeignView(job, snapshot, NOW, output)


def ranks_of(
    job: ForeignJob, first_gpu: int = 0, **by_rank: dict[int, Any]
) -> tuple[list[RankSample], list[GpuSample]]:
    """Healthy ranks, one per device; `by_rank` changes fields of single ranks."""
    ranks, gpus = [], []
    for member in job.ranks:
        index = first_gpu + member.rank
        values: dict[str, Any] = {
            "rank": member.rank,
            "local_rank": member.local_rank,
            "host": HOST,
            "pid": member.pid,
            "gpu": index,
            "gpus": [uuid(index)],
            "cuda_device": member.rank,
            "state": "running",
            "cpu_percent": 101.0 + member.rank,
            "rss_bytes": int(9.4 * GIB),
            "gpu_util_percent": 97.0 - member.rank % 2,
            "gpu_mem_used_bytes": int(61.2 * GIB),
            "gpu_power_w": 604.0 + member.rank,
        }
        values |= {name: each[member.rank] for name, each in by_rank.items() if member.rank in each}
        rank = RankSample(**values)
        ranks.append(rank)
        gpus.append(
            gpu(
                index,
                util_percent=rank.gpu_util_percent,
                mem_used_bytes=rank.gpu_mem_used_bytes,
                power_w=rank.gpu_power_w,
                processes=[
                    GpuProcess(
                        pid=member.pid,
                        user=job.user,
                        command=job.command,
                        mem_used_bytes=rank.gpu_mem_used_bytes,
                        sm_util_percent=rank.gpu_util_percent,
                        job=job.name,
                        rank=member.rank,
                    )
                ],
            )
        )
    return ranks, gpus


def falling_losses(seconds: int = 900, every_s: int = 5) -> dict[int, Series]:
    start = int(NOW.timestamp()) - seconds
    times = list(range(start, start + seconds + 1, every_s))
    values = [2.1 + 6.5 * math.exp(-(t - start) / 130) + 0.05 * math.sin(t) for t in times]
    return {0: Series(t=times, min=values, mean=values, max=values, last=values, bucket_s=every_s)}


# --- whole jobs ------------------------------------------------------------------------------


def healthy() -> ForeignView:
    """Four ranks started by torchrun, whose log is a file with losses."""
    job = foreign_job("train.py", 4)
    ranks, gpus = ranks_of(job)
    ranks[0] = replace(ranks[0], step=1841, loss=2.1843, loss_state="ok", loss_source="log")
    view = view_of(job, ranks, gpus, output="/home/root/run.log", step=1841)
    FakeWorld.losses[view.job] = falling_losses()
    FakeWorld.lines[view.job] = [f"step {i} loss {2.2 - i / 1e4:.4f}" for i in range(1742, 1842)]
    FakeWorld.events[view.job] = [event(12, "rank_started", "rank 3 is seen: pid 4724", rank=3)]
    FakeWorld.views.append(view)
    return view


def with_findings() -> ForeignView:
    """Another user's job: one rank ended on a lost device, one blocked, one with too much memory.

    Its output is not readable.
    """
    job = foreign_job(
        "finetune.py",
        4,
        pid=5100,
        launcher="mp.spawn",
        user="alice",
        uid=12345,
        command="python finetune.py --model 7b",
        notes=("its environment may not be read: ranks are told by their order of start",),
    )
    ranks, gpus = ranks_of(
        job,
        4,
        gpu_mem_used_bytes={0: 78 * GIB},
        gpu_power_w={2: 118.0},
        gpu_util_percent={2: 0.0},
        state={2: "zombie", 3: "blocked"},
        state_reason={
            2: "exited, but not yet reaped by its parent",
            3: "in state D for 12 s",
        },
    )
    message = "GPU 6 is lost"
    view = view_of(
        job,
        ranks,
        gpus,
        output="terminal /dev/pts/7 without tmux: cannot be read",
        alerts=[
            Alert(
                id="gpu-lost",
                severity="error",
                ranks=[2],
                gpus=[6],
                message=message,
                since=ago(41),
            ),
            Alert(
                id="context-0",
                severity="warning",
                ranks=[1, 2, 3],
                gpus=[4],
                message="ranks 1-3 hold 512 MiB each on GPU 4, the device of rank 0: call "
                "torch.cuda.set_device(local_rank) before the first CUDA call",
                since=ago(300),
            ),
        ],
    )
    FakeWorld.views.append(view)
    return view


def gone() -> ForeignView:
    """The healthy job a minute after its processes exited."""
    view = healthy()
    snapshot = replace(
        view.snapshot,
        state="lost",
        ended_at=ago(62),
        ranks=[
            replace(rank, state="unknown", state_reason="exited; exit status unknown")
            for rank in view.snapshot.ranks
        ],
    )
    lost = replace(view, snapshot=snapshot)
    FakeWorld.views[FakeWorld.views.index(view)] = lost
    FakeWorld.events[view.job].insert(0, event(62, "rank_exited", "all ranks are gone", seq=2))
    return lost


def unreadable() -> None:
    """Two processes of another user."""
    FakeWorld.unreadable.extend(
        Unreadable(
            pid=7000 + place,
            user="bob",
            command="python secret.py",
            gpus=(uuid(place),),
            reason="its environment belongs to bob: run ddptop as bob or as root",
        )
        for place in range(2)
    )


def event(seconds_ago: float, kind: str, message: str, **more: Any) -> Event:
    return Event(ts=ago(seconds_ago), type=kind, message=message, **{"seq": 1, **more})


class HeldFeed:
    """Replaces the sampler: eight devices used by the ranks of the views."""

    def __init__(self, uuids: object = None) -> None:
        held = {g.index: g for view in FakeWorld.views for g in view.snapshot.gpus}
        gpus = [strangers(held.get(index) or gpu(index, util_percent=0.0)) for index in range(8)]
        self.latest = DeviceReport(
            ts=NOW,
            boottime_s=0.0,
            source="nvml",
            gpus=gpus,
        )

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass


def strangers(of: GpuSample) -> GpuSample:
    """As a sampler reports it, without jobs."""
    processes = [replace(p, job=None, rank=None) for p in of.processes or []]
    return replace(of, processes=processes)


class IllFeed(HeldFeed):
    """The same driver with a different problem on each device."""

    def __init__(self, uuids: object = None) -> None:
        super().__init__()
        ill = [
            gpu(
                0,
                util_percent=97.0,
                temperature_c=86.0,
                temperature_slowdown_c=87.0,
                sm_clock_mhz=1200,
                sm_clock_max_mhz=1980,
                mem_clock_mhz=2619,
                pstate=0,
                fan_percent=None,
                energy_j=4.1e8,
                remapped_rows=0,
                throttle_reasons=["thermal, by hardware", "power cap"],
                unknown={"fan_percent": "not supported by this device"},
                processes=[
                    GpuProcess(
                        pid=31000,
                        user="ada",
                        command="/opt/env/bin/python train.py",
                        mem_used_bytes=55 * GIB,
                        sm_util_percent=96.0,
                    ),
                    GpuProcess(pid=31001, note="its pid is one of another container"),
                ],
            ),
            gpu(1, lost=True, note="lost: fell off the bus; a reset or a reboot brings it back"),
            gpu(2, xid=[79], xid_meanings=["the GPU has fallen off the bus"]),
            gpu(3, ecc_uncorrected=3, remapped_rows=12, remap_pending=True),
            gpu(4, remap_failed=True),
            GpuSample(
                index=5,
                uuid=uuid(5),
                name="NVIDIA H100 80GB HBM3",
                unknown={
                    "util_percent": "no permission",
                    "mem_used_bytes": "no permission",
                    "temperature_c": "the driver has no such function",
                    "processes": "no permission",
                },
            ),
            gpu(6, mig_instances=["MIG-aaaa", "MIG-bbbb"], util_percent=None),
            gpu(6, uuid="MIG-aaaa", parent_uuid=uuid(6), util_percent=None, name="MIG 3g.40gb"),
            gpu(7, temperature_c=61.0),
        ]
        note = "the driver took 3 s to answer: figures come late"
        self.latest = replace(self.latest, gpus=ill, note=note)
