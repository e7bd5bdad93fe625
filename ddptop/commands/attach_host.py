"""`ddptop attach HOST:JOB`: the interface of another machine, in this terminal over ssh."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping

from ddptop_runner.base import programs
from ddptop_runner.base.errors import DdptopError, UsageError
from ddptop_runner.base.start import own_command
from ddptop_runner.launch.request import parse_hosts
from ddptop_runner.launch.ssh import CONNECT_S, FAILED, VARIABLE, VENVS, why_unreachable
from ddptop_runner.model.spec import check_name
from ddptop_runner.version import __version__

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
