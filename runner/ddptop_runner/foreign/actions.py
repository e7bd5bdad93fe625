"""What a user can do to a foreign job: stop it, kill it, and read the stacks of its ranks.

Signals are sent only by a plan that the user has seen and confirmed: `plan` decides what to do and
describes it in one sentence; `send` does exactly that. Each process is identified by pid, start
time, and user, all checked right before each signal. A process of any user other than the job's
gets no signal, wherever it is in the job's tree. If root signals another user's job, the sentence
names that user.

Like Ctrl-C, stopping begins with SIGINT to the launcher and to the job's processes in its process
group: torchrun's ranks have their own groups and torchrun ends them; ranks of deepspeed and
Lightning get the signal only this way. A killed launcher leaves ranks behind, so later signals go
to every recorded process. Processes of the group that do not belong to the job (a shell script,
`tee`) get none.

Stacks are read from outside with py-spy. `--nonblocking` keeps it from pausing the process:
training is never delayed, at the cost of a rare inconsistent dump, which is retried.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ddptop_runner.base import programs
from ddptop_runner.base.clock import boottime_s
from ddptop_runner.base.errors import UsageError
from ddptop_runner.foreign.types import ForeignRank, ForeignView
from ddptop_runner.host import procs, stopping, tree
from ddptop_runner.host.stopping import Step
from ddptop_runner.model.snapshot import ProcessId, RankStacks

Action = Literal["stop", "kill"]
STOP_GRACE_S = 15.0
"""From SIGINT to SIGTERM; mp.spawn has been seen to take 11 s to end."""
TERM_GRACE_S = 5.0
"""From SIGTERM to SIGKILL."""
KILL_GRACE_S = 5.0
"""How long the kernel may take to end killed processes."""


@dataclass(frozen=True)
class SignalPlan:
    """Which processes get which signals, in which order."""

    job: str
    action: Action
    sentence: str
    """What will be done, for the user to confirm."""
    launchers: tuple[ProcessId, ...]
    """Get SIGINT first when stopping: the launcher and the job's processes in its group."""
    processes: tuple[ProcessId, ...]
    """Every process of the job, launchers included."""
    uid: int
    """The owner of the processes."""
    grace_s: float = STOP_GRACE_S
    """Seconds from SIGINT to SIGTERM."""


@dataclass(frozen=True)
class SignalOutcome:
    """The result of sending signals."""

    sentence: str
    """The result in words, for the user."""
    left: tuple[int, ...] = ()
    """Pids that are still alive."""
    ended_by: str | None = None
    """The last signal sent before all were gone, such as "SIGINT"."""


def plan(view: ForeignView, action: Action, *, grace_s: float = STOP_GRACE_S) -> SignalPlan:
    """The plan for stopping (SIGINT, then SIGTERM, then SIGKILL) or killing (SIGKILL) a job.

    Sends nothing.

    Raises:
        UsageError: the job has ended, or its processes belong to another user.
    """
    job = view.foreign
    if not view.is_live:
        raise UsageError(f"{view.job} has already ended")
    if os.geteuid() not in (0, job.uid):
        raise UsageError(f"{view.job} belongs to {job.user}; only {job.user} or root can signal it")
    if job.launcher == "ddptop" and action == "stop":
        raise UsageError(
            f"{view.job} belongs to another ddptop instance, which would restart its ranks",
            "stop it with that job's DDPTOP_HOME",
        )
    recorded = _recorded(view)
    if not recorded:
        raise UsageError(f"{view.job} has no processes left to signal")
    group = _group_of(job.root_pid)
    near = {
        pid
        for pid in recorded
        if pid == job.root_pid or (group is not None and _group_of(pid) == group)
    }
    ranks = {rank.pid for rank in job.ranks} & set(recorded)
    # they have no launcher and their own groups, so each needs the signal
    loose = job.root_pid in ranks and not ranks <= near
    launchers = [process for pid, process in recorded.items() if pid in (ranks if loose else near)]
    # an ended launcher has left ranks in other groups
    launchers = launchers or list(recorded.values())
    name = f"its {len(ranks)} ranks" if loose else f"{job.launcher} {job.root_pid}"
    sentence = _sentence(action, name, 0 if loose else len(launchers) - 1, len(recorded), grace_s)
    if os.geteuid() != job.uid:
        sentence = f"{job.user}'s job: {sentence}"
    return SignalPlan(
        job=view.job,
        action=action,
        sentence=sentence,
        launchers=tuple(launchers),
        processes=tuple(recorded.values()),
        uid=job.uid,
        grace_s=grace_s,
    )


def _sentence(action: Action, name: str, others: int, all_: int, grace_s: float) -> str:
    everyone = "it" if all_ == 1 else f"all {all_} processes in the job"
    if action == "kill":
        return f"SIGKILL to {name}" if all_ == 1 else f"SIGKILL to {everyone} ({name})"
    also = ""
    if others:
        also = (
            f" and {'1 other process' if others == 1 else f'{others} other processes'} in its group"
        )
    left = "" if all_ == 1 else f" to the rest of its {all_} processes"
    return (
        f"SIGINT to {name}{also}; {grace_s:.0f} s later, SIGTERM{left}; "
        f"{TERM_GRACE_S:.0f} s later, SIGKILL"
    )


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def _recorded(view: ForeignView) -> dict[int, ProcessId]:
    """The job's processes and their descendants by pid, without this process and its ancestors."""
    job = view.foreign
    starts = {rank.pid: rank.start_ticks for rank in job.ranks}
    starts[job.root_pid] = job.root_start_ticks
    # a helper's start is not recorded, so one that began after the scan is another process
    seen_s = boottime_s() - max(0.0, time.time() - view.read_at.timestamp())
    latest_ticks = (seen_s + 0.02) * procs.TICKS_PER_S
    found: dict[int, ProcessId] = {}
    for pid in job.pids:
        process = procs.identify(pid)
        ticks = process.start_ticks
        if ticks is None or (ticks != starts[pid] if pid in starts else ticks > latest_ticks):
            continue
        if procs.uid_of(pid) == job.uid and procs.is_alive(process):
            found[pid] = process
    return _with_descendants(found, job.uid)


