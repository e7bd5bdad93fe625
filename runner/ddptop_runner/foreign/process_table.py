"""Reads facts about every process on this host, cheaply enough to repeat every few seconds.

Of a process's variables, only those of ranks and jobs are kept; all others are dropped at once.

Facts fixed by exec (arguments, environment, program) are cached until the process executes another
program, which changes the address of its environment. Threads and libraries are read only for
processes that may be training, and again only if something suggests a change.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from ddptop_runner.base.units import whole
from ddptop_runner.foreign.arguments import is_python
from ddptop_runner.foreign.types import ProcessFacts
from ddptop_runner.host import procs

Scheme = Literal["elastic", "horovod", "mpi", "manual", "slurm"]
"""Who sets the variables. `manual`: RANK and the like, set by DeepSpeed or by hand."""

_SCHEMES: tuple[tuple[Scheme, str, tuple[str, str, str]], ...] = (
    ("elastic", "TORCHELASTIC_RUN_ID", ("RANK", "LOCAL_RANK", "WORLD_SIZE")),
    ("horovod", "HOROVOD_RANK", ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_SIZE")),
    (
        "mpi",
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ),
    ("manual", "RANK", ("RANK", "LOCAL_RANK", "WORLD_SIZE")),
    ("slurm", "SLURM_STEP_ID", ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS")),
)
"""Strongest first: (scheme, the variable that proves it, those with rank, local rank, and size)."""

_OTHERS = "MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT DDPTOP_JOB_ID"

RANK_VARIABLES: frozenset[str] = frozenset(names[0] for _, _, names in _SCHEMES)
"""Variables that make a process worth a closer look."""

KEPT_VARIABLES: frozenset[str] = frozenset(
    {name for _, proof, names in _SCHEMES for name in (proof, *names)} | {*_OTHERS.split()}
)
"""Variables that `ProcessFacts.environ` may contain; all others are dropped at once."""

MAX_VALUE_BYTES = 1 << 15
"""Limit for each variable, which another user may have set."""


def kept_of(environ: bytes) -> dict[str, str]:
    """The KEPT_VARIABLES in the contents of /proc/<pid>/environ, except overlong ones."""
    found: dict[str, str] = {}
    for entry in environ.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        key = _KEPT_BYTES.get(name)
        if equals and key is not None and len(value) <= MAX_VALUE_BYTES:
            found[key] = value.decode("utf-8", "surrogateescape")
    return found


MAX_NUMBER = 1_000_000
"""No job has more ranks: a larger number is bogus, and costly to count to."""


def whole_number(text: str) -> int | None:
    """The text as a number from 0 to MAX_NUMBER, or None.

    Parses every number that comes from another user's process.
    """
    value = whole(text.strip())
    return value if value is not None and value <= MAX_NUMBER else None


_KEPT_BYTES = {name.encode(): name for name in KEPT_VARIABLES}

MAX_ADDRESS = 253
"""Longest host name, in characters."""


@dataclass(frozen=True)
class Claim:
    """What a process's environment says. Children inherit it, so a claim does not make a rank."""

    scheme: Scheme
    job: tuple[str, ...]
    """What all ranks of the job have in common."""
    rank: int
    local_rank: int
    world_size: int
    rendezvous: str | None = None
    restart_count: int | None = None


def claim_of(process: ProcessFacts) -> Claim | None:
    """The claim in the environment, from the strongest variables; None without one."""
    environ = process.environ or {}
    for scheme, proof, names in _SCHEMES:
        if proof not in environ:
            continue
        rank, local_rank, size = (whole_number(environ.get(name, "")) for name in names)
        if rank is None or size is None:
            continue
        rendezvous = rendezvous_of(environ)
        run_id = environ.get("TORCHELASTIC_RUN_ID", "")
        return Claim(
            scheme=scheme,
            job=(environ.get("DDPTOP_JOB_ID", ""), rendezvous or "", run_id, str(size)),
            rank=rank,
            local_rank=rank if local_rank is None else local_rank,
            world_size=size,
            rendezvous=rendezvous,
            restart_count=whole_number(environ.get("TORCHELASTIC_RESTART_COUNT", "")),
        )
    return None


def rendezvous_of(environ: Mapping[str, str] | None) -> str | None:
    """`MASTER_ADDR:MASTER_PORT`, safe to print; None unless both are set."""
    words = [(environ or {}).get(name, "")[:MAX_ADDRESS] for name in ("MASTER_ADDR", "MASTER_PORT")]
    text = "".join(char if char.isprintable() else "?" for char in ":".join(words))
    return text if all(words) else None


