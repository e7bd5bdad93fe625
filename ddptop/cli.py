"""The command line: every verb and its options. `commands/` does the work.

Each verb imports what it needs inside its function, so that `ls`, `status`, `gpus`, and `launch`
load neither Textual nor torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click
from click import argument, option

from ddptop.output import COMPLETE_VARIABLE, is_terminal, put
from ddptop_runner.base.errors import UsageError
from ddptop_runner.version import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SCREENS = ("attach", "compare", "replay", "watch")
"""Verbs that open a screen in this terminal."""


WITHOUT_JOBS = ("completion", "doctor", "gpus", "keys", "notify", "ps", "setup-host")
"""Commands that are useful even if the state folder cannot be read."""

CHANGES = ("stop", "kill", "restart", "rm", "checkpoint")
"""Commands that end or change a job; never suggested for a mistyped one."""

SECTIONS = {
    "Run": ["launch", "demo", "stop", "kill", "queue", "restart", "checkpoint", "wait", "rm"],
    "Watch": ["attach", "compare", "replay", "watch", "serve"],
    "Print": [
        *("ls", "status", "story", "report", "logs", "events", "export", "metrics", "stacks"),
        *("profile", "gpus", "ps"),
    ],
    "Set up": ["notify", "doctor", "setup-host", "keys", "completion"],
}
"""The order of the commands in `ddptop --help`; a test checks that none is missing."""


def complete_job(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the jobs whose names begin with `incomplete`, each with its state."""
    from click.shell_completion import CompletionItem

    from ddptop_runner.job.registry import all_jobs

    views = all_jobs()
    known = {view.spec.group or "": "sweep" for view in views} | {v.job: v.state for v in views}
    found = (name for name in known if name and name.startswith(incomplete))
    return [CompletionItem(name, help=known[name]) for name in found]


Verb = TypeVar("Verb", bound=Callable[..., int | None])


def screen_options(verb: Verb) -> Verb:
    """Add the options of a screen; the verb passes them on as keyword arguments."""
    readonly = option("--readonly", is_flag=True, help="disable all actions that change a job")
    ascii_only = option(
        "--ascii/--no-ascii",
        "ascii_only",
        default=None,
        help="use only ASCII characters  [default: based on locale and TERM]",
    )
    return readonly(ascii_only(verb))


MOST_SECONDS = 1e9


class Seconds(click.FloatRange):
    """A number of seconds up to `MOST_SECONDS`, not `nan`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        seconds = super().convert(value, param, ctx)
        if not seconds <= MOST_SECONDS:
            self.fail(f"{value} is not a number of seconds up to {MOST_SECONDS:.0f}.", param, ctx)
        return seconds


def seconds(*names: str, least: float, text: str, **more: Any) -> Callable[[Verb], Verb]:
    """An option that is a number of seconds."""
    return option(*names, type=Seconds(min=least), metavar="SECONDS", help=text, **more)


def number(*names: str, least: int, text: str, **more: Any) -> Callable[[Verb], Verb]:
    """An option that is a whole number."""
    return option(*names, type=click.IntRange(min=least), metavar="N", help=text, **more)


class SectionedGroup(click.Group):
    """A group whose help lists its commands under the headings of `SECTIONS`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command; for a mistyped one, suggest the nearest unless it changes a job."""
        verb = args[0]
        if ctx.resilient_parsing or verb.startswith("-") or verb in self.commands:
            return super().resolve_command(ctx, args)
        from difflib import get_close_matches

        nearest = get_close_matches(verb, self.commands, n=1)
        hint = "".join(f"; did you mean {name}?" for name in nearest if name not in CHANGES)
        raise click.UsageError(f"no command {verb!r}{hint}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one definition list per section, aligned alike."""
        width = max(map(len, self.commands))
        limit = formatter.width - width - 6
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (f"{name:{width}}", self.commands[name].get_short_help_str(limit))
                        for name in names
                    ]
                )


@click.group(
    cls=SectionedGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="ddptop")
