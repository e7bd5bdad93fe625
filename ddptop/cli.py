"""The command line: every verb with its options; each verb's work is in `commands/`.

Only what a verb needs is imported, inside its function: `ls`, `status`, `gpus` and `launch` load
neither Textual nor torch.
"""

from __future__ import annotations

from typing import Any

import click

from ddptop.cli_screens import (
    ASCII_HELP,
    READONLY_HELP,
    SCREENS,
    attach,
    compare,
    is_terminal,
    replay,
    serve,
    watch,
)
from ddptop_runner.errors import UsageError
from ddptop_runner.version import __version__


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ddptop")
@click.option("--readonly", is_flag=True, help=READONLY_HELP)
@click.option("--ascii/--no-ascii", "ascii_only", default=None, help=ASCII_HELP)
@click.pass_context
def cli(context: click.Context, readonly: bool, ascii_only: bool | None) -> int | None:
    """Launch, watch and keep alive distributed training on several GPUs.

    Without a command: the overview of this machine's jobs and GPUs.
    """
    if (verb := context.invoked_subcommand) is not None:
        if readonly:
            hint = f"ddptop {verb} --readonly" if verb in SCREENS else "leave it out"
            raise UsageError(f"--readonly before {verb} says nothing", hint)
        if ascii_only is not None:
            hint = f"ddptop {verb} --ascii" if verb in SCREENS else "leave it out"
            raise UsageError(f"--ascii before {verb} says nothing", hint)
        return None
    if not is_terminal():
        raise UsageError("the overview needs a terminal", "ddptop ls and ddptop gpus print")
    from ddptop.tui.garbage import wait_with_garbage

    wait_with_garbage()
    from ddptop.commands.attach import run_overview
    from ddptop.unguarded import guard
    from ddptop_runner.registry import all_jobs

    if not readonly:
        guard(all_jobs())
    return run_overview(readonly=readonly, ascii_only=ascii_only)


class LaunchCommand(click.Command):
    """A command whose options end at SCRIPT, `-m MODULE` or `--`: the rest is verbatim."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give click the options only, and keep target and its arguments as they are."""
        from ddptop.commands.launch import split_arguments

        takes_value = {
            name
            for parameter in self.params
            if isinstance(parameter, click.Option) and not parameter.is_flag
            for name in parameter.opts
        }
        options, ctx.obj = split_arguments(args, takes_value)
        return super().parse_args(ctx, options)


@cli.command(
    cls=LaunchCommand,
    options_metavar="[OPTIONS] SCRIPT | -m MODULE | -- COMMAND [ARGS]...",
    context_settings={"ignore_unknown_options": False},
)
@click.option(
    "--gpus",
    metavar="LIST",
    help="0-3, 0,2, all, none, auto:N (the N idlest) or UUIDs (default: all that are allowed)",
)
@click.option("--wait-gpus", is_flag=True, help="queue the job until its GPUs are free")
@click.option("--force", is_flag=True, help="take GPUs that are busy")
@click.option(
    "--launcher",
    type=click.Choice(["accelerate", "deepspeed", "horovod", "mpi", "none", "torchrun"]),
    help="have this one start the ranks; none: one process (default: ddptop itself)",
)
@click.option("--nproc", type=int, metavar="N", help="ranks (default: one per GPU)")
@click.option("--name", metavar="NAME", help="the job's name (default: the script's)")
@click.option("--max-restarts", type=int, default=3, show_default=True, metavar="N")
@click.option(
    "--hang-timeout",
    default="auto",
    show_default=True,
    metavar="auto|SECONDS|off",
    help="end and restart a group that makes no progress for so long; auto: learned from the run",
)
@click.option(
    "--on-nan",
    type=click.Choice(["alert", "stop", "restart"]),
    default="alert",
    show_default=True,
    help="what to do when a loss is NaN or infinite",
)
@click.option("--allow-shrink", is_flag=True, help="go on with fewer ranks when a GPU is broken")
@click.option(
    "--warm-spares",
    is_flag=True,
    help="keep an interpreter with torch ready per rank: restarts sooner, costs memory",
)
@click.option(
    "--log-limit", metavar="SIZE", help="of one rank's log; its head is archived (default: 1G)"
)
@click.option("--env", multiple=True, metavar="K=V", help="a variable for the job; repeatable")
@click.option("--cwd", metavar="DIR", help="the job's working folder")
@click.option(
    "--python", metavar="PATH", help="its interpreter (default: the active environment's)"
)
@click.option("-d", "--detach", is_flag=True, help="print the job's name and return")
@click.option("--dry-run", is_flag=True, help="show what would be done, and do nothing")
@click.option("--no-probe", is_flag=True, help="load nothing into the ranks")
@click.option("--pty", is_flag=True, help="give -- COMMAND a terminal of its own to write to")
@click.pass_context
def launch(context: click.Context, /, **options: Any) -> int:
    """Start SCRIPT with one rank per GPU, detached and guarded; then watch it.

    Everything after SCRIPT or MODULE is the script's own. After -- comes any other command, such
    as another launcher, which is run as it is and starts its ranks itself; --launcher writes such a
    command for you.
    """
    from ddptop.commands.launch import run

    terminal = is_terminal()
    return run(context.obj, options, watch=terminal and not options["detach"], asks=terminal)


