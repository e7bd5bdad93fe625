"""The TCP ports of a process: those it listens on, and remote ones it is connected to.

Joins the sockets of the process's network namespace with the inodes of its open files. That joins
ranks of one job without any variable: all are connected to the port that rank 0 listens on.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ddptop_runner.host import procs

MAX_DESCRIPTORS = 1 << 16
MAX_TABLE_BYTES = 32 << 20
"""Of one process's open files, and of one namespace's sockets: others can make them endless."""
READ_COST_BYTES = 512
"""What looking at a file costs, however little stands in it."""

_ESTABLISHED = b"01"
_LISTEN = b"0A"


@dataclass(frozen=True)
class SocketTable:
    """The TCP sockets of one network namespace."""

    listens: Mapping[int, int]
    """Local port of each listening socket, by its inode."""
    connected: Mapping[int, int]
    """Remote port of each established connection, by its inode."""


@dataclass(frozen=True)
class Ports:
    """The ports of one process."""

    listens: frozenset[int]
    connected: frozenset[int]
    """Remote ports of its established connections."""


def parse_tables(*tables: bytes) -> SocketTable:
    """The sockets in what /proc/net/tcp and tcp6 hold; lines of another shape are left out."""
    listens: dict[int, int] = {}
    connected: dict[int, int] = {}
    for table in tables:
        for line in table.splitlines()[1:]:
            fields = line.split(None, 10)
            if len(fields) < 10 or fields[3] not in (_LISTEN, _ESTABLISHED):
                continue
            try:
                inode = int(fields[9])
                if fields[3] == _LISTEN:
                    listens[inode] = int(fields[1].rpartition(b":")[2], 16)
                else:
                    connected[inode] = int(fields[2].rpartition(b":")[2], 16)
            except ValueError:
                continue
    return SocketTable(listens=listens, connected=connected)


def ports_of(inodes: Iterable[int], table: SocketTable) -> Ports:
    """The ports of a process that has these socket inodes open."""
    held = set(inodes)
    return Ports(
        listens=frozenset(table.listens[inode] for inode in held & table.listens.keys()),
        connected=frozenset(table.connected[inode] for inode in held & table.connected.keys()),
    )


class SocketReader:
    """Reads ports of processes; each network namespace's sockets once per `begin`."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = os.fspath(proc)
        self._tables: dict[str, SocketTable] = {}

    def begin(self) -> None:
        """Forget the sockets read so far: a new look begins."""
        self._tables.clear()

    def read(self, pid: int) -> tuple[Ports | None, int]:
        """(its ports, None when it is gone or may not be looked into; how many bytes that took)."""
        folder = f"{self._proc}/{pid}"
        read_bytes = 0
        try:
            names = os.listdir(f"{folder}/fd")[:MAX_DESCRIPTORS]
            read_bytes = len(names) * READ_COST_BYTES
            inodes = _socket_inodes(f"{folder}/fd", names)
            if not inodes:
                return Ports(frozenset(), frozenset()), read_bytes
            namespace = os.readlink(f"{folder}/ns/net")  # noqa: PTH115 - hot
            if namespace not in self._tables:
                tables = _read_tables(f"{folder}/net")
                read_bytes += sum(map(len, tables))
                self._tables[namespace] = parse_tables(*tables)
        except OSError:
            return None, read_bytes
        return ports_of(inodes, self._tables[namespace]), read_bytes


def _read_tables(folder: str) -> list[bytes]:
    tables = []
    for name in ("tcp", "tcp6"):
        try:
            tables.append(procs.read_up_to(f"{folder}/{name}", MAX_TABLE_BYTES, at_once=False))
        except OSError:  # a host without IPv6 has no tcp6
            continue
    return tables


def _socket_inodes(folder: str, names: Iterable[str]) -> list[int]:
    inodes = []
    for name in names:
        try:
            target = os.readlink(f"{folder}/{name}")  # noqa: PTH115 - hot
        except OSError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            inodes.append(int(target[8:-1]))
    return inodes
