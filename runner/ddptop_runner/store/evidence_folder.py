"""The folder with evidence of a cause, written before any signal is sent.

Nothing here raises: on a full disk, files may be missing, but the job still restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.paths import LAUNCHER, RunFolder, owner_name
from ddptop_runner.model.snapshot import Cause, RankStacks
from ddptop_runner.store.logs import log_end

KEEP_TIMEOUT_S = 5.0
"""A disk or process that hangs in the kernel must not hold up the restart."""
COPY_LIMIT_BYTES = 64 * 1024 * 1024
PROC = Path("/proc")
PROC_FILES = ("cmdline", "status", "wchan", "stack", "io", "limits")
"""Copied for each live rank; only root can read `stack`, the kernel's."""
SUMMARY = "summary.txt"
WRITTEN_BY_RANKS = ("flight.json", "memory.json", "memory.pickle")

_GUIDE = {
    "stacks-rank-*.txt": "Python stack of each live rank",
    "stacks-rank-*-loader.txt": "stacks of a rank's data loader workers",
    "tail-rank-*.txt": "last log lines from each rank",
    "tail-launcher.txt": "last log lines from the command and its ranks",
    "error-rank-*.json": "exception saved by torch's @record",
    "proc-rank-*.txt": "kernel state of each live rank: state, memory, wait channel",
    "flight-rank-*.json": "dump from torch's flight recorder: the collectives each rank entered",
    "memory-rank-*.json": "GPU memory of a rank that ran out, by the lines that allocated it",
    "memory-rank-*.pickle": "torch's snapshot of it, for pytorch.org/memory_viz",
    "devices.json": "last sample from the job's devices",
    "snapshot.json": "snapshot of the job at that time",
}


@dataclass(frozen=True)
class Scene:
    """What was known at the time of a failure or hang."""

    stacks: Sequence[RankStacks] = ()
    """Of the ranks that were alive."""
    snapshot: bytes = b""
    """The node snapshot, as JSON."""
    ranks: Mapping[int, int | None] = field(default_factory=dict)
    """The ranks on which there may be more evidence, each with its pid if it is alive."""
    devices: bytes | None = None
    """The device report, as JSON; None without devices."""


async def keep(folder: RunFolder, attempt: int, reason: str, scene: Scene) -> Path:
    """Write a scene to a new folder in `evidence/`; returns the folder, even if incomplete.

    Args:
        folder: the job's run folder.
        attempt: the attempt that failed.
        reason: `failure`, `hang` or `nan`.
        scene: what to write.
    """
    target = new_folder(folder, attempt, reason)
    with contextlib.suppress(asyncio.TimeoutError):
        work = asyncio.to_thread(write, folder, attempt, target, scene)
        await asyncio.wait_for(work, KEEP_TIMEOUT_S)
    return target


def new_folder(folder: RunFolder, attempt: int, reason: str) -> Path:
    """A new folder; earlier ones of the attempt remain unchanged."""
    base = folder.evidence_dir / f"attempt-{attempt}-{reason}"
    target, count = base, 1
    while target.exists():
        count += 1
        target = base.with_name(f"{base.name}-{count}")
    with contextlib.suppress(OSError):
        target.mkdir(parents=True)
    return target


def latest(folder: RunFolder, attempt: int, reason: str) -> Path | None:
    """The last folder of an attempt; None without one."""
    name = re.compile(rf"attempt-{attempt}-{re.escape(reason)}(?:-(?P<count>\d+))?")
    paths: list[Path] = []
    with contextlib.suppress(OSError):
        paths = list(folder.evidence_dir.iterdir())
    matches = [(match, path) for path in paths if (match := name.fullmatch(path.name))]
    found = [(int(match["count"] or 1), path) for match, path in matches]
    return max(found)[1] if found else None


def write(folder: RunFolder, attempt: int, target: Path, scene: Scene) -> None:
    """Fill the folder, starting with what is hardest to replace."""
    _put(target / "snapshot.json", scene.snapshot)
    for entry in scene.stacks:
        text = entry.text if entry.text is not None else f"no stacks: {entry.note}\n"
        _put(target / f"stacks-{owner_name(entry.rank)}.txt", text)
        if entry.loader is not None:
            _put(target / f"stacks-{owner_name(entry.rank)}-loader.txt", entry.loader)
    logs = folder.logs_dir / f"attempt-{attempt}"
    for rank, pid in scene.ranks.items():
        if pid is not None:
            _put(target / f"proc-{owner_name(rank)}.txt", _of_proc(PROC / str(pid)))
        for suffix in (".error.json", ".error.json.broken"):
            _copy(logs / f"rank-{rank}{suffix}", target / f"error-rank-{rank}.json")
    for rank in dict.fromkeys([*scene.ranks, LAUNCHER]):
        tail = log_end(folder.log_file(attempt, rank))
        if tail:
            _put(target / f"tail-{owner_name(rank)}.txt", tail)
    if scene.devices is not None:
        _put(target / "devices.json", scene.devices)
    for rank in scene.ranks:
        for name in WRITTEN_BY_RANKS:
            stem, suffix = name.split(".")
            written = written_by(folder, attempt, rank, name)
            _copy(written, target / f"{stem}-rank-{rank}.{suffix}")


def written_by(folder: RunFolder, attempt: int, rank: int, name: str) -> Path:
    """The file that a rank's probe writes; `name` is one of WRITTEN_BY_RANKS."""
    return folder.evidence_dir / "stacks" / f"attempt-{attempt}-rank-{rank}-{name}"


def summarize(cause: Cause) -> None:
    """Write the cause's summary, and how to read the rest, to its evidence folder."""
    if cause.evidence is None:
        return
    target = Path(cause.evidence)
    if not target.is_dir():
        return
    found = [
        f"  {pattern:<26} {meaning}"
        for pattern, meaning in _GUIDE.items()
        if next(target.glob(pattern), None) is not None
    ]
    lines = [
        cause.summary,
        "",
        f"Written {utc_now():%Y-%m-%d %H:%M:%S} UTC. In this folder:",
        *found,
    ]
    _put(target / SUMMARY, "\n".join(lines) + "\n")


def _put(path: Path, content: bytes | str) -> None:
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    try:
        path.write_bytes(data)
    except OSError:  # an incomplete file would mislead
        with contextlib.suppress(OSError):
            path.unlink()


def _copy(source: Path, target: Path) -> None:
    try:
        if source.is_file() and source.stat().st_size <= COPY_LIMIT_BYTES:
            shutil.copyfile(source, target)
    except OSError:
        with contextlib.suppress(OSError):
            target.unlink()


def _of_proc(process: Path) -> str:
    parts = []
    for name in PROC_FILES:
        try:
            data = (process / name).read_bytes()
        except OSError as error:
            parts.append(f"--- {name} ---\nn/a: {error.strerror}\n")
            continue
        text = data.replace(b"\0", b" ").decode("utf-8", "replace").rstrip()
        parts.append(f"--- {name} ---\n{text}\n")
    return "".join(parts)