def _with_descendants(found: dict[int, ProcessId], uid: int) -> dict[int, ProcessId]:
    """These processes and this user's processes below them.

    Excludes this process, its ancestors, and anything else that those ancestors started.
    """
    ours = {os.getpid(), *tree.ancestors_of(os.getpid())}
    kept = {pid: process for pid, process in found.items() if pid not in ours}
    for pid in list(kept):
        for child in tree.descendants_of(pid):
            if child not in kept:
                process = procs.identify(child)
                if procs.uid_of(child) == uid and procs.is_alive(process):
                    kept[child] = process
    return kept


def send(confirmed: SignalPlan) -> SignalOutcome:
    """Carry out a confirmed plan; blocks until the job is gone or every signal was tried.

    Takes up to the plan's grace period plus a few seconds, so call it in its own thread.
    """
    recorded = {process.pid: process for process in confirmed.processes}

    def everyone() -> list[ProcessId]:
        """The plan's processes that are still alive, and what they have started since."""
        alive = {pid: process for pid, process in recorded.items() if procs.is_alive(process)}
        recorded.update(_with_descendants(alive, confirmed.uid))
        return [process for process in recorded.values() if procs.is_alive(process)]

    began_s = time.monotonic()
    outcome = asyncio.run(stopping.run(_steps(confirmed), everyone, confirmed.uid))
    if outcome.left:
        left = sorted(process.pid for process in outcome.left)
        names = ", ".join(map(str, left))
        return SignalOutcome(
            f"{confirmed.job}: pid {names} survived SIGKILL (in uninterruptible sleep, or owned "
            "by another user)",
            tuple(left),
        )
    took_s = time.monotonic() - began_s
    by = None if outcome.last is None else outcome.last.name
    return SignalOutcome(
        f"{confirmed.job} exited {took_s:.1f} s after the first signal ({by} was enough)",
        ended_by=by,
    )


def _steps(confirmed: SignalPlan) -> list[Step]:
    """The steps that the plan's sentence describes."""
    kill = Step((signal.SIGKILL,), None, KILL_GRACE_S)
    if confirmed.action == "kill":
        return [kill]
    return [
        Step((signal.SIGINT,), tuple(process.pid for process in confirmed.launchers)),
        Step((signal.SIGCONT,), None, confirmed.grace_s),
        Step((signal.SIGTERM,), None, TERM_GRACE_S),
        kill,
    ]


DUMP_TIMEOUT_S = 10.0
AT_ONCE = 4
"""Number of ranks read concurrently."""
TRIES = 3
"""Without pausing the process, a dump occasionally reads inconsistent memory and fails."""
MISSING = "py-spy is not installed; install it alongside ddptop: pip install 'ddptop[stacks]'"
NOT_PERMITTED = (
    "no permission to inspect the process; use sudo, or allow it until the next boot: sudo sysctl "
    "kernel.yama.ptrace_scope=0 (a container needs --cap-add=SYS_PTRACE)"
)
MAX_CHARS = 200_000


def find_py_spy() -> str | None:
    """The path of py-spy, next to this Python or else on PATH."""
    sibling = Path(sys.executable).parent / "py-spy"
    return os.fspath(sibling) if os.access(sibling, os.X_OK) else shutil.which("py-spy")


def read_stacks(
    ranks: Sequence[ForeignRank], timeout_s: float = DUMP_TIMEOUT_S
) -> list[RankStacks]:
    """The Python stacks of each rank; without any, `note` says why.

    Blocks for up to `timeout_s` for all ranks together, so do not call it in a UI loop. Pauses no
    process.
    """
    py_spy = find_py_spy()
    if py_spy is None:
        return [RankStacks(rank=rank.rank, pid=rank.pid, note=MISSING) for rank in ranks]
    deadline_s = time.monotonic() + timeout_s
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        answers = list(pool.map(lambda rank: _dump(py_spy, rank, deadline_s), ranks))
    return [
        RankStacks(rank=rank.rank, pid=rank.pid, text=text, note=note)
        for rank, (text, note) in zip(ranks, answers, strict=True)
    ]


def _dump(py_spy: str, rank: ForeignRank, deadline_s: float) -> tuple[str | None, str | None]:
    """(text, None), or (None, the reason)."""
    errors = ""
    for _ in range(TRIES):
        if procs.start_ticks(rank.pid) != rank.start_ticks:
            return None, f"pid {rank.pid} has exited"
        try:
            answer = programs.run(
                [py_spy, "dump", "--nonblocking", "--pid", str(rank.pid)],
                max(0.0, deadline_s - time.monotonic()),
                env={**os.environ, "RUST_BACKTRACE": "0", "NO_COLOR": "1"},
            )
        except subprocess.TimeoutExpired:
            return None, "py-spy timed out; try a single rank"
        except OSError as error:
            return None, f"cannot run {py_spy} ({error.strerror})"
        text = answer.stdout[:MAX_CHARS].strip()
        if answer.returncode == 0 and text:
            return text, None
        errors = answer.stderr.strip()
    if any(words in errors.lower() for words in ("permission denied", "not permitted", "eperm")):
        return None, NOT_PERMITTED
    first = errors.partition("\n")[0].removeprefix("Error: ")
    return None, f"py-spy failed: {first[:200] or 'no error message'}"
