"""The verbs that open screens, and the completion of JOB for all verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ddptop.output import is_terminal

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

READONLY_HELP = "disable all actions that change a job"
ASCII_HELP = "use only ASCII characters  [default: based on locale and TERM]"
SCREENS = ("attach", "compare", "replay", "watch")
"""Verbs that open a screen in this terminal."""


def complete_job(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the jobs whose names begin with `incomplete`, each with its state."""
    from click.shell_completion import CompletionItem

    from ddptop_runner.job.registry import all_jobs

    return [
        CompletionItem(view.job, help=view.state)
        for view in all_jobs()
        if view.job.startswith(incomplete)
    ]


@click.command(epilog="Example: ddptop attach bert")
@click.argument("job", shell_complete=complete_job, required=False, metavar="[JOB|HOST:JOB]")
@click.option("--readonly", is_flag=True, help=READONLY_HELP)
@click.option("--ascii/--no-ascii", "ascii_only", default=None, help=ASCII_HELP)
def attach(job: str | None, readonly: bool, ascii_only: bool | None) -> int:
    """Open a live or ended job. Quitting never affects it.

    With HOST:JOB, open a job of another machine over ssh.
    """
    from ddptop.commands.attach import run_job

    return run_job(job, readonly=readonly, ascii_only=ascii_only)


@click.command(epilog="Example: ddptop compare bert-lr3e-4 bert-lr1e-3")
@click.argument(
    "jobs", shell_complete=complete_job, nargs=-1, required=True, metavar="JOB [JOB]..."
)
@click.option(
    "--json", "as_json", is_flag=True, help="print JSON, including losses at common steps"
)
@click.option("--readonly", is_flag=True, help=READONLY_HELP)
@click.option("--ascii/--no-ascii", "ascii_only", default=None, help=ASCII_HELP)
def compare(jobs: tuple[str, ...], as_json: bool, readonly: bool, ascii_only: bool | None) -> int:
    """Compare the losses and options of up to four jobs.

    With one JOB, pick the others from a list.
    """
    from ddptop.commands.compare import run

    return run(jobs, as_json, readonly=readonly, terminal=is_terminal(), ascii_only=ascii_only)


@click.command(epilog="Example: ddptop replay bert --at -10m")
@click.argument("job", shell_complete=complete_job)
@click.option("--at", metavar="TIME", help="start at this time, such as 14:05 or -10m")
@click.option("--readonly", is_flag=True, help=READONLY_HELP)
@click.option("--ascii/--no-ascii", "ascii_only", default=None, help=ASCII_HELP)
def replay(job: str, at: str | None, readonly: bool, ascii_only: bool | None) -> int:
    """Show a job as it was at any time in its history.

    Opens just before the last failure or hang, or at the end. TIME is 14:05, 14:05:30,
    2026-03-14T14:05, +90m (after the start), or -10m (before the end).
    """
    from ddptop.commands.replay import run

    terminal = is_terminal()
    return run(job, at, readonly=readonly, terminal=terminal, ascii_only=ascii_only)


@click.command(epilog="Example: ddptop serve --port 8425")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    help="port to listen on; 0 picks a free one  [default: 8425]",
)
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="127.0.0.1, ::1, or localhost")
@click.option("--actions", is_flag=True, help="allow launching, stopping, and restarting jobs")
def serve(port: int | None, host: str, actions: bool) -> int:
    """Serve the interface to a browser on this machine.

    Read-only unless --actions is given. Prints a URL with a secret token; anyone who has the URL
    can connect. To open it from another machine, use ssh -L.
    Requires `pip install 'ddptop[serve]'`.
    """
    from ddptop.commands import serve as command

    return command.run(host, command.DEFAULT_PORT if port is None else port, actions)


@click.command(epilog="Example: ddptop watch 12345")
@click.argument("target", metavar="PID|JOB|slurm:ID[@NODE]")
@click.option("--readonly", is_flag=True, help=READONLY_HELP)
@click.option("--ascii/--no-ascii", "ascii_only", default=None, help=ASCII_HELP)
def watch(target: str, readonly: bool, ascii_only: bool | None) -> int:
    """Watch a training job that ddptop did not start.

    With slurm:ID, show what runs on the first node of that Slurm job, or on NODE.
    """
    if target.startswith("slurm:"):
        from ddptop.commands.watch import run_there

        return run_there(target, readonly=readonly, ascii_only=ascii_only, terminal=is_terminal())
    from ddptop.commands.watch import run

    return run(target, readonly=readonly, terminal=is_terminal(), ascii_only=ascii_only)
