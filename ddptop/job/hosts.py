"""Describes the hosts of a job in words."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence

from ddptop_runner.model.snapshot import GpuSample, NodeSnapshot, NodeStatus

MOST_CELLS = 12
"""Cells for a host name in a table."""


def hosts_of(snapshot: NodeSnapshot | None) -> list[str]:
    """The job's nodes, or else the hosts of its ranks, in order."""
    if snapshot is not None and snapshot.nodes:
        return [node.host for node in snapshot.nodes]
    return [] if snapshot is None else list(dict.fromkeys(rank.host for rank in snapshot.ranks))


def has_several(snapshot: NodeSnapshot | None) -> bool:
    """Whether the ranks are on several hosts, which makes host names worth showing."""
    if snapshot is None or not snapshot.ranks:
        return snapshot is not None and len(snapshot.nodes) > 1
    first = snapshot.ranks[0].host
    return any(rank.host != first for rank in snapshot.ranks)


def hosts_in_words(hosts: Sequence[str], most: int = 4) -> str:
    """`a, b`, or `128 (a to z)` for many hosts."""
    short = list(short_names(hosts, 16).values())
    if len(short) <= most:
        return ", ".join(short)
    return f"{len(short)} ({short[0]} to {short[-1]})"


def node_in_words(node: NodeStatus | None) -> str:
    """`unreachable since 12:03 (no route to host)`; empty if unknown."""
    if node is None:
        return ""
    since = node.unknown_since if node.state == "unreachable" else None
    when = "" if since is None else f" since {since.astimezone():%H:%M}"
    return f"{node.state}{when}{f' ({node.why})' if node.why else ''}"


def host_of(snapshot: NodeSnapshot | None, rank: int) -> str | None:
    """The host of a rank; None unless the job has several hosts."""
    if snapshot is None or not has_several(snapshot):
        return None
    return next((one.host for one in snapshot.ranks if one.rank == rank), None)


def hosts_of_devices(gpus: Sequence[GpuSample], most: int = 8) -> Mapping[str, str]:
    """Short names of these devices' hosts; empty if they share one host."""
    hosts = dict.fromkeys(gpu.host for gpu in gpus if gpu.host is not None)
    return short_names(hosts, most) if len(hosts) > 1 else {}


def short_names(hosts: Collection[str], most: int = MOST_CELLS) -> Mapping[str, str]:
    """Host names shortened to at most `most` cells.

    The user and domain are dropped first, then the start: in `gpu-cluster-node-001` and `-002`,
    only the end distinguishes them.
    """
    return _short_names(tuple(hosts), most)


@functools.lru_cache(maxsize=16)
def _short_names(hosts: tuple[str, ...], most: int) -> Mapping[str, str]:
    short = {host: host.rpartition("@")[2] for host in hosts}
    labels = {
        host: name if name.replace(".", "").isdigit() else name.partition(".")[0] or name
        for host, name in short.items()
    }
    if len(set(labels.values())) == len(set(hosts)):
        short = labels
    if all(len(name) <= most for name in short.values()):
        return short
    return {
        host: name if len(name) <= most else "…" + name[1 - most :] for host, name in short.items()
    }
