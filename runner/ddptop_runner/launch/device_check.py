"""Implements `launch --check`: a short measurement by one process per rank.

`run` measures one host, on all hosts at the same time; `judge` compares their results.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ddptop_runner.base.units import plural
from ddptop_runner.host.addresses import interface_of
from ddptop_runner.launch.gpus.choice import job_environment
from ddptop_runner.model.spec import Device
from ddptop_runner.model.words import Base
from ddptop_runner.store.logs import tail_bytes

LIMIT_S = 90.0
SCRIPT = Path(__file__).parents[1] / "agent" / "check.py"
SLOW_SHARE = {True: 0.75, False: 0.5}
"""Share of the median below which a rank is slow, by whether it has a GPU; CPUs are noisier."""
SLOW_LINK_SHARE = 0.5
MOST_OUTPUT_BYTES = 64 << 10
POLL_S = 0.05


class Rendezvous(Base, frozen=True, kw_only=True):
    """How this host's ranks join the measurement."""

    python: str
    address: str
    port: int
    address_here: str = ""
    """This host's own address; gloo uses the interface that has it."""
    first_ranks: list[int]
    """The first rank of each node."""
    world: int
    node: int
    nproc: int
    devices: list[Device] | None = None
    env: dict[str, str] = {}


class RankResult(Base, frozen=True, kw_only=True):
    """What one rank reported."""

    rank: int
    local_rank: int
    stage: str | None = None
    """The last stage that it completed; None if it completed none."""
    flops_per_s: float | None = None
    all_reduce_s: float | None = None
    links: dict[str, float] = {}
    """Bytes per second, by the rank at the other end."""
    error: str | None = None
    """The last line of its stderr if it failed."""


class HostResult(Base, frozen=True, kw_only=True):
    """What all ranks of one host reported."""

    ranks: list[RankResult]


class _Stage(Base, frozen=True, kw_only=True):
    """One line from a rank."""

    stage: str
    flops_per_s: float | None = None
    seconds: float | None = None
    peer: int | None = None
    bytes_per_s: float | None = None


def run(rendezvous: Rendezvous, limit_s: float = LIMIT_S) -> HostResult:
    """Measure this host's ranks; returns when all are done, one has failed, or the time is up."""
    deadline_s = time.monotonic() + limit_s
    with tempfile.TemporaryDirectory() as folder:
        ranks = [_Rank(rendezvous, local_rank, folder) for local_rank in range(rendezvous.nproc)]
        try:
            while time.monotonic() < deadline_s:
                statuses = [one.process.poll() for one in ranks]
                if None not in statuses:
                    break
                if any(statuses):  # the others wait for it in vain
                    deadline_s = min(deadline_s, time.monotonic() + 1)
                time.sleep(POLL_S)
            return HostResult(ranks=[one.result() for one in ranks])
        finally:
            for one in ranks:
                one.end()


