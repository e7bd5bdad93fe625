"""`ddptop restart`: a group restart of a live job, a new attempt of an ended one."""

from __future__ import annotations

import os

from ddptop.output import say
from ddptop_runner import commands, launch
from ddptop_runner.registry import resolve


def run(job: str) -> int:
    """Restart the job; of an ended one, name the variables that this shell lacks."""
    view = resolve(job)
    if view.is_live:
        commands.restart_group(view)
        say(f"ddptop: restarting all ranks of {view.job}")
        return 0
    view, missing, note = launch.restart_ended(view, os.environ)
    if note:
        say(f"ddptop: {note}")
    if missing:
        say(f"ddptop: not set in this shell, but in the one that launched: {', '.join(missing)}")
    say(f"ddptop: {view.job} starts again; ddptop attach {view.job} shows it")
    return 0