@screen_options
@click.pass_context
def cli(context: click.Context, /, **screen: Any) -> int | None:
    """Launch, watch, and supervise distributed training on multiple GPUs.

    Without a command, open an overview of the jobs and GPUs on this machine.
    """
    if (verb := context.invoked_subcommand) is not None:
        for name, is_given in (
            ("--readonly", screen["readonly"]),
            ("--ascii", screen["ascii_only"] is not None),
        ):
            if is_given:
                hint = f"use ddptop {verb} {name}" if verb in SCREENS else "remove it"
                raise UsageError(f"{name} before {verb} has no effect", hint)
        if verb not in WITHOUT_JOBS and not {"-h", "--help"} & set(sys.argv):
            _require_readable()
        return None
    _require_readable()
    from ddptop.commands.attach import run_overview

    return run_overview(**screen)


def _require_readable() -> None:
    from ddptop_runner.base.paths import require_readable

    require_readable()


class LaunchCommand(click.Command):
    """A command whose options end at SCRIPT, `-m MODULE`, or `--`; the rest is passed through."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Let click parse the options only; keep the target and its arguments unchanged."""
        if ctx.resilient_parsing:  # for completion, the line need not be valid yet
            ctx.meta["words"] = args
            return super().parse_args(ctx, [])
        from ddptop.commands.launch import split_arguments

        takes_value = {
            name
            for parameter in self.params
            if isinstance(parameter, click.Option) and not parameter.is_flag
            for name in parameter.opts
        }
        options, ctx.obj = split_arguments(args, takes_value)
        ctx.meta["options"] = tuple(options)
        return super().parse_args(ctx, options)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return options, or have the shell complete a file."""
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-") and "--" not in ctx.meta["words"]:
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(incomplete, type="file")]


@cli.command(
    cls=LaunchCommand,
    options_metavar="[OPTIONS] SCRIPT | -m MODULE | -- COMMAND [ARGS]...",
    context_settings={"ignore_unknown_options": False},
    short_help="Start a training script with one rank per GPU.",
    epilog="Example: ddptop launch --gpus 0-3 --name bert train.py --epochs 3",
)
@option("--gpus", metavar="LIST", help="0-3, 0,2, all, none, auto:N, UUIDs  [default: all]")
@option("--wait-gpus", is_flag=True, help="queue the job until its GPUs are free")
@option("--share-idle", is_flag=True, help="queue the job until its GPUs are free or idle")
@option("--after", metavar="JOB[,JOB]", help="queue the job until these have finished")
@option("--after-any", metavar="JOB[,JOB]", help="the same, however they end")
@option("--at", metavar="TIME", help="queue the job until 22:00, or a date and time")
@option("--force", is_flag=True, help="use GPUs even if they are busy")
@option(
    "--nproc", type=int, metavar="N", help="number of ranks  [default: one per GPU, or 2 without]"
)
@option(
    "--name",
    metavar="NAME",
    help="job name; an ended job with that name is renamed  [default: from the script]",
)
@option(
    "--max-restarts",
    type=int,
    default=3,
    show_default=True,
    metavar="N",
    help="maximum restarts without progress",
)
@option(
    "--hang-timeout", default="auto", metavar="TIME", help="seconds, auto, or off  [default: auto]"
)
@option(
    "--on-nan",
    type=click.Choice(["alert", "stop", "restart"]),
    default="alert",
    show_default=True,
    metavar="ACTION",
    help="alert, stop, or restart on NaN",
)
@option("--allow-shrink", is_flag=True, help="continue with fewer ranks if a GPU fails")
@option("--no-zygote", is_flag=True, help="do not fork ranks from a process with torch loaded")
@option("--log-limit", metavar="SIZE", help="drop the start of larger rank logs  [default: 1G]")
@option("--hosts", metavar="LIST", help="machines to train on, with GPUs: a,me@b,c:0-3")
@option("--hostfile", metavar="FILE", help="the same, one per line: HOST[:GPUS] [slots=N]")
@option("--nodes", metavar="MIN:MAX", help="continue with MIN machines if others fail")
@option("--check", is_flag=True, help="first test every GPU and the network of the hosts")
@option("--node-timeout", type=float, metavar="S", help="wait for a lost machine  [default: 300]")
@option(
    "--orphan-timeout", type=float, metavar="S", help="end ranks out of contact  [default: 7200]"
)
@option("--env", multiple=True, metavar="K=V", help="set an environment variable; repeatable")
@option("--notify", multiple=True, metavar="URL", help="send messages there; see `ddptop notify`")
@option("--note", metavar="TEXT", help="a remark, shown in the story and by compare")
@option(
    "--array",
    multiple=True,
    metavar="NAME=VALUES",
    help="one job per value for {NAME} in ARGS; repeatable",
)
@number("--parallel", least=1, text="with --array: run at most N jobs at once")
@option("--cwd", metavar="DIR", help="working directory for the job")
@option("--python", metavar="PATH", help="Python interpreter  [default: active environment]")
@option("-d", "--detach", is_flag=True, help="start the job, print its name, and exit")
@option("--dry-run", is_flag=True, help="show what would run, then exit")
@option("--slurm", is_flag=True, help="submit to Slurm, or use the current allocation")
@number("--max-requeues", least=0, text="maximum Slurm requeues  [default: 3 without progress]")
@option("--no-probe", is_flag=True, help="do not load the probe into the ranks")
@option("--no-replica-check", is_flag=True, help="do not compare the ranks' weights")
@option("--memory-snapshot", is_flag=True, help="if GPU memory runs out, show what holds it")
@option("--pty", is_flag=True, help="run -- COMMAND in a pseudo-terminal")
@click.pass_context
def launch(context: click.Context, /, **options: Any) -> int:
    """Start SCRIPT in the background with one rank per GPU, then watch it.

    Arguments after SCRIPT or MODULE go to the script. To run another command or launcher, use
    -- COMMAND, as in `-- accelerate launch train.py`.

    With --slurm, options of sbatch go between -- and SCRIPT, as in `-- --time=8:00:00 train.py`.
    """
    from ddptop.commands.launch import run

    return run(
        context.obj,
        options,
        watch=is_terminal() and not options["detach"],
        typed_options=context.meta["options"],
    )


@cli.command(
    short_help="List live jobs and those that ended in the last day.",
    epilog="Example: ddptop ls --all",
)
@argument("sweep", shell_complete=complete_job, required=False)
@option("--all", "show_all", is_flag=True, help="include jobs that ended more than a day ago")
@option("--json", "as_json", is_flag=True, help="print JSON")
def ls(sweep: str | None, show_all: bool, as_json: bool) -> int:
    """List live jobs and those that ended in the last day, or the jobs of SWEEP, best first."""
    from ddptop.commands.ls import run

    return run(show_all, as_json, sweep)


@cli.command(epilog="Example: ddptop status bert --watch")
@argument("job", shell_complete=complete_job, required=False)
@option("--json", "as_json", is_flag=True, help="print JSON; with --watch, one object per line")
@option(
    "-w",
    "--watch",
    "watches",
    is_flag=True,
    help="keep updating a short summary until the job ends",
)
@seconds("--interval", least=0.1, text="time between updates with --watch  [default: 1]")
def status(job: str | None, as_json: bool, watches: bool, interval: float | None) -> int:
    """Show a job's state, ranks, losses, and devices.

    With --watch, keep updating a three-line summary until JOB ends, then exit with the same
    status as `wait`. Without JOB, show one line per job, most urgent first, until ctrl+c.
    """
    if watches:
        from ddptop.commands import status_watch

        return status_watch.run(job, as_json, 1.0 if interval is None else interval)
    if interval is not None:
        raise UsageError("--interval requires --watch", "add --watch")
    from ddptop.commands.status import run

    return run(job, as_json)


@cli.command(epilog="Example: ddptop logs bert -r all -f")
@argument("job", shell_complete=complete_job, required=False)
@option(
    "-r",
    "--rank",
    metavar="RANK|all",
    help="rank to print  [default: 0, or all output of a command]",
)
@option("-f", "--follow", is_flag=True, help="print new lines as they arrive, across attempts")
@number("-n", "--lines", least=0, text="print the last N lines", default=100, show_default=True)
@number("--attempt", least=0, text="attempt whose output to print  [default: latest]")
def logs(job: str | None, rank: str | None, follow: bool, lines: int, attempt: int | None) -> int:
    """Print the output of a rank or a command."""
    from ddptop.commands.logs import run
    from ddptop.commands.unguarded import adopt_if_unguarded
    from ddptop_runner.base.units import whole
    from ddptop_runner.job.registry import read_job
    from ddptop_runner.jobs.slurm_queue import as_queued, find

    number = None if rank is None else whole(rank)
    if rank not in (None, "all") and number is None:
        raise UsageError(f"-r {rank} is not a valid rank", "use a number or all")
    view = adopt_if_unguarded(find(job))
    return run(
        view.folder,
        view.spec,
        "all" if rank == "all" else number,
        follow,
        lines,
        attempt,
        lambda: not as_queued(read_job(view.folder)).is_live,
    )


@cli.command(epilog="Example: ddptop stop bert --save")
@argument("job", shell_complete=complete_job)
@seconds(
    "--grace", least=0, text="time between SIGTERM and SIGKILL", default=30.0, show_default=True
)
@option("--save", is_flag=True, help="save a checkpoint first; stop only if that succeeds")
@seconds("--timeout", least=0, text="how long --save waits for the checkpoint  [default: 60]")
def stop(job: str, grace: float, save: bool, timeout: float | None) -> int:
    """Stop a job and wait for its last process to exit."""
    from ddptop.commands.control import run_stop

    if timeout is not None and not save:
        raise UsageError("--timeout requires --save", "add --save, or use --grace")
    return run_stop(job, grace, save=save, timeout_s=timeout)


@cli.command(epilog="Example: ddptop checkpoint bert")
@argument("job", shell_complete=complete_job, required=False)
@seconds("--timeout", least=0, text="how long to wait for the checkpoint  [default: 60]")
def checkpoint(job: str | None, timeout: float | None) -> int:
    """Ask a job to save a checkpoint now, and print its path.

    Creates the file named by DDPTOP_CHECKPOINT_FILE and sends SIGUSR1 or SIGUSR2 to ranks that
    handle it. Never terminates a process.
    """
    from ddptop.commands.control import run_checkpoint

    return run_checkpoint(job, timeout)


@cli.command(epilog="Example: ddptop kill bert")
@argument("job", shell_complete=complete_job)
def kill(job: str) -> int:
    """Kill all processes of a job immediately (SIGKILL)."""
    from ddptop.commands.control import run_stop

    return run_stop(job, 0.0)


@cli.command(epilog="Example: ddptop restart bert --wait-gpus")
@argument("job", shell_complete=complete_job)
@option("--wait-gpus", is_flag=True, help="queue an ended job until its GPUs are free")
@option("--force", is_flag=True, help="relaunch an ended job even if its GPUs are busy")
def restart(job: str, wait_gpus: bool, force: bool) -> int:
    """Restart all ranks of a live job, or relaunch an ended one."""
    from ddptop.commands.control import run_restart

    return run_restart(job, force, wait_gpus)


@cli.group(
    invoke_without_command=True,
    short_help="Show which jobs wait, for what, and until when.",
    epilog="Example: ddptop queue move bert --first",
)
@option("--json", "as_json", is_flag=True, help="print JSON")
@click.pass_context
def queue(context: click.Context, as_json: bool) -> int | None:
    """Show the jobs that run or wait on this machine, in order, and why they wait.

    To queue a job, use `launch` with --wait-gpus, --after, or --at; to cancel it, `stop`.
    """
    if context.invoked_subcommand is not None:
        return None
    from ddptop.commands.queue import show

    return show(as_json)


@queue.command("move", epilog="Example: ddptop queue move bert --before gpt")
@argument("job", shell_complete=complete_job)
@option("--first", is_flag=True, help="before all of your jobs that wait")
@option("--last", is_flag=True, help="after all of them")
@option("--before", metavar="OTHER", shell_complete=complete_job, help="before that job of yours")
def queue_move(job: str, first: bool, last: bool, before: str | None) -> int:
    """Change the order of your own jobs."""
    from ddptop.commands.queue import move

    if [first, last, before is not None].count(True) != 1:
        raise UsageError("queue move needs one place", "use --first, --last, or --before OTHER")
    return move(job, before=before, last=last)


@queue.command("restore", epilog="Example: ddptop queue restore")
def queue_restore() -> int:
    """Queue the jobs again that waited when the machine went down."""
    from ddptop.commands.queue import restore

    return restore()


@cli.command(epilog="Example: ddptop wait bert && ./evaluate.sh")
@argument("job", shell_complete=complete_job, required=False)
@seconds("--timeout", least=0, text="maximum time to wait")
def wait(job: str | None, timeout: float | None) -> int:
    """Wait for a job to end.

    Exit status: 0 finished, 1 failed, 4 stopped, 5 lost, 93 failed and not worth requeueing,
    124 timed out.
    """
    from ddptop.commands.control import run_wait

    return run_wait(job, timeout)


@cli.command(epilog="Example: ddptop rm bert-1 bert-2")
@argument("jobs", shell_complete=complete_job, nargs=-1, required=True, metavar="JOB...")
@option(
    "--force",
    is_flag=True,
    help="also delete jobs whose host or container is gone, or of another version of ddptop",
)
def rm(jobs: tuple[str, ...], force: bool) -> int:
    """Delete ended jobs with their logs and history."""
    from ddptop.commands.control import run_rm

    return run_rm(jobs, force)


@cli.command(short_help="Print the stack of every rank.", epilog="Example: ddptop stacks bert -r 1")
@argument("job", shell_complete=complete_job, required=False)
@option("-r", "--rank", type=click.IntRange(min=0), metavar="RANK", help="print only this rank")
def stacks(job: str | None, rank: int | None) -> int:
    """Print the stack of every rank, or the saved stacks of an ended job."""
    from ddptop.commands.story import run_stacks

    return run_stacks(job, rank)


class Ranks(click.IntRange):
    """Numbers of ranks, such as `0,2`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A tuple of the numbers, each once."""
        parts = value.split(",") if value else ()
        return tuple(dict.fromkeys(super(Ranks, self).convert(part, param, ctx) for part in parts))


@cli.command(
    short_help="Profile a few steps of live ranks.", epilog="Example: ddptop profile bert -r 0,2"
)
@argument("job", shell_complete=complete_job, required=False)
@option(
    "-r",
    "--rank",
    "ranks",
    type=Ranks(min=0),
    metavar="RANK[,RANK]",
    default="",
    help="the ranks  [default: the slowest and the median one]",
)
@option("--steps", type=click.IntRange(1, 50), default=5, show_default=True)
@option("--json", "as_json", is_flag=True, help="print JSON")
def profile(job: str | None, ranks: tuple[int, ...], steps: int, as_json: bool) -> int:
    """Profile a few steps of live ranks with torch.profiler, without restarting them."""
    from ddptop.commands.profile import run_profile

    return run_profile(job, ranks, steps, as_json)


@cli.command(epilog="Example: watch ddptop gpus")
@option("--json", "as_json", is_flag=True, help="print JSON")
def gpus(as_json: bool) -> int:
    """Show the GPUs on this machine and who is using them."""
    from ddptop.commands.gpus import run

    return run(as_json)


@cli.command(epilog="Example: ddptop events bert --json")
@argument("job", shell_complete=complete_job, required=False)
@option("-f", "--follow", is_flag=True, help="print new events until the job ends")
@option("--json", "as_json", is_flag=True, help="print JSON, one event per line")
def events(job: str | None, follow: bool, as_json: bool) -> int:
    """Print a job's events in order."""
    from ddptop.commands.story import run_events
    from ddptop.commands.unguarded import adopt_if_unguarded
    from ddptop_runner.jobs.slurm_queue import find

    return run_events(adopt_if_unguarded(find(job)).folder, as_json, follow=follow)


