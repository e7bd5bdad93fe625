"""The verbs that show screens, with their options."""

from __future__ import annotations

import sys

import click

from ddptop_runner.errors import UsageError

READONLY_HELP = "a viewer that refuses to stop, kill, restart, launch or remove anything"
ASCII_HELP = "draw with ASCII only, or --no-ascii never (default: as locale and TERM say)"
SCREENS = ("attach", "compare", "replay", "watch")
"""Verbs that open a screen in this terminal."""


def is_terminal() -> bool:
    """Whether a person sits in front of this: Textual reads stdin and draws on stderr."""
    return sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()


@click.command()
@click.argument("job", required=False)
@click.option("--readonly", is_flag=True, help=READONLY_HELP)
@click.option("--ascii/--no-ascii", "ascii_only", default=None, help=ASCII_HELP)
def attach(job: str | None, readonly: bool, ascii_only: bool | None) -> int:
    """Watch a job, live or ended. Leaving never touches it."""
    from ddptop.tui.garbage import wait_with_garbage

    wait_with_garbage()
    from ddptop_runner.registry import resolve

    view = resolve(job)
    if not is_terminal():
        raise UsageError("attach needs a terminal", f"ddptop status {view.job} prints")
    from ddptop.commands.attach import run
    from ddptop.unguarded import taken_up

    if not readonly:
        taken_up(view)

    return run(view.job, readonly=readonly, ascii_only=ascii_only)


@click.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB [JOB]...")
@click.option("--json", "as_json", is_flag=True, help="print it, with the losses at common steps")
@click.option("--readonly", is_flag=True, help=READONLY_HELP)
@click.option("--ascii/--no-ascii", "ascii_only", default=None, help=ASCII_HELP)
def compare(jobs: tuple[str, ...], as_json: bool, readonly: bool, ascii_only: bool | None) -> int:
    """Show the losses of two to four jobs on one axis, and what differs between them.

    Of one job alone the others are offered in a list.
    """
    from ddptop.commands.compare import run

    return run(jobs, as_json, readonly=readonly, terminal=is_terminal(), ascii_only=ascii_only)


@click.command()
@click.argument("job")
@click.option("--at", metavar="TIME", help="the moment to begin with, such as 14:05 or -10m")
@click.option("--readonly", is_flag=True, help=READONLY_HELP)
@click.option("--ascii/--no-ascii", "ascii_only", default=None, help=ASCII_HELP)
def replay(job: str, at: str | None, readonly: bool, ascii_only: bool | None) -> int:
    """Show a job as it was at any moment of its history, live or ended.

    It opens shortly before the last failure or hang, else at the last moment. TIME is 14:05,
    14:05:30, 2026-03-14T14:05, +90m (from the job's start) or -10m (from its end).
    """
    from ddptop.commands.replay import run

    terminal = is_terminal()
    return run(job, at, readonly=readonly, terminal=terminal, ascii_only=ascii_only)


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="default: 8425; 0: any")
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="127.0.0.1, ::1 or localhost")
@click.option("--actions", is_flag=True, help="let it launch, stop and restart jobs, too")
def serve(port: int | None, host: str, actions: bool) -> int:
    """Show the same screens in a browser on this machine, read-only (extra ddptop[serve]).

    Prints an address that nobody can guess, and which lets in whoever knows it. From another
    machine: ssh -L.
    """
    from ddptop.commands import serve as command

    return command.run(host, command.DEFAULT_PORT if port is None else port, actions)


@click.command()
@click.argument("target", metavar="PID|JOB")
@click.option("--readonly", is_flag=True, help=READONLY_HELP)
@click.option("--ascii/--no-ascii", "ascii_only", default=None, help=ASCII_HELP)
def watch(target: str, readonly: bool, ascii_only: bool | None) -> int:
    """Watch training that ddptop did not start. Nothing is done to it unless confirmed."""
    from ddptop.commands.watch import run

    return run(target, readonly=readonly, terminal=is_terminal(), ascii_only=ascii_only)