class _Rank:
    """One process, whose output goes to two files."""

    def __init__(self, rendezvous: Rendezvous, local_rank: int, folder: str) -> None:
        self.local_rank = local_rank
        self.rank = rank = rendezvous.first_ranks[rendezvous.node] + local_rank
        self._out, self._err = Path(folder, f"{rank}.out"), Path(folder, f"{rank}.err")
        env = {**os.environ, **rendezvous.env, **job_environment(rendezvous.devices)}
        env |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(rendezvous.world),
            "MASTER_ADDR": rendezvous.address,
            "MASTER_PORT": str(rendezvous.port),
            "OMP_NUM_THREADS": "1",
            "DDPTOP_CHECK_GPU": "1" if rendezvous.devices else "0",
            "DDPTOP_CHECK_FIRSTS": ",".join(map(str, rendezvous.first_ranks)),
        }
        if (interface := interface_of(rendezvous.address_here)) is not None:
            env.setdefault("GLOO_SOCKET_IFNAME", interface)
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [rendezvous.python, "-u", str(SCRIPT)],
                stdin=subprocess.PIPE,  # it exits when this ends
                stdout=out,
                stderr=err,
                cwd="/",
                env=env,
            )

    def end(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.communicate()

    def result(self) -> RankResult:
        """What it has reported so far."""
        found = RankResult(rank=self.rank, local_rank=self.local_rank)
        for line in tail_bytes(self._out, MOST_OUTPUT_BYTES).splitlines():
            try:
                said = msgspec.json.decode(line, type=_Stage)
            except msgspec.MsgspecError:  # libraries print to stdout too
                continue
            links = dict(found.links)
            if said.peer is not None and said.bytes_per_s is not None:
                links[str(said.peer)] = said.bytes_per_s
            found = msgspec.structs.replace(
                found,
                stage=said.stage,
                flops_per_s=said.flops_per_s or found.flops_per_s,
                all_reduce_s=said.seconds or found.all_reduce_s,
                links=links,
            )
        status = self.process.poll()
        if status is None or (status == 0 and found.stage == "done"):
            return found
        error = tail_bytes(self._err, MOST_OUTPUT_BYTES).decode("utf-8", "replace")
        lines = error.strip().splitlines()
        error = lines[-1][:300] if lines else f"exit status {status}"
        return msgspec.structs.replace(found, error=error)


# --- judging the results --------------------------------------------------------------------------


class Findings(msgspec.Struct, frozen=True):
    """The findings of `--check`."""

    broken: list[str]
    """One line for each host that cannot train."""
    slow: list[str]
    """One line for each device or link that slows the others down."""
    summary: str
    """One line of figures."""


def judge(
    results: Mapping[str, HostResult | None], devices: Mapping[str, Sequence[Device] | None]
) -> Findings:
    """Name what is slow or broken.

    Args:
        results: by host, in the order of the nodes; None if none arrived.
        devices: by host; None or empty for CPU ranks.
    """
    ranks = [(host, one) for host, result in results.items() if result for one in result.ranks]
    broken = _broken(results, devices)
    if broken:
        return Findings(broken, [], f"{plural(len(broken), 'problem')} found")
    slow = _slow_ranks(ranks, devices) + _slow_links(ranks)
    speeds = [one.flops_per_s for _, one in ranks if one.flops_per_s]
    reduced = [one.all_reduce_s for _, one in ranks if one.all_reduce_s]
    links = [speed for _, one in ranks for speed in one.links.values()]
    words = [f"{plural(len(ranks), 'rank')} measured"]
    words += [f"matrix product {_flops(statistics.median(speeds))} per rank"] if speeds else []
    words += [f"all-reduce {max(reduced) * 1e3:.3g} ms"] if reduced else []
    words += [f"slowest link {min(links) / 1e9:.3g} GB/s"] if links else []
    return Findings([], slow, ", ".join(words))


def _broken(
    results: Mapping[str, HostResult | None], devices: Mapping[str, Sequence[Device] | None]
) -> list[str]:
    """The failures. If any came before the ranks connected, only those: they cause the others."""
    alone: list[str] = []
    others: list[str] = []
    for host, result in results.items():
        if result is None:
            others.append(f"{host}: no result")
            continue
        for one in result.ranks:
            who = f"{host}: {_who(one, devices.get(host))}"
            if one.stage is None:
                alone.append(f"{who} failed on its own: {one.error or 'it did not finish in time'}")
            elif one.stage != "done":
                others.append(
                    f"{who} failed with the others, after {one.stage}: {one.error or 'no progress'}"
                )
    return alone or others


def _who(one: RankResult, devices: Sequence[Device] | None) -> str:
    if devices and one.local_rank < len(devices):
        return f"rank {one.rank} (GPU {devices[one.local_rank].index})"
    return f"rank {one.rank}"


def _flops(value: float) -> str:
    return f"{value / 1e12:.3g} TFLOP/s" if value >= 1e12 else f"{value / 1e9:.3g} GFLOP/s"


def _slow_ranks(
    ranks: Sequence[tuple[str, RankResult]], devices: Mapping[str, Sequence[Device] | None]
) -> list[str]:
    found = []
    speeds = [one.flops_per_s for _, one in ranks if one.flops_per_s]
    middle = statistics.median(speeds) if speeds else 0.0
    for host, one in ranks:
        share = SLOW_SHARE[bool(devices.get(host))]
        if one.flops_per_s and one.flops_per_s < middle * share:
            found.append(
                f"{host}: {_who(one, devices.get(host))} computes at"
                f" {one.flops_per_s / middle * 100:.0f} % of the median"
                f" ({_flops(one.flops_per_s)} of {_flops(middle)})"
            )
    return found


def _slow_links(ranks: Sequence[tuple[str, RankResult]]) -> list[str]:
    host_of = {one.rank: host for host, one in ranks}
    links = {
        (host, host_of[int(peer)]): speed
        for host, one in ranks
        for peer, speed in one.links.items()
        if int(peer) in host_of
    }
    best = max(links.values(), default=0.0)
    return [
        f"the link between {one} and {other} is slow"
        f" ({speed / 1e9:.3g} GB/s, others {best / 1e9:.3g} GB/s)"
        for (one, other), speed in links.items()
        if speed < best * SLOW_LINK_SHARE
    ]
