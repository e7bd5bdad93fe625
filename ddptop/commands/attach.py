"""`ddptop attach`, `watch`, and `ddptop`: the terminal interface, here or of another machine."""

from __future__ import annotations

import gc
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

from ddptop import terminal
from ddptop.commands.unguarded import adopt_if_unguarded, guard
from ddptop.output import info, is_terminal
from ddptop_runner.base.errors import DdptopError, UsageError
from ddptop_runner.job.registry import all_jobs

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
        opening: a message that opens another screen first, such as a comparison.
        ascii_only: draw with ASCII only; None depends on the settings, else on the terminal.

    Raises:
        UsageError: stderr, on which the screen is drawn, is not a suitable terminal.
    """
    terminal.check()
    gc.disable()  # until the first frame: it would take a tenth of that time in vain
    from ddptop.tui.app import DdptopApp
    from ddptop.tui.settings import read_settings
    from ddptop.tui.textual_gaps import TerminalDriver

    settings = read_settings()
    asked = settings.interface.ascii if ascii_only is None else ascii_only
    poor = terminal.wants_ascii(os.environ) if asked == "auto" else asked
    written = sys.__stderr__.encoding if sys.__stderr__ else None
    app = DdptopApp(
        job,
        tick_s=settings.interface.refresh_s,
        watched=watched,
        readonly=readonly,
        opening=opening,
        settings=settings,
        letters=terminal.letters(os.environ, written) if poor else None,
    )
    app.driver_class = TerminalDriver
    app.run(mouse=settings.interface.mouse)
    _print_reattach_hint(app.latest)
    return app.return_code or 0


def _print_reattach_hint(latest: Answer | None) -> None:
    """If the last screen showed one of ddptop's own live jobs, print how to reattach."""
    view = None if latest is None else latest.view
    if view is not None and view.can_restart and view.is_live:
        host = os.environ.get(HOST)
        job = f"{host}:{view.name}" if host else view.name
        info(f"{job} keeps running; reattach with `ddptop attach {job}`")


def run_job(job: str | None, **screen: Any) -> int:
    """Show a job of this machine, or HOST:JOB, until the user quits; return the exit status."""
    if job is not None and ":" in job:
        return _run_there(job, **screen)
    from ddptop_runner.jobs.slurm_queue import find

    view = find(job)
    if not is_terminal():
        raise UsageError("attach needs a terminal", f"use ddptop status {view.job} in scripts")
    if not screen.get("readonly"):
        adopt_if_unguarded(view)
    return run(view.job, **screen)


def run_overview(**screen: Any) -> int:
    """Show all jobs until the user quits; return the exit status."""
    if not is_terminal():
        raise UsageError("the overview needs a terminal", "use ddptop ls or ddptop gpus in scripts")
    if not screen.get("readonly"):
        guard(all_jobs())
    return run(None, **screen)


def words_of(*, readonly: bool = False, ascii_only: bool | None = None) -> list[str]:
    """The options of a screen, for the ddptop of another machine."""
    ascii_words = [] if ascii_only is None else ["--ascii" if ascii_only else "--no-ascii"]
    return ["--readonly"] * readonly + ascii_words


# --- of another machine, over ssh -----------------------------------------------------------------

NOT_INSTALLED = 127
"""Exit status if ddptop is not installed on the other machine."""

HOST = "DDPTOP_ATTACHED_HOST"
"""The variable with the name by which this machine knows the other one."""


def _run_there(target: str, **screen: Any) -> int:
    """Attach on that machine until the user quits; return the exit status.

    Raises:
        UsageError: the target is invalid, or there is no terminal.
        DdptopError: ssh failed, or ddptop is missing there.
    """
    from ddptop_runner.base import programs
    from ddptop_runner.launch import ssh
    from ddptop_runner.launch.request import parse_hosts
    from ddptop_runner.model.spec import check_name

    host, _, job = target.rpartition(":")
    if not host:
        raise UsageError(f"{target!r} names no host", "use HOST:JOB, or JOB alone")
    if job:
        check_name(job)
    (asked,) = parse_hosts(host, "attach")[:1]
    if asked.host != host:
        raise UsageError(f"{target!r} is not a valid HOST:JOB", "use a host that ssh understands")
    if not is_terminal():
        verb = f"status {job}" if job else "ls"
        raise UsageError(
            "attach needs a terminal", f"use `ssh {shlex.quote(host)} ddptop {verb}` in scripts"
        )
    words = ["attach", *([job] if job else []), *words_of(**screen)]
    program = shlex.split(os.environ.get(ssh.VARIABLE, "")) or ["ssh"]
    options = ["-t", "-o", f"ConnectTimeout={ssh.CONNECT_S}", "-o", "LogLevel=ERROR"]
    argv = [*program, *options, "--", host, there(words, host)]
    done = programs.run(argv, None, is_interactive=True)  # ssh may ask for a password
    if done.returncode == ssh.FAILED:
        why = ssh.why_unreachable(host, ssh.FAILED, done.stderr, ssh.CONNECT_S)
        raise DdptopError(f"{host}: {why.problem}", why.remedy)
    if done.returncode == NOT_INSTALLED:
        raise DdptopError(
            f"{host}: ddptop is not installed", f"run ddptop setup-host {shlex.quote(host)}"
        )
    return done.returncode


def there(words: list[str], host: str) -> str:
    """The shell command that finds and runs ddptop on a machine.

    It looks on PATH, where setup-host installs, and at the path that ddptop has here.
    """
    from ddptop_runner.base.start import own_command
    from ddptop_runner.launch.ssh import VENVS
    from ddptop_runner.version import __version__

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
