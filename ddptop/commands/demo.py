"""`ddptop demo`: launch the bundled training script, which is plain DDP."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ddptop.commands.launch import become_attach, start_plan
from ddptop.commands.wait import exit_status
from ddptop.output import duration, number, put, say
from ddptop.progress_words import step_text
from ddptop_runner.job.registry import JobView, read_job
from ddptop_runner.jobs import launch
from ddptop_runner.launch.gpus.for_launch import free_now
from ddptop_runner.launch.request import LaunchRequest
from ddptop_runner.model import run_step

CPU_RANKS = 2
PROGRESS_EVERY_S = 2.0
SCRIPT = Path(__file__).resolve().parent.parent / "demo" / "train.py"


def run(arguments: list[str], detach: bool, watch: bool) -> int:
    """Launch it; then watch it on a terminal, or print progress until it ends."""
    view = start_plan(launch.prepare(request_of(arguments), os.environ))
    if watch:
        become_attach(view.job)
    if detach:
        put(view.job)
        return 0
    return _report_until_ended(view)


def request_of(arguments: list[str]) -> LaunchRequest:
    """Return a request for all free GPUs, or for CPU ranks if none is free."""
    free = free_now(os.environ)
    if free == 0:
        say(f"ddptop: no free GPUs; training on {CPU_RANKS} CPU ranks")
    return LaunchRequest(
        kind="script",
        target=str(SCRIPT),
        args=tuple(arguments),
        base_name="demo",
        work_in_run_folder=True,
        gpus=f"auto:{free}" if free else None if free is None else "none",
        nproc=None if free else CPU_RANKS,
    )


def _report_until_ended(view: JobView) -> int:
    say(
        f"ddptop: {view.job} is running; attach from another terminal with ddptop attach {view.job}"
    )
    last = None
    while view.is_live:
        line = _progress(view)
        if line != last:
            put(line)
            last = line
        time.sleep(PROGRESS_EVERY_S)
        view = read_job(view.folder)
    put(f"{view.job}: {view.state}")
    if view.snapshot is not None and view.snapshot.cause is not None:
        put(view.snapshot.cause.summary)
    return exit_status(view)


def _progress(view: JobView) -> str:
    snapshot = view.snapshot
    if snapshot is None:
        return f"{view.job}: {view.state}"
    losses = " ".join(f"rank {rank.rank}: {number(rank.loss)}" for rank in snapshot.ranks)
    run = run_step.of_snapshot(snapshot)
    step = "no steps yet" if run is None else f"step {step_text(run, None)}"
    return f"{view.job}: {view.state}, {step}, loss {losses}, ETA {duration(snapshot.eta_s)}"
