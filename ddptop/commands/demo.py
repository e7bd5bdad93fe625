"""`ddptop demo`: launch the bundled training script, which is plain DDP."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec.structs import replace

from ddptop.commands import control, launch_array, ls, status_watch, story
from ddptop.commands.launch import become_attach, start_plan
from ddptop.output import info, put
from ddptop_runner.base.errors import UsageError
from ddptop_runner.base.units import duration, plural
from ddptop_runner.host import oom
from ddptop_runner.job.registry import JobView, read_job
from ddptop_runner.jobs import launch, sweep
from ddptop_runner.launch.gpus.choice import CPU_RANKS, free_now
from ddptop_runner.launch.request import LaunchPlan, LaunchRequest
from ddptop_runner.store.history_reader import HistoryReader

PROGRESS_EVERY_S = 2.0
SCRIPT = Path(__file__).resolve().parent.parent / "demo" / "train.py"


FAULTS = {
    "kill": ("kill", "one rank is killed with SIGKILL", "failure"),
    "hang": ("hang-python", "one rank sleeps forever in Python", "hang"),
    "raise": ("raise", "one rank raises an exception", "failure"),
}
"""Faults that the bundled script injects into itself: the name there, what happens, and the type of
the event that reports it."""
EXPECTED = "the group restarts once; the reported cause names that rank"
FAST_HANG_S = 8.0
"""The hang timeout of a job that is to hang."""
SICK = {
    "healthy": "no mistake: nothing is named",
    "same-batches": "no DistributedSampler: all ranks train on the same batches",
    "same-order": "no set_epoch: every epoch has the same order",
    "starved": "slow loading with too few workers: all ranks wait for data",
    "straggler": "one rank has longer batches than the others",
    "preempted": "other processes take the CPU of one rank",
    "stalls": "one rank stops for 1.5 s every 40 steps",
    "leak": "each rank keeps tensors of each step: memory grows up to a sixth of what is left",
    "constant-loss": "one class: the loss is 0 at each step, and nothing is learned",
    "exploding-loss": "a learning rate that is too high: the loss explodes",
    "not-learning": "an optimizer with the parameters of another model: nothing is learned",
    "diverged-weights": "one rank changes its weights, so it trains another model",
    "resume-state": "a restart without the states of the optimizer and of the scheduler",
    "data-replayed": "a restart that begins in the middle of an epoch with its first batches",
    "uneven-shards": "one rank has fewer batches per epoch than the others: the job hangs",
    "unused-parameters": "find_unused_parameters=True, but all parameters are used",
    "mismatch": "one rank enters a barrier, the others take the next step: the job hangs",
}
"""The mistakes of demo/sick.py, by the id of the alert that names them; see also NAMED_BY."""
NAMED_BY = {
    "healthy": None,
    "leak": "memory-growth",
    "mismatch": "stalled",
    "preempted": "straggler",
    "unused-parameters": "ddp-advice",
}
"""The alerts of kinds that are not named as the alert is."""
SICK_SCRIPT = SCRIPT.with_name("sick.py")
SMALL = (
    *("--layers", "2", "--width", "64", "--context", "64"),
    *("--steps", "600", "--pause", "0.05", "--save-every", "20", "--fault-step", "70"),
)
"""Half a minute of training; the user's arguments follow and take precedence."""
SWEEP_ARRAYS = {"lr": ["1e-4", "1e-3", "1e-2"], "seed": ["1", "2"]}
SWEEP_ARGS = (
    *("--layers", "2", "--width", "64", "--context", "64", "--steps", "300", "--pause", "0.02"),
    *("--lr", "{lr}", "--seed", "{seed}"),
)


def run(arguments: list[str], detach: bool, watch: bool) -> int:
    """Launch the demo; then watch it on a terminal, or print progress until it ends."""
    plan = launch.prepare(request_of(arguments), os.environ)
    return _start(
        plan, detach, watch, lambda view: status_watch.run(view.job, False, PROGRESS_EVERY_S)
    )


def _start(plan: LaunchPlan, detach: bool, watch: bool, report: Callable[[JobView], int]) -> int:
    """Start the job; then watch it, print its name, or report on it until it ends."""
    view = start_plan(plan)
    if watch:
        become_attach(view.job)
    if detach:
        put(view.job)
        return 0
    info(
        f"ddptop: {view.job} is running; to attach from another terminal, "
        f"run ddptop attach {view.job}"
    )
    return report(view)


def run_array(arguments: list[str], parallel: int | None, detach: bool, watch: bool) -> int:
    """Launch a sweep; then watch it on a terminal, or print its jobs when all have ended."""
    request = request_of([*SWEEP_ARGS, *arguments], at_most=1)
    if request.nproc is not None:  # on CPUs
        parallel = parallel or 2
        request = replace(request, env=("OMP_NUM_THREADS=1",))
    plans = sweep.prepare(request, SWEEP_ARRAYS, parallel, os.environ)
    status = launch_array.start(plans, watch)
    if detach:
        return status
    group = plans[0].spec.group
    status = control.run_wait(group, None)
    ls.run(show_all=True, as_json=False, group=group)
    return status


