"""`ddptop launch --array`: one job for each combination of values."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ddptop.commands.launch import describe
from ddptop.output import info, put
from ddptop_runner.base.start import own_command
from ddptop_runner.base.units import plural
from ddptop_runner.jobs import sweep
from ddptop_runner.launch.array import parse_arrays
from ddptop_runner.launch.request import LaunchPlan, LaunchRequest


def run(request: LaunchRequest, arrays: Sequence[str], parallel: int | None, watch: bool) -> int:
    """Launch the jobs; then open the overview on a terminal, or print the group's name."""
    plans = sweep.prepare(request, parse_arrays(arrays), parallel, os.environ)
    if request.is_dry:
        put(_described(plans))
        return 0
    return start(plans, watch)


def start(plans: Sequence[LaunchPlan], watch: bool) -> int:
    """Start the jobs and either become the overview or return."""
    for note in plans[0].notes:
        info(f"ddptop: {note}")
    if len(plans) > 10:  # this takes a while
        info(f"ddptop: launching {plural(len(plans), 'job')}")
    views, notes = sweep.start(plans)
    for note in notes:
        info(f"ddptop: {note}")
    group = plans[0].spec.group or ""
    queued = sum(view.spec.is_queued for view in views)
    waiting = f", {queued} of them queued" if queued else ""
    info(
        f"ddptop: launched {plural(len(views), 'job')} as {group}{waiting};"
        f" to stop them, run ddptop stop {group}"
    )
    if watch:
        os.execv(sys.executable, own_command("ddptop"))
    put(group)
    return 0


def _described(plans: Sequence[LaunchPlan]) -> str:
    """What `--dry-run` prints: each job with its command, then the first one's details."""
    width = max(len(plan.spec.job) for plan in plans)
    lines = [f"{plan.spec.job:{width}}  {plan.spec.command_line()}" for plan in plans]
    return "\n".join([*lines, "", describe(plans[0])])
