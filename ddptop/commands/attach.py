"""`ddptop attach`, `ddptop watch` and `ddptop`: the terminal interface."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ddptop import terminal
from ddptop.commands.unguarded import adopt_if_unguarded, guard
from ddptop.output import info, is_terminal
from ddptop_runner.base import programs
from ddptop_runner.base.errors import DdptopError, UsageError
from ddptop_runner.base.start import own_command
from ddptop_runner.job.registry import JobView, all_jobs
from ddptop_runner.launch.request import parse_hosts
from ddptop_runner.launch.ssh import CONNECT_S, FAILED, VARIABLE, VENVS, why_unreachable
from ddptop_runner.model.spec import check_name
from ddptop_runner.version import __version__

if TYPE_CHECKING:
    from ddptop.sources.query import Answer
    from ddptop.tui.messages import ScreenWanted
    from ddptop_runner.foreign.types import ForeignJob


def run(
    job: str | None,
    *,
    watched: ForeignJob | None = None,
    readonly: bool = False,
    opening: ScreenWanted | None = None,
    ascii_only: bool | None = None,
) -> int:
    """Show one job until the user quits; return the exit status.

    Args:
        job: one of ddptop's own jobs; None for all jobs.
        watched: a foreign job to show instead.
        readonly: refuse all actions that change a job.
        opening: a message that opens another screen first, such as CompareWanted.
        ascii_only: draw with ASCII only; None depends on the settings, else on the terminal.

    Raises:
        UsageError: stderr, on which the screen is drawn, is not a suitable terminal.
    """
    terminal.check()
    from ddptop.tui.process import wait_with_garbage

    wait_with_garbage()
    from ddptop.tui.app import app_with
    from ddptop.tui.settings import read_settings
    from ddptop.tui.textual_gaps import TerminalDriver

    settings = read_settings()
    asked = settings.interface.ascii if ascii_only is None else ascii_only
    poor = terminal.wants_ascii(os.environ) if asked is None else asked
    written = sys.__stderr__.encoding if sys.__stderr__ else None
    app = app_with(
        settings,
        job,
        watched=watched,
        readonly=readonly,
        opening=opening,
        letters=terminal.letters(os.environ, written) if poor else None,
    )
    app.driver_class = TerminalDriver
    app.run(mouse=settings.interface.mouse)
    _print_reattach_hint(app.latest)
    return app.return_code or 0


def _print_reattach_hint(latest: Answer | None) -> None:
    """If the last screen showed one of ddptop's own live jobs, print how to reattach."""
    view = None if latest is None else latest.view
    if isinstance(view, JobView) and view.is_live:
        host = os.environ.get(HOST)
        job = f"{host}:{view.job}" if host else view.job
        info(f"{job} keeps running; reattach with `ddptop attach {job}`")


def run_job(job: str | None, *, readonly: bool = False, ascii_only: bool | None = None) -> int:
    """Show a job of this machine, or HOST:JOB, until the user quits; return the exit status."""
    if job is not None and ":" in job:
        return run_there(job, readonly=readonly, ascii_only=ascii_only, terminal=is_terminal())
    from ddptop_runner.jobs.slurm_queue import find

    view = find(job)
    if not is_terminal():
        raise UsageError("attach needs a terminal", f"use ddptop status {view.job} in scripts")
    if not readonly:
        adopt_if_unguarded(view)
    return run(view.job, readonly=readonly, ascii_only=ascii_only)


def run_overview(*, readonly: bool = False, ascii_only: bool | None = None) -> int:
    """Show all jobs until the user quits; return the exit status."""
    if not is_terminal():
        raise UsageError("the overview needs a terminal", "use ddptop ls or ddptop gpus in scripts")
    if not readonly:
        guard(all_jobs())
    return run(None, readonly=readonly, ascii_only=ascii_only)


NOT_INSTALLED = 127
"""Exit status if ddptop is not installed on the other machine."""
HOST = "DDPTOP_ATTACHED_HOST"
"""The variable with the name by which this machine knows the other one."""


def run_there(target: str, *, readonly: bool, ascii_only: bool | None, terminal: bool) -> int:
    """Attach on that machine until the user quits; return the exit status.

    Raises:
        UsageError: the target is invalid, or there is no terminal.
        DdptopError: ssh failed, or ddptop is missing there.
    """
    host, _, job = target.rpartition(":")
    if not host:
        raise UsageError(f"{target!r} names no host", "use HOST:JOB, or JOB alone")
    if job:
        check_name(job)
    (asked,) = parse_hosts(host, "attach")[:1]
    if asked.host != host:
        raise UsageError(f"{target!r} is not a valid HOST:JOB", "use a host that ssh understands")
    if not terminal:
        verb = f"status {job}" if job else "ls"
        raise UsageError(
            "attach needs a terminal",
            f"use `ssh {shlex.quote(host)} ddptop {verb}` in scripts",
        )
    words = ["attach", *([job] if job else [])]
    words += ["--readonly"] if readonly else []
    words += [] if ascii_only is None else ["--ascii" if ascii_only else "--no-ascii"]
    done = programs.run(ssh_argv(host, words), None, is_interactive=True)
    if done.returncode == FAILED:
        why = why_unreachable(host, FAILED, done.stderr, CONNECT_S)
        raise DdptopError(f"{host}: {why.problem}", why.remedy)
    if done.returncode == NOT_INSTALLED:
        raise DdptopError(
            f"{host}: ddptop is not installed", f"run ddptop setup-host {shlex.quote(host)}"
        )
    return done.returncode


def ssh_argv(host: str, words: list[str], env: Mapping[str, str] = os.environ) -> list[str]:
    """The ssh command that runs ddptop there in a terminal; ssh may ask for a password."""
    program = shlex.split(env.get(VARIABLE, "")) or ["ssh"]
    options = ["-t", "-o", f"ConnectTimeout={CONNECT_S}", "-o", "LogLevel=ERROR"]
    return [*program, *options, "--", host, there(words, host)]


def there(words: list[str], host: str) -> str:
    """The shell command that finds and runs ddptop on a machine.

    It looks on PATH, where setup-host installs, and at the path that ddptop has here.
    """
    own = own_command("ddptop", *words)
    script = next(word for word in own[1:] if not word.startswith("-"))
    arguments = shlex.join(words)
    steps = [
        f"export {HOST}={shlex.quote(host)}",
        f"if command -v ddptop >/dev/null; then exec ddptop {arguments}; fi",
        f"d=$HOME/{VENVS}/{__version__}/bin/python",
        f'if test -x "$d"; then exec "$d" -I -m ddptop {arguments}; fi',
        f"if test -x {shlex.quote(own[0])} && test -f {shlex.quote(script)};"
        f" then exec {shlex.join(own)}; fi",
        f"exit {NOT_INSTALLED}",
    ]
    return shlex.join(["sh", "-c", "; ".join(steps)])
