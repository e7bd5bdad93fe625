"""Reads the stacks of a foreign job's ranks with py-spy, on request.

py-spy reads the memory of the process from outside. `--nonblocking` keeps it from pausing the
process meanwhile: a training is never held up, at the price of a rare dump that does not fit
together, which is tried again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ddptop_runner.foreign.types import ForeignRank
from ddptop_runner.host import procs
from ddptop_runner.model.stacks import RankStacks

DUMP_TIMEOUT_S = 10.0
AT_ONCE = 4
"""So many ranks are asked at the same time."""
TRIES = 3
MISSING = "py-spy is not installed; install it next to ddptop: pip install 'ddptop[stacks]'"
MAX_CHARS = 200_000


def find_py_spy() -> str | None:
    """Beside this Python, else on PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    return os.fspath(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def take(ranks: Sequence[ForeignRank], timeout_s: float = DUMP_TIMEOUT_S) -> list[RankStacks]:
    """The Python stacks of each rank; `note` says why where there are none.

    Blocks up to `timeout_s` for all ranks together: call it outside of any loop that draws. No
    process is paused.
    """
    py_spy = find_py_spy()
    if py_spy is None:
        return [RankStacks(rank=rank.rank, pid=rank.pid, note=MISSING) for rank in ranks]
    deadline_s = time.monotonic() + timeout_s
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        return list(pool.map(lambda rank: _of_rank(py_spy, rank, deadline_s), ranks))


def _of_rank(py_spy: str, rank: ForeignRank, deadline_s: float) -> RankStacks:
    text, note = _dump(py_spy, rank, deadline_s)
    return RankStacks(rank=rank.rank, pid=rank.pid, text=text, note=note)


def _dump(py_spy: str, rank: ForeignRank, deadline_s: float) -> tuple[str | None, str | None]:
    """(text, None) or (None, why not)."""
    note = "not attempted"
    for _ in range(TRIES):
        if procs.start_ticks(rank.pid) != rank.start_ticks:
            return None, f"pid {rank.pid} has exited"
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return None, "py-spy timed out; try a single rank"
        try:
            answer = subprocess.run(
                [py_spy, "dump", "--nonblocking", "--pid", str(rank.pid)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=left_s,
                check=False,
                env={**os.environ, "RUST_BACKTRACE": "0", "NO_COLOR": "1"},
            )
        except subprocess.TimeoutExpired:
            return None, "py-spy timed out; try a single rank"
        except OSError as error:
            return None, f"cannot run {py_spy} ({error.strerror})"
        text = answer.stdout.decode("utf-8", "replace")[:MAX_CHARS].strip()
        if answer.returncode == 0 and text:
            return text, None
        note, final = explain(answer.stderr.decode("utf-8", "replace"))
        if final:
            break
    return None, note


def explain(error: str, ptrace_scope: Callable[[], str | None] | None = None) -> tuple[str, bool]:
    """(py-spy's complaint in words that name the remedy, whether another try is useless)."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    first = lines[0] if lines else "no error message"
    lower = error.lower()
    if "permission denied" in lower or "operation not permitted" in lower or "eperm" in lower:
        return _not_permitted((ptrace_scope or _ptrace_scope)()), True
    if "failed to find python version" in lower or "doesn't appear to be a python" in lower:
        reason = "not a Python process that py-spy supports; for C++ stacks, run `gdb -p PID`"
        return reason, True
    if "no such process" in lower or "no such file" in lower:
        return "the process has exited", True
    return f"py-spy failed: {first.removeprefix('Error: ')[:200]}", False


def _ptrace_scope() -> str | None:
    try:
        path = Path("/proc/sys/kernel/yama/ptrace_scope")
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return None


def _not_permitted(scope: str | None) -> str:
    if scope == "3":
        return "the kernel does not allow inspecting processes until a reboot (ptrace_scope 3)"
    if scope in ("1", "2"):
        return (
            f"only root can inspect other processes (ptrace_scope {scope}); use sudo, or allow it "
            "until the next boot: sudo sysctl kernel.yama.ptrace_scope=0"
        )
    return (
        "no permission to inspect the process; use sudo, or start the container with "
        "--cap-add=SYS_PTRACE"
    )