READ_COST_BYTES = 512
"""Cost of reading any file, however small."""
ARGV_WORDS = 1024
ARGV_BYTES = 1 << 15
"""Words and bytes to keep of a command line, which other users can inflate."""
ENVIRON_BYTES = 1 << 20
MAPS_BYTES = 16 << 20
"""Enough for 65,530 mappings, the most that a process can have, of files with usual names."""
MAX_THREADS = 2048
LOOK_BYTES = 64 << 20
"""Read per scan for the processes of each other user."""
PARSE_COST = 8
"""Cost of parsing a byte, relative to searching it."""
DETAILS_EVERY_S = 30.0
"""Threads are read again after this time even if nothing suggests a change."""
MAPS_GROWTH_BYTES = 8 << 20
"""Change of the address space after which libraries are read again, until a framework is found."""

DISTRIBUTED_THREADS = ("pt_gloo", "pt_nccl", "pt_tcpstore", "gloo_")
"""Prefixes of the names of threads that only torch.distributed starts."""

_UNSURE = -1
"""The address of an environment that seemed empty, as it does in the middle of an exec."""
_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD in the flags of /proc/<pid>/stat."""
_LIBRARIES = {
    "torch": (b"/libtorch", b"/libc10"),
    "tensorflow": (b"/libtensorflow", b"_pywrap_tensorflow"),
    "jax": (b"/jaxlib/",),
}


@dataclass(slots=True)
class _Stat:
    """The contents of /proc/<pid>/stat."""

    comm: str
    is_zombie: bool
    ppid: int
    session: int
    threads: int
    start_ticks: int
    virtual_bytes: int
    environ_at: int
    """Address of the environment, random for each exec; 0 without permission."""


@dataclass(slots=True)
class _Known:
    """What is kept about one process between scans."""

    facts: ProcessFacts
    environ_at: int
    """Address of the environment; another exec changes it."""
    details_due_s: float = 0.0
    threads_then: int = -1
    virtual_then: int = -1


class ProcessTable:
    """Reads /proc and caches what is fixed for a process's life, by (pid, start time)."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = os.fspath(proc)
        self._known: dict[int, _Known] = {}
        self._spent: dict[int, int] = {}
        """Bytes read in this scan, by user."""

    def scan(self, device_pids: Collection[int] = ()) -> list[ProcessFacts]:
        """All processes except kernel threads, by pid; never raises.

        Reading other users' processes is bounded per process and per user: once a user's budget is
        used up, their new processes have to wait for a later scan.

        State, parent, and session are read each time. Threads and libraries are read only for
        processes that may be training: Python, rank variables in the environment, or a pid in
        `device_pids`; for others they are None. A zombie keeps what was known about it.
        """
        now_s = time.monotonic()
        self._spent.clear()
        seen: dict[int, _Known] = {}
        for pid in self._pids():
            try:
                known = self._seen(pid, device_pids, now_s)
            except (ValueError, ArithmeticError, LookupError, RecursionError):
                continue  # one process's data must not hide the others
            if known is not None:
                seen[pid] = known
        self._known = seen
        return [known.facts for _, known in sorted(seen.items())]

    def _seen(self, pid: int, device_pids: Collection[int], now_s: float) -> _Known | None:
        """The process's current state; None if it is gone or has to wait for a later scan."""
        stat = self._stat(pid)
        known = None if stat is None else self._current(pid, stat)
        if stat is None or known is None or _is_ended(stat, known):
            return known
        if (pid in device_pids or _may_train(known.facts)) and self._may_read(known.facts.uid):
            self._read_details(known, stat, now_s)
        return known

    def _may_read(self, uid: int) -> bool:
        return uid == os.geteuid() or self._spent.get(uid, 0) < LOOK_BYTES

    def _read(self, uid: int, path: str, limit: int, *, at_once: bool = True) -> bytes | None:
        """Up to `limit` bytes, charged to this user's budget; None if gone or not permitted."""
        data = _read(path, limit, at_once=at_once)
        cost = len(data or b"") * (PARSE_COST if at_once else 1)
        self._spent[uid] = self._spent.get(uid, 0) + READ_COST_BYTES + cost
        return data

    def _pids(self) -> Sequence[int]:
        try:
            return [int(name) for name in os.listdir(self._proc) if name.isdecimal()]
        except OSError:
            return []

    def _stat(self, pid: int) -> _Stat | None:
        """The process's stat; None if gone, hidden, or a kernel thread."""
        if (named := procs.name_and_stat(pid, self._proc)) is None:
            return None
        comm, fields = named
        try:
            if int(fields[6]) & _KERNEL_THREAD:
                return None
            return _Stat(
                comm=comm,
                is_zombie=fields[0] in ("Z", "X"),
                ppid=int(fields[1]),
                session=int(fields[3]),
                threads=int(fields[17]),
                start_ticks=int(fields[19]),
                virtual_bytes=int(fields[20]),
                environ_at=int(fields[47]) if len(fields) > 47 else 0,
            )
        except (IndexError, ValueError):
            return None

    def _current(self, pid: int, stat: _Stat) -> _Known | None:
        """The process with its current state; None if it is gone by now."""
        known = self._known.get(pid)
        if known is None or known.facts.start_ticks != stat.start_ticks:
            return self._new(pid, stat)
        facts, ended = known.facts, _is_ended(stat, known)
        is_renamed = stat.comm != facts.comm
        if not ended and (
            stat.environ_at != known.environ_at or (is_renamed and not stat.environ_at)
        ):
            return self._new(pid, stat, again=known.environ_at == _UNSURE)
        changing = {"comm", "is_zombie", "ppid", "session"}
        now = {name: getattr(stat, name) for name in changing}
        if any(getattr(facts, name) != value for name, value in now.items()):
            known.facts = msgspec.structs.replace(facts, **now)
        return known

    def _new(self, pid: int, stat: _Stat, *, again: bool = False) -> _Known | None:
        folder = f"{self._proc}/{pid}"
        uid = _uid(folder)
        if uid is None or not self._may_read(uid):
            return None
        argv = self._argv(pid, uid)
        if argv is None:
            return None
        environ = None if stat.is_zombie else self._read(uid, f"{folder}/environ", ENVIRON_BYTES)
        if _uid(folder) != uid:
            return None  # it has executed another program since
        try:
            program = os.readlink(f"{folder}/exe").removesuffix(" (deleted)")  # noqa: PTH115
        except OSError:
            program = None
        facts = ProcessFacts(
            pid=pid,
            start_ticks=stat.start_ticks,
            ppid=stat.ppid,
            is_zombie=stat.is_zombie,
            session=stat.session,
            uid=uid,
            comm=stat.comm,
            argv=argv,
            environ=None if environ is None else kept_of(environ),
            program=None if program is None else program.rpartition("/")[2],
        )
        environ_at = _UNSURE if environ == b"" and not again else stat.environ_at
        return _Known(facts, environ_at)

    def _argv(self, pid: int, uid: int) -> tuple[str, ...] | None:
        data = self._read(uid, f"{self._proc}/{pid}/cmdline", ARGV_BYTES)
        if data is None:
            return None
        # a title ends with no NUL or with many
        words = data.rstrip(b"\0").split(b"\0", ARGV_WORDS)[:ARGV_WORDS] if data else []
        return tuple(word.decode("utf-8", "surrogateescape") for word in words)

    def _read_details(self, known: _Known, stat: _Stat, now_s: float) -> None:
        facts = known.facts
        if stat.threads != known.threads_then or now_s >= known.details_due_s:
            known.threads_then = stat.threads
            known.details_due_s = now_s + DETAILS_EVERY_S
            facts = msgspec.structs.replace(facts, threads=self._threads(facts.pid, facts.uid))
            known.facts = facts
        has_grown = abs(stat.virtual_bytes - known.virtual_then) > MAPS_GROWTH_BYTES
        if not facts.libraries and (known.virtual_then < 0 or has_grown):
            known.virtual_then = stat.virtual_bytes
            libraries = self._libraries(facts.pid, facts.uid)
            if libraries is not None:
                known.facts = msgspec.structs.replace(facts, libraries=libraries)

    def _threads(self, pid: int, uid: int) -> frozenset[str] | None:
        folder = f"{self._proc}/{pid}/task"
        try:
            names = os.listdir(folder)
        except OSError:
            return None
        found = (self._read(uid, f"{folder}/{name}/comm", 64) for name in names[:MAX_THREADS])
        return frozenset(comm.rstrip(b"\n").decode("utf-8", "replace") for comm in found if comm)

    def _libraries(self, pid: int, uid: int) -> frozenset[str] | None:
        maps = self._read(uid, f"{self._proc}/{pid}/maps", MAPS_BYTES, at_once=False)
        if not maps:  # ended since its state was read
            return None
        return frozenset(
            name for name, files in _LIBRARIES.items() if any(file in maps for file in files)
        )


