"""`ddptop launch --hosts`: what is printed about the hosts before a job starts there."""

from __future__ import annotations

import os

from ddptop.output import info
from ddptop_runner.jobs import launch_hosts
from ddptop_runner.launch.device_check import Findings
from ddptop_runner.launch.readiness import Judged, table
from ddptop_runner.launch.request import LaunchPlan, LaunchRequest


def prepare(request: LaunchRequest) -> LaunchPlan:
    """Query all hosts, print the results, and return the plan."""
    return launch_hosts.prepare(request, os.environ, _show, _show_check)


def _show(judged: Judged) -> None:
    info(table(judged.rows))
    for line in [*map(str, judged.notes), *launch_hosts.refusals_before_last(judged)]:
        info(f"ddptop: {line}")


def _show_check(found: Findings) -> None:
    for line in [*found.broken[:-1], *found.slow]:
        info(f"ddptop: {line}")
    if not found.broken:
        info(f"ddptop: --check: {found.summary}")