@cli.command(epilog="Example: ddptop export bert --csv > bert.csv")
@argument("job", shell_complete=complete_job, required=False)
@option("--csv", "as_csv", is_flag=True, help="print CSV")
@option("--json", "as_json", is_flag=True, help="print JSON, one value per line")
@option("--tensorboard", metavar="DIR", type=click.Path(file_okay=False), help="write event files")
def export(job: str | None, as_csv: bool, as_json: bool, tensorboard: str | None) -> int:
    """Export a job's losses, times, and other values of all ranks and attempts."""
    from ddptop.commands.export import run

    return run(job, as_csv=as_csv, as_json=as_json, folder=tensorboard)


@cli.command(epilog="Example: ddptop report bert --html -o bert.html")
@argument("job", shell_complete=complete_job, required=False)
@option("--html", "as_html", is_flag=True, help="a page with charts, instead of Markdown")
@option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.File("w", encoding="utf-8", lazy=True),
    default="-",
    help="write to a file, which is replaced  [default: standard output]",
)
def report(job: str | None, as_html: bool, output: TextIO) -> int:
    """Report on a job: progress, attempts, time lost, GPU hours, and energy."""
    from ddptop.commands.report import run

    return run(job, output, as_html=as_html)


@cli.command(epilog="Example: ddptop metrics --listen 127.0.0.1:9400")
@option("--listen", metavar="ADDRESS:PORT", help="serve /metrics there until ctrl+c")
@option("--textfile", metavar="DIR", help="write DIR/ddptop.prom for node_exporter until ctrl+c")
@option(
    "--interval", type=Seconds(min=1), default=15, metavar="S", help="between writes  [default: 15]"
)
def metrics(listen: str | None, textfile: str | None, interval: float) -> int:
    """Print or serve jobs, ranks, and GPUs for Prometheus.

    Anyone who can connect to the address can read job names and figures, so use 127.0.0.1 unless
    all who can reach it may.
    """
    from ddptop.commands.metrics import run

    return run(listen, textfile, interval)


