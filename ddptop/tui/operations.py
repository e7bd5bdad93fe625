"""Operations on a job from the interface: the question, the effect, and the call.

Cheap to import, because the screens import it: each operation imports what it needs when it runs.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from ddptop.job.keys import key
from ddptop.job.ranks import launcher_in_words
from ddptop.job.record import Job, own_view
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import DdptopError, UsageError
from ddptop_runner.base.units import plural
from ddptop_runner.foreign.types import ForeignView

if TYPE_CHECKING:
    from ddptop.tui.app import DdptopApp
    from ddptop_runner.foreign.actions import Action, SignalOutcome, SignalPlan
    from ddptop_runner.foreign.types import ForeignJob
    from ddptop_runner.job.registry import JobView

GRACE_S = 30.0


class Operation(msgspec.Struct, frozen=True):
    """An operation that runs in a thread after confirmation."""

    question: str
    """Empty if it is harmless: `effect` is shown, and it runs immediately."""
    effect: str
    verb: str
    done: str
    """Message on success, unless `run` returns a better one."""
    run: Callable[[], str | SignalOutcome | None]
    """Blocks; raises DdptopError."""
    plan: SignalPlan | None = None
    """For a foreign job: the signals that `run` sends."""


Maker = Callable[[Job], Operation]
"""Makes the operation for one job; raises DdptopError if it is not possible."""


def _own(view: Job) -> JobView:
    """What the engine's commands take, if ddptop launched the job.

    Raises:
        UsageError: ddptop did not launch it.
    """
    if view.can_restart:
        return own_view(view)
    if view.members:
        raise UsageError(f"{view.name} is a sweep", f"press {key('job.open')} to show its jobs")
    raise UsageError(
        f"ddptop did not start {view.name} and can only stop or kill it",
        "launch it with ddptop to enable other actions",
    )


def _signalled(view: Job, job: ForeignJob, action: Action) -> Operation:
    """The operation that sends a foreign job the signals of a plan, described by the plan."""
    from ddptop_runner.foreign import actions

    plan = actions.plan(ForeignView(job, view.snapshot, view.read_at), action)
    verb = action.capitalize()
    whose = "" if plan.uid == os.geteuid() else f" ({view.user}'s job)"
    return Operation(
        f"{verb} {view.name}{whose}? ddptop did not start it.",
        plan.sentence,
        verb,
        f"sent signals to {view.name}",
        lambda: actions.send(plan),
        plan,
    )


def _ranks(view: Job) -> str:
    number = view.snapshot.world_size or view.spec.nproc
    if not number or (view.spec.is_command and not view.snapshot.ranks):
        return f"{launcher_in_words(view)} and all processes it started"
    return {1: "its rank", 2: "both ranks"}.get(number, f"all {number} ranks")


def _everything(view: Job) -> str:
    if view.spec.is_command:
        return f"{launcher_in_words(view)} and all processes it started"
    ranks = _ranks(view)
    return f"{ranks} and all processes {'it' if ranks == 'its rank' else 'they'} started"


def _asked_to_end(view: Job) -> str:
    """Which processes get which signal first; for a command, its ranks before the launcher."""
    from ddptop_runner.host.stopping import ask_to_end

    ranks = view.snapshot.ranks
    first = "/".join(sorted({ask_to_end(rank.frameworks).name for rank in ranks})) or "SIGTERM"
    if not view.spec.is_command:
        return f"SIGTERM to {_ranks(view)}, so that the script can save"
    if not ranks:
        return f"SIGTERM to {_ranks(view)}"
    return (
        f"{first} to {_ranks(view)}, so that the script can save, then SIGTERM to "
        f"{launcher_in_words(view)} and the rest of its processes"
    )


def _end(view: Job, *, kills: bool) -> Operation:
    """Stop or kill a job, or all jobs of a sweep."""
    from ddptop_runner.jobs import commands

    verb, grace_s = ("Kill", 0.0) if kills else ("Stop", GRACE_S)
    if view.members:
        signals = "SIGKILL" if kills else f"SIGTERM, then SIGKILL after {GRACE_S:.0f} s"
        return _end_group(view, verb, signals, grace_s)
    if view.foreign is not None:
        return _signalled(view, view.foreign, "kill" if kills else "stop")
    own = _own(view)
    if own.state == "queued":
        effect = "Removes the job from the queue; no ranks have started."
    elif kills:
        effect = (
            f"Sends SIGKILL to {_everything(view)} now. Work since the last checkpoint is lost."
        )
    else:
        effect = (
            f"Sends {_asked_to_end(view)}; after {GRACE_S:.0f} s, sends SIGKILL to any that "
            "remain. The job will not restart. Logs and history are kept."
        )
    act = functools.partial(commands.stop, grace_s=0.0 if kills else GRACE_S)
    done = f"{'killing' if kills else 'stopping'} {view.name}"
    return Operation(f"{verb} {view.name}?", effect, verb, done, functools.partial(act, own))


stop = functools.partial(_end, kills=False)
kill = functools.partial(_end, kills=True)


def _of_each(
    view: Job, own: Sequence[JobView], verb: str, effect: str, act: Callable[[JobView], object]
) -> Operation:
    """The operation on these jobs of a sweep."""
    from ddptop_runner.jobs import commands

    jobs = f"{plural(len(own), 'job')} of {view.name}"
    run = functools.partial(commands.on_each, own, act)
    return Operation(f"{verb} {jobs}?", effect, verb, f"{verb}: {jobs}", run)


def _end_group(view: Job, verb: str, signals: str, grace_s: float) -> Operation:
    from ddptop_runner.jobs import commands

    own = commands.live_of(list(map(own_view, view.members)))
    queued = sum(one.state == "queued" for one in own)
    effect = f"Removes {queued} from the queue; the ranks of the other {len(own) - queued} get"
    effect += f" {signals}. Logs and history are kept."
    end = functools.partial(commands.end_if_live, grace_s=grace_s)
    return _of_each(view, own, verb, effect, end)


def relaunch(view: Job) -> Operation:
    """Relaunch those jobs of a sweep that failed, were stopped, or are lost."""
    from ddptop_runner.jobs import commands, launch

    own = commands.to_restart(list(map(own_view, view.members)))
    names = ", ".join(one.job for one in own)
    effect = f"Relaunches the jobs that failed, were stopped, or are lost: {names}."
    again = functools.partial(launch.restart_ended, env=os.environ, wait_gpus=True)
    return _of_each(view, own, "Relaunch", effect, again)


def restart_group(view: Job) -> Operation:
    """Restart all ranks."""
    from ddptop_runner.jobs import commands

    own = _own(view)
    if own.state == "queued":
        raise UsageError(f"{view.name} is queued and has no ranks", "wait until it starts")
    return Operation(
        f"Restart all ranks of {view.name}?",
        f"A group restart: stops {_ranks(view)} and starts a new attempt. The script resumes from "
        "its last checkpoint if it supports that. This does not count toward the restart limit.",
        "Restart",
        f"restarting all ranks of {view.name}",
        lambda: commands.restart_group(own),
    )


def save(view: Job) -> Operation:
    """Request a checkpoint, and wait until it is saved."""
    from ddptop_runner.jobs import checkpoint as wanted

    own = _own(view)
    wanted.require_running(own)

    def run() -> str:
        from textual.worker import get_current_worker

        worker = get_current_worker()  # stop waiting if the user quits
        asked = wanted.ask(own)
        saved = wanted.wait(own, asked, is_cancelled=lambda: worker.is_cancelled)
        return f"{view.name} saved a checkpoint{saved.in_words()}: {saved.checkpoint.path}"

    summary = f"asked {view.name} to save a checkpoint; waiting for it to finish"
    return Operation("", summary, "Save", f"{view.name} saved a checkpoint", run)


def queue_again(view: Job) -> Operation:
    """Queue an ended job again."""
    from ddptop_runner.jobs import launch

    own = _own(view)
    launch.require_startable(own)

    def run() -> str:
        started, _, note = launch.restart_ended(own, os.environ, wait_gpus=True)
        how = "is queued" if started.state == "queued" else "relaunched"
        return "; ".join(filter(None, [f"{view.name} {how}", note]))

    return Operation("", f"queueing {view.name}", "Queue", f"{view.name} is queued", run)


def move(view: Job, *, last: bool) -> Operation:
    """Put a job that waits before or after all others of the user."""
    from ddptop_runner.jobs import commands

    own, where = _own(view), "last" if last else "first"
    done = f"{view.name} is {where} of your jobs that wait"
    run = functools.partial(commands.move_in_queue, own, None, last=last)
    return Operation("", f"moving {view.name}", "Move", done, run)


def to_relaunch(view: Job) -> Job:
    """The job, if the launch form can be filled in with its values.

    Raises:
        UsageError: it is live, or was not launched from here.
    """
    from ddptop_runner.jobs.launch import require_startable

    own = _own(view)
    if own.is_live:
        raise UsageError(f"{view.name} is still running", "stop it first")
    require_startable(own)
    return view


def remove(view: Job) -> Operation:
    """Delete an ended job."""
    from ddptop_runner.jobs import commands

    if view.members:
        effect = "Deletes their logs, history, and evidence. This cannot be undone."
        return _of_each(view, list(map(own_view, view.members)), "Remove", effect, commands.remove)
    own = _own(view)
    return Operation(
        f"Remove {view.name}?",
        f"Deletes its logs, history, and evidence in {own.folder.path}. This cannot be undone. "
        "Checkpoints that the script saved elsewhere are kept.",
        "Remove",
        f"removed {view.name}",
        lambda: commands.remove(own),
    )


# --- confirming, running, and reporting -----------------------------------------------------------


OPERATIONS: dict[str, tuple[Maker, bool]] = {
    "stop": (stop, True),
    "kill": (kill, True),
    "restart": (restart_group, True),
    "save": (save, True),
    "remove": (remove, False),
    "queue": (queue_again, False),
    "first": (functools.partial(move, last=False), True),
    "last": (functools.partial(move, last=True), True),
    "relaunch": (relaunch, False),
}
"""Each operation, and whether it requires a live job; otherwise it requires an ended one."""


def start(app: DdptopApp, view: Job, name: str) -> None:
    """Run one of `OPERATIONS` on a job, after confirmation if it is harmful."""
    make, needs_live = OPERATIONS[name]
    if app.refuses("changing jobs"):
        return
    if view.is_live != needs_live:
        again = "" if view.is_foreign else f"; press {key('job.again')} to relaunch it"
        text = "is still running; stop it first" if view.is_live else f"has ended{again}"
        app.notify(f"{view.name} {text}", severity="warning", markup=False)
        return
    try:
        operation = make(view)
    except DdptopError as refused:
        notify(app, "", refused)
        return
    if not operation.question:
        app.notify(operation.effect, markup=False)
        _carry_out(app, view.name, operation)
        return

    def answered(yes: bool | None) -> None:
        if yes:
            if operation.plan is not None:
                from ddptop.draw.panels import stopping_words

                app.collector.stopping(view.name, stopping_words(operation.plan, utc_now()))
                app.collector.ask()
            _carry_out(app, view.name, operation)

    from ddptop.tui.screens.dialogs import ConfirmScreen

    question = ConfirmScreen(operation.question, operation.effect, operation.verb)
    app.push_screen(question, answered)


def _carry_out(app: DdptopApp, job: str, operation: Operation) -> None:
    def run() -> None:
        from ddptop_runner.foreign.actions import SignalOutcome

        error, summary, ended = None, operation.done, None
        try:
            outcome = operation.run()
            if isinstance(outcome, SignalOutcome):
                summary = outcome.sentence
                ended = (job, outcome.ended_by) if outcome.ended_by else None
            elif outcome:
                summary = outcome
        except DdptopError as refused:
            error = refused
        except OSError as failed:
            error = DdptopError(str(failed))

        def report() -> None:
            if ended is not None:
                app.collector.ended(*ended)
            app.collector.stopping(job, None)
            notify(app, summary, error)
            app.collector.ask()

        with contextlib.suppress(RuntimeError):  # the app has exited
            app.call_from_thread(report)

    app.run_worker(run, thread=True, group="commands")


def notify(app: DdptopApp, text: str, error: DdptopError | None) -> None:
    """Show a notification of success, or of the error and its hint."""
    if error is None:
        app.notify(text, markup=False)
    else:
        hint = f"\n{error.hint}" if error.hint else ""
        app.notify(f"{error.message}{hint}", severity="error", timeout=10, markup=False)


def show_stacks(app: DdptopApp, view: Job) -> None:
    """Show the ranks' stacks when they arrive."""
    own = not view.is_foreign
    if own and view.is_live and app.refuses("signaling ranks to read their stacks"):
        return
    from ddptop.sources import evidence

    _read_into(
        app,
        f"stacks for {view.name}",
        evidence.stacks_hint(view),
        lambda: evidence.read_stacks(view),
    )