def run_fault(name: str, rank: int, arguments: list[str], detach: bool, watch: bool) -> int:
    """Launch the demo with a fault; then watch it on a terminal, or print events and the result.

    Raises:
        UsageError: the fault is unknown, or the rank does not exist.
    """
    if _lists(
        "--fault", name, {key: f"{what}: {EXPECTED}" for key, (_, what, _) in FAULTS.items()}
    ):
        return 0
    kind, _, event = FAULTS[name]
    request = request_of([*SMALL, "--fault", kind, "--fault-rank", str(rank), *arguments])
    if event == "hang":
        request = replace(request, hang_timeout_s=FAST_HANG_S, hang_auto=False)
    plan = _plan(request, rank)
    return _start(plan, detach, watch, lambda view: _report_fault(view, name, rank))


def _lists(option: str, kind: str, kinds: Mapping[str, str]) -> bool:
    """Print the kinds, if that is asked for; returns whether."""
    if kind == "list":
        width = max(map(len, kinds))
        put("\n".join(f"{name:{width}}  {what}" for name, what in kinds.items()))
    elif kind not in kinds:
        raise UsageError(f"{option} {kind} is not a known kind", f"choose from {', '.join(kinds)}")
    return kind == "list"


def _plan(request: LaunchRequest, rank: int) -> LaunchPlan:
    plan = launch.prepare(request, os.environ)
    if not 0 <= rank < plan.spec.nproc:
        raise UsageError(f"--rank {rank} is out of range", f"ranks are 0 to {plan.spec.nproc - 1}")
    return plan


def run_sick(kind: str, rank: int, arguments: list[str], detach: bool, watch: bool) -> int:
    """Launch a training with a mistake; then watch it, or print the alerts until it ends.

    Raises:
        UsageError: the kind is unknown, or the rank does not exist.
    """
    if _lists("--sick", kind, SICK):
        return 0
    if kind == "leak":
        arguments = [*_leak(), *arguments]
    request = request_of([kind, "--sick-rank", str(rank), *arguments], SICK_SCRIPT)
    if kind in ("mismatch", "uneven-shards"):
        request = replace(request, hang_timeout_s=15.0, hang_auto=False, max_restarts=0)
    plan = _plan(request, rank)
    return _start(plan, detach, watch, lambda view: _report_alerts(view, kind))


def _leak() -> list[str]:
    """How much memory to leak: enough to be named, too little to do harm."""
    left = oom.available_bytes()
    if left is None:
        raise UsageError("--sick leak cannot read how much memory is left", "is /proc mounted?")
    return ["--leak-bytes", str(left // 6), "--seconds", "100"]


def _report_alerts(job: JobView, kind: str) -> int:
    put(f"{kind}: {SICK[kind]}")
    named: set[str] = set()
    view, began_s = job, time.monotonic()
    while view.is_live:
        time.sleep(1.0)
        view = read_job(view.folder)
        alerts = [] if view.snapshot is None else view.snapshot.alerts
        for alert in alerts:
            if alert.id not in named:
                put(f"after {duration(time.monotonic() - began_s)}: {alert.id}: {alert.message}")
        named.update(alert.id for alert in alerts)
        sys.stdout.flush()
    expected = {NAMED_BY.get(kind, kind)} - {None}
    named.discard("hung")  # follows "stalled", if it is seen at all
    if view.snapshot is not None and view.snapshot.cause is not None:
        put(view.snapshot.cause.summary)
    put(f"{kind}: {'OK' if named == expected else 'unexpected result'}")
    return 0 if named == expected else 1


def request_of(
    arguments: list[str], script: Path = SCRIPT, at_most: int | None = None
) -> LaunchRequest:
    """Return a request for all free GPUs or `at_most` so many, or for CPU ranks if none is free."""
    free = free_now(os.environ)
    ranks = at_most or CPU_RANKS
    if free == 0:
        info(f"ddptop: no free GPUs; training on {plural(ranks, 'CPU rank')}")
    return LaunchRequest(
        kind="script",
        target=str(script),
        args=tuple(arguments),
        base_name="demo",
        work_in_run_folder=True,
        gpus=f"auto:{min(free, at_most or free)}" if free else None if free is None else "none",
        nproc=None if free else ranks,
    )


def _report_fault(job: JobView, name: str, rank: int) -> int:
    _, what, kind = FAULTS[name]
    put(f"fault {name} (rank {rank}): {what}\nexpected: {EXPECTED}")
    sys.stdout.flush()
    story.run_events(job.folder, False, follow=True)
    view, events = read_job(job.folder), HistoryReader(job.folder.history_db).events()
    reported = any((event.type, event.rank) == (kind, rank) for event in events)
    attempt = None if view.snapshot is None else view.snapshot.attempt
    if reported and attempt == 1 and view.state == "finished":
        put(f"{name}: OK ({EXPECTED})")
        return 0
    put(f"{name}: unexpected result ({view.state} in attempt {attempt})")
    return 1