@cli.command(epilog="Example: ddptop story bert")
@argument("job", shell_complete=complete_job, required=False)
@option("--json", "as_json", is_flag=True, help="print JSON")
def story(job: str | None, as_json: bool) -> int:
    """Show how each attempt of a job ended, why, and what to do."""
    from ddptop.commands.story import run_story

    return run_story(job, as_json)


@cli.command(epilog="Example: ddptop doctor")
@option("--json", "as_json", is_flag=True, help="print JSON")
@option("--python", metavar="PATH", help="Python interpreter to check")
@option("--hosts", metavar="LIST", help="check these machines instead, as in a,me@b,c")
@option("--hostfile", metavar="FILE", help="the same, one host per line")
def doctor(as_json: bool, python: str | None, hosts: str | None, hostfile: str | None) -> int:
    """Check whether this machine is ready for long training runs.

    With --hosts, check those machines, and whether they can train together.
    """
    from ddptop.commands.doctor import run_doctor, run_hosts

    if hosts is not None or hostfile is not None:
        return run_hosts(as_json, python, hosts, hostfile)
    return run_doctor(as_json, python)


@cli.command(
    short_help="Install ddptop on other machines.", epilog="Example: ddptop setup-host a b"
)
@argument("hosts", nargs=-1, required=True, metavar="HOST...")
@option("--python", metavar="PATH", help="their Python  [default: active environment's path]")
def setup_host(hosts: tuple[str, ...], python: str | None) -> int:
    """Install this version of ddptop on other machines, over ssh.

    It is installed in its own environment in ~/.local/share/ddptop, without torch. Machines where
    the job's environment contains ddptop do not need it.
    """
    from ddptop.commands.doctor import run_setup_host

    return run_setup_host(hosts, python)


