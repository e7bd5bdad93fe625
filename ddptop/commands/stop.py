"""`ddptop stop` and `ddptop kill`: return when the last process is gone."""

from __future__ import annotations

from ddptop.output import say
from ddptop_runner import commands
from ddptop_runner.registry import resolve

END_ALLOWANCE_S = 60.0
"""Beyond the grace: evidence, leftovers, history. After it something is stuck in the kernel."""


def run(job: str, grace_s: float) -> int:
    """End the job, politely for `grace_s` seconds; 0: at once."""
    view = resolve(job)
    if grace_s > 0:
        commands.stop(view, grace_s)
    else:
        commands.kill(view)
    ended = commands.wait_until_ended(view, grace_s + END_ALLOWANCE_S)
    say(f"ddptop: {ended.job} is {ended.state}")
    return 0