def show_profile(app: DdptopApp, view: Job, ranks: tuple[int, ...]) -> None:
    """Profile ranks of a live job, and show what their steps were spent on."""
    if view.is_foreign or app.refuses("profiling ranks"):
        return
    from ddptop.sources.profile import profile_job

    _read_into(
        app,
        f"profile of {view.name}",
        "a few steps under torch.profiler; the training goes on",
        lambda: profile_job(own_view(view), ranks).sections(),
    )


def show_evidence(app: DdptopApp, view: Job, attempt: int | None) -> None:
    """Show the evidence saved at the last failure or hang."""
    if not view.is_foreign:
        from ddptop.sources import evidence

        hint = "saved before any signal was sent; esc closes"
        _read_into(
            app, f"evidence for {view.name}", hint, lambda: evidence.read_evidence(view, attempt)
        )


def _read_into(
    app: DdptopApp, title: str, hint: str, read: Callable[[], list[tuple[str, str]]]
) -> None:
    from ddptop.tui.screens.dialogs import SectionsScreen

    screen = SectionsScreen(title, hint)
    app.push_screen(screen)

    def fill() -> None:
        try:
            sections = read()
        except DdptopError as error:
            sections = [(error.message, error.hint or "")]
        except OSError as error:
            sections = [(f"cannot be read: {error}", "")]
        app.call_from_thread(screen.show, sections)

    app.run_worker(fill, thread=True, group="stacks")