@cli.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="Example: ddptop demo --fault kill",
)
@option("-d", "--detach", is_flag=True, help="start the job, print its name, and exit")
@option(
    "--fault",
    metavar="KIND",
    help="inject a fault once training starts; pass `list` to see the kinds",
)
@option("--rank", type=int, default=1, show_default=True, help="rank with the fault or the mistake")
@option(
    "--sick",
    metavar="KIND",
    help="train with a common mistake, which ddptop names; pass `list` to see the kinds",
)
@option("--array", "is_array", is_flag=True, help="launch a sweep of six short trainings")
@number(
    "--parallel", least=1, text="with --array: run at most N at once  [default: 2 without GPUs]"
)
@argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def demo(
    detach: bool,
    fault: str | None,
    rank: int,
    sick: str | None,
    is_array: bool,
    parallel: int | None,
    arguments: tuple[str, ...],
) -> int:
    """Train a small GPT on all free GPUs, or on the CPU if none are free."""
    watch = is_terminal() and not detach
    from ddptop.commands.demo import run, run_array, run_fault, run_sick

    if (fault is not None) + (sick is not None) + is_array > 1:
        raise UsageError("--fault, --sick, and --array exclude each other", "use one of them")
    if is_array:
        return run_array(list(arguments), parallel, detach, watch)
    if parallel is not None:
        raise UsageError("--parallel requires --array", "add --array, or remove it")
    if sick is not None:
        return run_sick(sick, rank, list(arguments), detach, watch)
    if fault is not None:
        return run_fault(fault, rank, list(arguments), detach, watch)
    return run(list(arguments), detach, watch=watch)


