"""States and causes as a symbol, a word and a style: colour never says anything alone."""

from __future__ import annotations

from ddptop.tui.render.text import Line, Span
from ddptop_runner.foreign.view import ForeignView
from ddptop_runner.model_words import Phase, RankState
from ddptop_runner.registry import AnyJob

_JOB_STATES: dict[str, tuple[str, str]] = {
    "queued": ("○", "dim"),
    "starting": ("◔", "busy"),
    "running": ("●", "ok"),
    "restarting": ("↻", "warn"),
    "hung": ("‖", "bad"),
    "stopping": ("◌", "warn"),
    "finished": ("✓", "ok"),
    "failed": ("✗", "bad"),
    "stopped": ("■", "dim"),
    "lost": ("?", "bad"),
}

_RANK_STATES: dict[str, tuple[str, str]] = {
    "starting": ("◔", "busy"),
    "running": ("●", "ok"),
    "paused": ("‖", "warn"),
    "quiet": ("◌", "warn"),
    "hung": ("‖", "bad"),
    "exited": ("✓", "dim"),
    "failed": ("✗", "bad"),
    "stopped": ("■", "dim"),
    "unknown": ("?", "dim"),
    "blocked": ("◌", "warn"),
    "zombie": ("✗", "bad"),
    "stuck": ("‖", "bad"),
}

_PHASES: dict[Phase, str] = {
    "compile": "compiles",
    "evaluation": "evals",
    "checkpoint": "saves",
    "data": "no batch",
    "end": "ends",
}
"""What a rank does that takes no steps and is well; short, as the rank table's column is narrow."""

_STANDING_STILL: tuple[RankState, ...] = ("stuck", "zombie", "paused", "blocked")
"""Of a foreign job; the worst first."""

_SEVERITIES: dict[str, tuple[str, str]] = {
    "info": ("i", "dim"),
    "warning": ("▲", "warn"),
    "error": ("✗", "bad"),
}

_EVENT_STYLES: dict[str, str] = {
    "rank_exited": "warn",
    "launcher_exited": "warn",
    "hang_suspected": "warn",
    "hang": "bad",
    "failure": "bad",
    "failed": "bad",
    "group_restart": "warn",
    "guardian_restarted": "warn",
    "lost": "bad",
    "gpu_lost": "bad",
    "alert": "warn",
    "supervisor_restarted": "warn",
    "stopping": "warn",
    "training": "ok",
    "finished": "ok",
}


def job_state(state: str) -> Span:
    """`● running` and its style; a state of a newer ddptop is shown as it is."""
    symbol, style = _JOB_STATES.get(state, ("?", "dim"))
    return f"{symbol} {state}", style


def state_of(view: AnyJob) -> Span:
    """A job's state; of a foreign one what stands still, or that it is being stopped or gone."""
    if not isinstance(view, ForeignView):
        return job_state(view.state)
    if view.state == "lost":
        return "■ gone", "dim"
    if view.stopping:
        return job_state("stopping")
    states = [rank.state for rank in view.snapshot.ranks]
    for state in _STANDING_STILL:
        if number := states.count(state):
            symbol, style = _RANK_STATES[state]
            return f"{symbol} {number} {state}", style
    return job_state(view.state)


def rank_state(
    state: str,
    exit_code: int | None = None,
    signal: str | None = None,
    phase: Phase | None = None,
) -> Span:
    """`✗ SIGKILL`, `✗ exit 1`, `● running`: how a rank ended, or how it is.

    Args:
        state: the rank's.
        exit_code: with which it ended.
        signal: by which it was ended.
        phase: what it has been doing for a while instead of training steps, if anything.
    """
    symbol, style = _RANK_STATES.get(state, ("?", "dim"))
    if state in ("running", "starting") and phase in _PHASES:
        return f"◍ {_PHASES[phase]}", "busy"
    if state == "failed":
        if signal:
            return f"{symbol} {signal}", style
        if exit_code is not None:
            return f"{symbol} exit {exit_code}", style
    return f"{symbol} {state}", style


def severity(of: str) -> Span:
    """The symbol of an alert and its style."""
    return _SEVERITIES.get(of, ("▲", "warn"))