def _is_ended(stat: _Stat, known: _Known | None) -> bool:
    """Whether it has ended: memory goes first, then the state changes, as in a second exec."""
    has_lost = known is not None and stat.environ_at == 0 and known.environ_at != 0
    return stat.is_zombie or has_lost


def is_distributed(process: ProcessFacts) -> bool:
    """Whether it has threads of torch.distributed."""
    return any(name.startswith(DISTRIBUTED_THREADS) for name in process.threads or ())


def _uid(folder: str) -> int | None:
    """The user who started the process and set its arguments; None if it is gone.

    The folder belongs to the effective user, which is root for a setuid program.
    """
    try:
        owner = os.stat(folder).st_uid  # noqa: PTH116 - hot
    except OSError:
        return None
    status = _read(f"{folder}/status", 4096) if owner == 0 else None
    return owner if status is None else procs.real_uid_in_status(status)


def _may_train(facts: ProcessFacts) -> bool:
    if facts.environ and not RANK_VARIABLES.isdisjoint(facts.environ):
        return True
    return is_python(facts)


def _read(path: str, limit: int, *, at_once: bool = True) -> bytes | None:
    """Like `procs.read_up_to`; None if the file is gone or unreadable."""
    try:
        return procs.read_up_to(path, limit, at_once=at_once)
    except OSError:
        return None