@cli.command(epilog="Example: ddptop ps --ranks")
@option("--ranks", "show_ranks", is_flag=True, help="list each rank with its PID and GPU")
@option("--json", "as_json", is_flag=True, help="print JSON")
def ps(show_ranks: bool, as_json: bool) -> int:
    """List training jobs that ddptop did not start."""
    from ddptop.commands.ps import run

    return run(as_json, show_ranks)


@cli.group(
    no_args_is_help=False,
    short_help="Send messages when jobs fail, hang, or finish.",
    epilog="Example: ddptop notify add ntfys://ntfy.sh/my-topic",
)
def notify() -> None:
    """Choose who gets messages when jobs fail, hang, restart, or finish.

    URL is https://… (a webhook that gets JSON), cmd:COMMAND (a shell command with JSON on stdin),
    or, with pip install 'ddptop[notify]', any URL of apprise: mail, Slack, Telegram, ntfy, Feishu,
    DingTalk, WeCom, and many more. Messages, quiet hours, and hooks are configured in config.toml.
    """


@notify.command("add", epilog="Example: ddptop notify add ntfys://ntfy.sh/my-secret-topic")
@argument("url", required=False)
def notify_add(url: str | None) -> int:
    """Send messages about new jobs to URL; without URL, read it from standard input."""
    from ddptop.commands.notify import add

    return add(url)