@cli.command()
@click.option("--all", "show_all", is_flag=True, help="also those that ended over a day ago")
@click.option("--json", "as_json", is_flag=True)
def ls(show_all: bool, as_json: bool) -> int:
    """List jobs: live ones and those ended in the last day."""
    from ddptop.commands.ls import run

    return run(show_all, as_json)


@cli.command()
@click.argument("job", required=False)
@click.option("--json", "as_json", is_flag=True, help="with --watch one object a line")
@click.option("-w", "--watch", "watches", is_flag=True, help="three lines that are kept up to date")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="with --watch: between two looks (default: 1)",
)
def status(job: str | None, as_json: bool, watches: bool, interval: float | None) -> int:
    """Show one job: state, ranks, losses, devices.

    With --watch JOB is shown in three lines until it ends, with the exit status of `wait`; without
    JOB all jobs have one line each, those first that need somebody, until ctrl+c.
    """
    if watches:
        from ddptop.commands import status_watch

        return status_watch.run(job, as_json, 1.0 if interval is None else interval)
    if interval is not None:
        raise UsageError("--interval says how often --watch looks", "add --watch")
    from ddptop.commands.status import run

    return run(job, as_json)


@cli.command()
@click.argument("job", required=False)
@click.option("-r", "--rank", metavar="RANK|all", help="default: 0; of a command all it wrote")
@click.option("-f", "--follow", is_flag=True, help="go on as lines come, across attempts")
@click.option("-n", "--lines", type=click.IntRange(min=0), default=100, show_default=True)
@click.option("--attempt", type=click.IntRange(min=0), help="default: the last one")
def logs(job: str | None, rank: str | None, follow: bool, lines: int, attempt: int | None) -> int:
    """Print what a rank, or a command, wrote to stdout and stderr."""
    from ddptop.commands.logs import run
    from ddptop.unguarded import taken_up
    from ddptop_runner.registry import read_job, resolve

    if rank is not None and rank != "all" and not rank.isdigit():
        raise UsageError(f"-r {rank}: not a rank", "give a number, or all")
    view = taken_up(resolve(job))
    return run(
        view.folder,
        None if rank is None else "all" if rank == "all" else int(rank),
        follow,
        lines,
        attempt,
        lambda: not read_job(view.folder).is_live,
    )


@cli.command()
@click.argument("job")
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="between SIGTERM and SIGKILL",
)
@click.option("--save", is_flag=True, help="have it save a checkpoint first; without one, go on")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="with --save: for the checkpoint (default: 60)",
)
def stop(job: str, grace: float, save: bool, timeout: float | None) -> int:
    """End a job; returns when its last process is gone."""
    from ddptop.commands.stop import run

    if timeout is not None and not save:
        raise UsageError("--timeout is for the checkpoint of --save", "add --save, or use --grace")
    return run(job, grace, save=save, timeout_s=timeout)