def event_style(kind: str) -> str:
    """The style of an event's type."""
    return _EVENT_STYLES.get(kind, "dim")


def event_words(kind: str) -> str:
    """`group_restart` as `group restart`."""
    return kind.replace("_", " ")


def age_words(age_s: float, quiet_after_s: float = 3.0) -> str | None:
    """Says in words that the figures are old; None while they are fresh."""
    if age_s <= quiet_after_s:
        return None
    return (
        f"figures are {int(age_s)} s old"
        if age_s < 120
        else f"figures are {age_s / 60:.0f} min old"
    )


def guard_words(guarded: bool | None, live: bool) -> Line:
    """Whether something outlives a crash of the job's own processes."""
    if not live:
        return ()
    if guarded is None:
        return (("guardian on another host", "dim"),)
    if guarded:
        return (("guarded", "dim"),)
    return (("▲ unguarded: nothing restarts it", "warn"),)


GLOSSARY: tuple[tuple[str, str], ...] = (
    ("job", "one training that was launched, with all its attempts, logs and history"),
    ("rank", "one training process; rank 0 is the first of the world"),
    ("attempt", "one life of the worker group, counted from 0"),
    (
        "group restart",
        "all ranks end and start again together: DDP cannot go on with one rank replaced",
    ),
    ("restarts left", "how often the group may still restart before the job counts as failed"),
    ("quiet", "no step and no collective for longer than usual; no verdict yet"),
    (
        "evals",
        "or saves, compiles, ends, no batch (from its data loader): what a rank has been doing for "
        "a while instead of training steps; seen, never declared",
    ),
    ("set aside", "a broken GPU that the job goes on without (--allow-shrink)"),
    (
        "evidence",
        "stacks, logs, devices and flight records, kept before any signal is sent",
    ),
    ("hung", "no progress within the time learned for this phase, with proof that ranks differ"),
    ("lost", "the job's processes are gone without having said why (reboot, kill -9 of all)"),
    (
        "gone",
        "the processes of a job that ddptop did not start are gone; nobody saw how they ended",
    ),
    (
        "stuck",
        "seen from outside: the device reads full utilization at idle power, as a collective does "
        "that waits for another rank",
    ),
    (
        "blocked",
        "in uninterruptible sleep (D) at every look: waits for a disk, a mount or a driver",
    ),
    ("zombie", "has ended, and its parent has not asked how"),
    ("paused", "stopped by SIGSTOP or a debugger; SIGCONT lets it go on"),
    ("guarded", "the guardian lives: it brings the supervisor back if that dies"),
    ("vs median", "how far a rank's loss or step time is from the median of all ranks"),
    ("imbalance", "greatest rank or device against the median: 0 % is even"),
    (
        "uneven",
        "the job's worst imbalance, and of what: mem, util, watt or step; ▲ ▼ mark a rank's "
        "figure that lies far above or below its job's median",
    ),
    (
        "Σ4  μ4",
        "the loss is the sum, or the mean, of 4 backward passes: gradient accumulation, undone",
    ),
    (
        "launcher",
        "the process that a command (launch -- COMMAND) started; its ranks are found by their "
        "probes or in its tree, its CPU and RSS are of the whole tree",
    ),
    ("replicas", "devices that one process trains on (DataParallel): none has a loss of its own"),
    (
        "by",
        "who started the ranks: ddptop, torchrun, mp.spawn ..., ↳ one that ddptop launched; before "
        "it another user's name",
    ),
    ("cuda:1", "the name by which the rank's own process knows its device, which is not its index"),
    ("spare rows", "rows of device memory that replaced failing ones (remapped rows)"),
    ("slowed", "the driver holds the clocks down, and says why: heat, power, the board"),
    ("XID", "an error that the driver reported for a device, by number"),
    ("own cost", "CPU of this viewer and its sampler, and the sampler's questions to the driver"),
    ("read-only", "this viewer refuses to stop, kill, restart, launch or remove anything"),
    ("step", "optimizer steps in this attempt; 'global' where the script or a log said it"),
    ("stacks", "where each rank stands in its code right now, taken without stopping it"),
    ("n/a", "the machine does not say; never drawn as 0"),
)
"""Words of the interface, for the help screen."""