@notify.command("list", epilog="Example: ddptop notify list")
@option("--json", "as_json", is_flag=True, help="print JSON")
def notify_list(as_json: bool) -> int:
    """List the receivers, without their secrets."""
    from ddptop.commands.notify import show

    return show(as_json)


@notify.command("remove", epilog="Example: ddptop notify remove 1")
@argument("number", type=int)
def notify_remove(number: int) -> int:
    """Remove a receiver by its number in the list."""
    from ddptop.commands.notify import remove

    return remove(number)


@notify.command("test", epilog="Example: ddptop notify test")
@argument("url", required=False)
def notify_test(url: str | None) -> int:
    """Send a test message to URL, or to all receivers."""
    from ddptop.commands.notify import test

    return test(url)


@cli.command(short_help="List all keyboard shortcuts.", epilog="Example: ddptop keys")
@option("--json", "as_json", is_flag=True, help="print JSON")
def keys(as_json: bool) -> int:
    """List all keyboard shortcuts and any errors in the [keys] section of config.toml."""
    from ddptop.commands.keys import run_keys

    return run_keys(as_json)


@cli.command(epilog='Example: eval "$(ddptop completion bash)"')
@argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print a shell completion script.

    Add the line below to ~/.bashrc, or its zsh equivalent to ~/.zshrc. For fish, write the output
    to ~/.config/fish/completions/ddptop.fish.
    """
    from click.shell_completion import get_completion_class

    completer = get_completion_class(shell)
    assert completer is not None
    put(completer(cli, {}, "ddptop", COMPLETE_VARIABLE).source())
    return 0


@cli.command(epilog="Example: ddptop attach bert")
@argument("job", shell_complete=complete_job, required=False, metavar="[JOB|HOST:JOB]")
@screen_options
def attach(job: str | None, **screen: Any) -> int:
    """Open a live or ended job. Quitting never affects it.

    With HOST:JOB, open a job of another machine over ssh.
    """
    from ddptop.commands.attach import run_job

    return run_job(job, **screen)


@cli.command(
    short_help="Compare the losses and options of several jobs.",
    epilog="Example: ddptop compare bert-lr3e-4 bert-lr1e-3",
)
@argument("jobs", shell_complete=complete_job, nargs=-1, required=True, metavar="JOB [JOB]...")
@option("--json", "as_json", is_flag=True, help="print JSON, including losses at common steps")
@option(
    "--fail-if",
    multiple=True,
    metavar="CONDITION",
    help="exit with 1 if the second job is worse: 'step_time > +5%'; repeatable",
)
@screen_options
def compare(jobs: tuple[str, ...], as_json: bool, fail_if: tuple[str, ...], **screen: Any) -> int:
    """Compare the losses and options of up to eight jobs, or of the best ones of a sweep.

    With one JOB, pick the others from a list. With --fail-if, the first JOB is the baseline, and an
    unknown value counts as worse.
    """
    from ddptop.commands.compare import run

    return run(jobs, as_json, fail_if=fail_if, **screen)


@cli.command(epilog="Example: ddptop replay bert --at -10m")
@argument("job", shell_complete=complete_job)
@option("--at", metavar="TIME", help="start at this time, such as 14:05 or -10m")
@screen_options
def replay(job: str, at: str | None, **screen: Any) -> int:
    """Show a job as it was at any time in its history.

    Opens just before the last failure or hang, or at the end. TIME is 14:05, 14:05:30,
    2026-03-14T14:05, +90m (after the start), or -10m (before the end).
    """
    from ddptop.commands.replay import run

    return run(job, at, **screen)


@cli.command(epilog="Example: ddptop serve --port 8425")
@option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    help="port to listen on; 0 picks a free one  [default: 8425]",
)
@option("--host", default="127.0.0.1", metavar="ADDRESS", help="127.0.0.1, ::1, or localhost")
@option("--actions", is_flag=True, help="allow launching, stopping, and restarting jobs")
def serve(port: int | None, host: str, actions: bool) -> int:
    """Serve the interface to a browser on this machine.

    Read-only unless --actions is given. Prints a URL with a secret token; anyone who has the URL
    can connect. To open it from another machine, use ssh -L.
    Requires `pip install 'ddptop[serve]'`.
    """
    from ddptop.commands import serve as command

    return command.run(host, command.DEFAULT_PORT if port is None else port, actions)


@cli.command(epilog="Example: ddptop watch 12345")
@argument("target", metavar="PID|JOB|slurm:ID[@NODE]")
@screen_options
def watch(target: str, **screen: Any) -> int:
    """Watch a training job that ddptop did not start.

    With slurm:ID, show what runs on the first node of that Slurm job, or on NODE.
    """
    from ddptop.commands.watch import run, run_there

    return run_there(target, **screen) if target.startswith("slurm:") else run(target, **screen)