@cli.command()
@click.argument("job", required=False)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="for the checkpoint (default: 60)",
)
def checkpoint(job: str | None, timeout: float | None) -> int:
    """Have a job save now, and print what it saved.

    Sends the signal that the script handles (SIGUSR1 or SIGUSR2), and none where it handles none,
    and makes the file that the script knows as DDPTOP_CHECKPOINT_FILE. Nothing is ever ended by it.
    """
    from ddptop.commands.checkpoint import run

    return run(job, timeout)


@cli.command()
@click.argument("job")
def kill(job: str) -> int:
    """End every process of a job at once (SIGKILL)."""
    from ddptop.commands.stop import run

    return run(job, 0.0)


@cli.command()
@click.argument("job")
@click.option("--wait-gpus", is_flag=True, help="of an ended job: queue until its GPUs are free")
@click.option("--force", is_flag=True, help="of an ended job: take GPUs that are busy")
def restart(job: str, wait_gpus: bool, force: bool) -> int:
    """Restart all ranks of a live job, or start an ended one again as a new attempt."""
    from ddptop.commands.restart import run

    return run(job, force, wait_gpus)


@cli.command()
@click.argument("job", required=False)
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS")
def wait(job: str | None, timeout: float | None) -> int:
    """Wait for a job's end.

    Exit status: 0 finished, 1 failed, 4 stopped, 5 lost, 93 failed and not worth requeueing,
    124 timed out.
    """
    from ddptop.commands.wait import run

    return run(job, timeout)


@cli.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
def rm(jobs: tuple[str, ...]) -> int:
    """Delete ended jobs with their logs and history."""
    from ddptop.commands.rm import run

    return run(jobs)


@cli.command()
@click.argument("job", required=False)
@click.option("-r", "--rank", type=click.IntRange(min=0))
def stacks(job: str | None, rank: int | None) -> int:
    """Show where every rank stands; of an ended job, the stored evidence."""
    from ddptop.commands.stacks import run

    return run(job, rank)


@cli.command()
@click.option("--json", "as_json", is_flag=True)
@click.option("--links", is_flag=True, help="PCIe and NVLink rates too; takes a second more")
def gpus(as_json: bool, links: bool) -> int:
    """Show this machine's GPUs and who holds them."""
    from ddptop.commands.gpus import run

    return run(as_json, links=links)


@cli.command()
@click.argument("job", required=False)
@click.option("--json", "as_json", is_flag=True, help="one event per line")
def events(job: str | None, as_json: bool) -> int:
    """Tell a job's story in order."""
    from ddptop.commands.events import run
    from ddptop.unguarded import taken_up
    from ddptop_runner.registry import resolve

    return run(taken_up(resolve(job)).folder, as_json)


@cli.command()
@click.option("--json", "as_json", is_flag=True)
@click.option("--python", metavar="PATH", help="the interpreter that jobs would use")
def doctor(as_json: bool, python: str | None) -> int:
    """Check this machine for all that a long training needs."""
    from ddptop.commands.doctor import run

    return run(as_json, python)


@cli.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-d", "--detach", is_flag=True, help="print the job's name and return")
@click.option("--fault", metavar="KIND", help="break it once it trains; `list` names the kinds")
@click.option("--rank", type=int, default=1, show_default=True, help="whom the fault is done to")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def demo(detach: bool, fault: str | None, rank: int, arguments: tuple[str, ...]) -> int:
    """Train a small GPT on Python's own source, on this machine's GPUs or on two CPU ranks."""
    watch = is_terminal() and not detach
    if fault is not None:
        from ddptop.commands import demo_fault

        return demo_fault.run(fault, rank, list(arguments), detach, watch)
    from ddptop.commands.demo import run

    return run(list(arguments), detach, watch=watch)


@cli.command()
@click.option("--ranks", "show_ranks", is_flag=True, help="each rank with its pid and GPU, too")
@click.option("--json", "as_json", is_flag=True)
def ps(show_ranks: bool, as_json: bool) -> int:
    """List training on this machine that ddptop did not start."""
    from ddptop.commands.ps import run

    return run(as_json, show_ranks)


@cli.command()
@click.option("--json", "as_json", is_flag=True)
def keys(as_json: bool) -> int:
    """List every key of the screens, and what is wrong in config.toml's [keys]."""
    from ddptop.commands.keys import run

    return run(as_json)


for verb in (attach, compare, replay, serve, watch):
    cli.add_command(verb)
