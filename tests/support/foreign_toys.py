"""Small processes to watch, and what a census would know about them."""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ddptop_runner.base.clock import utc_now
from ddptop_runner.foreign.types import Census, ForeignJob, ForeignRank, ProcessFacts
from ddptop_runner.host import procs

PRINTER = """
import sys, time
step = 0
while True:
    print(f"step {step}/1000 loss {2.5 - step / 1000:.4f}", flush=True)
    step += 1
    time.sleep(0.02)
"""
"""Prints a loss fifty times a second."""


@contextmanager
def running(*argv: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A temporary process."""
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("stdout", subprocess.DEVNULL)
    process = subprocess.Popen(argv, **options)
    try:
        yield process
    finally:
        process.kill()
        if process.stdout is not None:
            process.stdout.close()
        process.wait(timeout=60)


def printer() -> tuple[str, ...]:
    return sys.executable, "-u", "-c", PRINTER


def rank_of(pid: int, rank: int = 0, **changes: Any) -> ForeignRank:
    ticks = procs.start_ticks(pid)
    assert ticks is not None
    values: dict[str, Any] = {"local_rank": rank}
    return ForeignRank(rank=rank, pid=pid, start_ticks=ticks, **{**values, **changes})


def job_of(*pids: int, name: str | None = None, **changes: Any) -> ForeignJob:
    """A job with these ranks; `launcher_pids` and `root_pid` can be given."""
    values: dict[str, Any] = {"root_pid": pids[0], "launcher": "torchrun"} | changes
    root = values["root_pid"]
    ticks = procs.start_ticks(root)
    return ForeignJob(
        name=name or f"toy:{root}",
        root_start_ticks=ticks or 0,
        uid=values.pop("uid", os.getuid()),
        user=values.pop("user", "me"),
        command=values.pop("command", "python toy.py"),
        started_at=values.pop("started_at", utc_now()),
        world_size=len(pids),
        ranks=values.pop("ranks", tuple(rank_of(pid, i) for i, pid in enumerate(pids))),
        **values,
    )


def census_of(*jobs: ForeignJob, environ: dict[str, str] | None = None) -> Census:
    facts = {
        rank.pid: ProcessFacts(
            pid=rank.pid,
            start_ticks=rank.start_ticks,
            ppid=1,
            is_zombie=False,
            session=1,
            uid=job.uid,
            comm="python",
            argv=("python",),
            environ=environ or {},
        )
        for job in jobs
        for rank in job.ranks
    }
    return Census(jobs=jobs, facts=facts)


def wait_for_state(pid: int, letters: str, wait_until: Callable[..., Any]) -> None:
    wait_until(lambda: (procs.state_letter(pid) or "?") in letters, what=f"{pid} in {letters}")


def stop_and_wait(pid: int, wait_until: Callable[..., Any]) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_for_state(pid, "T", wait_until)


def long_ago() -> dt.datetime:
    return dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


def lines_in(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0
