"""The kinds of faults, as data: what to do, what should happen, and which rank should be named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ddptop_runner.model.words import OnNan

Place = Literal["script", "rank", "job", "disk", "device"]
"""Where a fault is committed. `script`: by the training script itself, at its next step; `rank`: a
signal to a rank's process; `job`: to what holds the job, from outside; `disk` and `device`: on a
small file system, or a stand-in driver, that is made for it."""


@dataclass(frozen=True)
class Fault:
    """One kind of fault."""

    name: str
    what: str
    """What is done, as text."""
    expected: str
    """What ddptop should do about it, as text."""
    place: Place
    script_word: str | None = None
    """Its name in the bundled training script; None if the script does not inject it."""
    restarts: bool = False
    """Whether the group restarts once. Otherwise, it continues in the same attempt."""
    event: str | None = None
    """The type of the event that must report it."""
    says: str = ""
    """A case-insensitive regular expression that the event's message must match."""
    names_rank: bool = False
    """Whether the event or its message must name the rank with the fault."""
    signal: str | None = None
    exit_code: int | None = None
    hold_s: float = 0.0
    """How long it lasts before it is undone."""
    hang_timeout_s: float | None = None
    """Options for launching the job; None for the usual ones."""
    on_nan: OnNan = "alert"
    allow_shrink: bool = False
    log_limit: str | None = None
    patience_s: float = 120.0
    """When everything expected should have happened."""

    def flags(self) -> list[str]:
        """The options that `launch` needs for it."""
        flags = []
        if self.hang_timeout_s is not None:
            flags += ["--hang-timeout", f"{self.hang_timeout_s:g}"]
        if self.on_nan != "alert":
            flags += ["--on-nan", self.on_nan]
        if self.allow_shrink:
            flags.append("--allow-shrink")
        if self.log_limit is not None:
            flags += ["--log-limit", self.log_limit]
        return flags


SHORT_HANG_S = 8.0
"""Long enough for any step here, and short enough to wait for."""

FAULTS = (
    Fault(
        name="kill",
        what="SIGKILL to one rank",
        expected="the group restarts once; the cause is that rank's SIGKILL",
        place="rank",
        restarts=True,
        event="failure",
        says="SIGKILL",
        names_rank=True,
        signal="SIGKILL",
    ),
    Fault(
        name="stop",
        what="SIGSTOP to one rank, then SIGCONT a few seconds later",
        expected="training continues; the rank is shown as paused, not hung",
        place="rank",
        hold_s=4.0,
        hang_timeout_s=3.0,
    ),
    Fault(
        name="hang-python",
        what="one rank sleeps forever in Python",
        expected="the group restarts once; the hang names that rank",
        place="script",
        script_word="hang-python",
        restarts=True,
        event="hang",
        names_rank=True,
        hang_timeout_s=SHORT_HANG_S,
    ),
    Fault(
        name="hang-collective",
        what="one rank skips a collective and waits forever in another",
        expected="the group restarts once; the hang names that rank, not the ranks waiting for it",
        place="script",
        script_word="hang-collective",
        restarts=True,
        event="hang",
        names_rank=True,
        hang_timeout_s=SHORT_HANG_S,
    ),
    Fault(
        name="raise",
        what="one rank raises an exception",
        expected="the group restarts once; the cause is that rank's exception and its location",
        place="script",
        script_word="raise",
        restarts=True,
        event="failure",
        says=r"RuntimeError: injected fault.*misbehave\.py",
        names_rank=True,
        exit_code=1,
    ),
    Fault(
        name="exit-0",
        what="one rank exits with status 0 before the others",
        expected="the group restarts once; the cause is that rank's early exit, not its effects",
        place="script",
        script_word="exit-0",
        restarts=True,
        event="failure",
        says="while the other",
        names_rank=True,
    ),
    Fault(
        name="exit-code",
        what="one rank exits with status 7",
        expected="the group restarts once; the cause is that rank's exit status",
        place="script",
        script_word="exit-7",
        restarts=True,
        event="failure",
        says=r"exited with status 7",
        names_rank=True,
        exit_code=7,
    ),
    Fault(
        name="oom",
        what="one rank runs out of device memory (CUDA's own exception)",
        expected="the group restarts once; the cause names the rank that ran out of memory",
        place="script",
        script_word="oom",
        restarts=True,
        event="failure",
        says="out of (GPU )?memory",
        names_rank=True,
    ),
    Fault(
        name="nan",
        what="the loss of one rank becomes NaN",
        expected="with --on-nan restart, the group restarts once; the cause names that rank",
        place="script",
        script_word="nan",
        restarts=True,
        event="failure",
        says="nan",
        names_rank=True,
        on_nan="restart",
    ),
    Fault(
        name="log-flood",
        what="one rank writes 100,000 lines at once, far more than its log limit allows",
        expected="the log is truncated to its limit; its last lines are complete",
        place="script",
        script_word="log-flood",
        log_limit="2M",
    ),
    Fault(
        name="disk-full",
        what="the run folder's file system is full for a few seconds",
        expected="training continues; the gap in the history is marked",
        place="disk",
        event="alert",
        says="full from",
        hold_s=6.0,
    ),
    Fault(
        name="supervisor-killed",
        what="SIGKILL to the supervisor",
        expected="training continues; the supervisor restarts, and no steps are lost",
        place="job",
        event="supervisor_restarted",
    ),
    Fault(
        name="guardian-killed",
        what="SIGKILL to the guardian",
        expected="training continues; the next ddptop command adopts the job",
        place="job",
    ),
    Fault(
        name="agent-killed",
        what="SIGKILL to torch's agent",
        expected="training continues; the next restart starts a new agent",
        place="job",
        event="alert",
        says="agent",
    ),
    Fault(
        name="tmux-killed",
        what="tmux kill-server while the job is running",
        expected="training continues",
        place="job",
    ),
    Fault(
        name="terminal-closed",
        what="a viewer's terminal closes, and all of the job's ddptop processes get SIGHUP",
        expected="training continues",
        place="job",
    ),
    Fault(
        name="gpu-lost",
        what="a simulated GPU falls off the bus, and its rank raises a CUDA error",
        expected="the GPU is identified and set aside; the job continues with one fewer rank",
        place="device",
        script_word="gpu",
        restarts=True,
        event="failure",
        says="(GPU|CUDA)",
        names_rank=True,
        allow_shrink=True,
    ),
    Fault(
        name="corrupt-files",
        what="history.db and the node snapshot are overwritten with garbage",
        expected="training continues; both are recreated, and the damaged history is set aside",
        place="job",
        event="alert",
        says="history.*set aside",
    ),
)

BY_NAME = {fault.name: fault for fault in FAULTS}
