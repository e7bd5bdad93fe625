"""A job on two hosts with four devices each, as in the head's merged snapshot."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from ddptop_runner.model.snapshot import GpuProcess, GpuSample, NodeSnapshot, RankSample
from ddptop_runner.model.spec import Device, NodeSpec, Placement

GIB = 1024**3
HOSTS = ("a", "b")
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)


def placement(hosts: Sequence[str] = HOSTS, per_host: int = 4) -> Placement:
    """The nodes, in order."""
    return Placement(
        by="ssh",
        nodes=[
            NodeSpec(
                host=host,
                address=host,
                nproc=per_host,
                devices=[Device(index=index) for index in range(per_host)],
                python="/usr/bin/python3",
                command=["ddptop-node"],
                ports=[29500],
            )
            for host in hosts
        ],
        min_nodes=len(hosts),
    )


def rank_on(host: str, number: int, local: int, **fields: Any) -> RankSample:
    """A rank at work; a rank on another host has the same PID."""
    known: dict[str, Any] = {
        "pid": 100 + local, "gpu": local, "state": "running", "step": 50, "steps_per_s": 5.0,
        "step_time_s": 0.2, "data_wait_s": 0.02, "gpu_mem_used_bytes": 30 * GIB,
        "loss": 2.0, "loss_state": "ok",
    }  # fmt: skip
    return RankSample(rank=number, local_rank=local, host=host, **(known | fields))


def device_on(host: str, number: int, local: int, job: str = "train", **fields: Any) -> GpuSample:
    """The device of that rank; a device on another host has the same index."""
    held = GpuProcess(pid=100 + local, job=job, rank=number, mem_used_bytes=30 * GIB)
    known: dict[str, Any] = {
        "uuid": f"GPU-{host}-{local}", "util_percent": 97.0, "mem_used_bytes": 31 * GIB,
        "mem_total_bytes": 80 * GIB, "power_w": 420.0, "power_limit_w": 700.0,
        "temperature_c": 60.0, "xid": [], "processes": [held],
    }  # fmt: skip
    return GpuSample(index=local, host=host, **(known | fields))


def ranks_and_devices(
    hosts: Sequence[str] = HOSTS, per_host: int = 4
) -> tuple[list[RankSample], list[GpuSample]]:
    """All ranks, in node order."""
    places = [(host, local) for host in hosts for local in range(per_host)]
    ranks = [rank_on(host, number, local) for number, (host, local) in enumerate(places)]
    return ranks, [device_on(host, number, local) for number, (host, local) in enumerate(places)]


def merged(
    ranks: Sequence[RankSample], gpus: Sequence[GpuSample], second: float = 0.0, **more: Any
) -> NodeSnapshot:
    """The head's snapshot; the head's machine is one of the hosts, or neither."""
    known: dict[str, Any] = {"host": "head", "state": "running", "attempt": 0, "job": "train"}
    known |= more
    return NodeSnapshot(
        job_id="train@1", seq=1, ts=NOON + dt.timedelta(seconds=second), started_at=NOON,
        world_size=len(ranks), ranks=list(ranks), gpus=list(gpus), **known,
    )  # fmt: skip
