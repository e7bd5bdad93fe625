"""What happens to a job, as data: one frozen type per kind of event.

The sentence that a person reads is rendered from these by `job.event_text`; the state of a job is
folded from them by `job.transition`. A new kind is a type here, its sentence there, and its effect
on the state, if it has one.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from ddptop_runner.base.clock import is_time
from ddptop_runner.model.diagnose import AttemptOutcome
from ddptop_runner.model.snapshot import SILENT, Alert, Cause, Checkpoint, Event, Resume
from ddptop_runner.model.spec import Device
from ddptop_runner.model.words import HERE

EndState = Literal["finished", "failed", "stopped"]
CANCELLED_BY = "scancel"
"""Who stops a job that was cancelled in Slurm."""
Trouble = Literal["hang", "nan"]
"""For what an attempt whose ranks are alive is ended: no progress, or a loss that is not finite."""


class EventBase(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """What all events have. msgspec inherits the tag field, and no other option."""

    TYPE: ClassVar[str] = "alert"
    """The `type` under which `events --json` lists it; several kinds may share one."""
    ONCE: ClassVar[bool] = False
    """Whether it happens at most once per attempt, to one rank and process if it names them."""

    attempt: int | None = None

    @property
    def type(self) -> str:
        """Its type in the JSON contract."""
        return self.TYPE


# -- the job and its attempts ----------------------------------------------------------------------


class Launched(EventBase, frozen=True, kw_only=True, tag="launched"):
    """Someone launched or relaunched the job."""

    TYPE = "launched"
    target: str
    """Name of the script, or the command on one line."""
    nproc: int | None = None
    """None for a command, which decides that itself."""
    devices: list[Device] = []
    at_s: float | None = None
    """CLOCK_BOOTTIME."""


class Queued(EventBase, frozen=True, kw_only=True, tag="queued"):
    """The job waits for devices."""

    waits_for: str | None = None
    """What they are, and who has them; None as it enters the queue."""

    @property
    def type(self) -> str:
        """The entry alone is no event for a person."""
        return SILENT if self.waits_for is None else "queued"


class AttemptStarted(EventBase, frozen=True, kw_only=True, tag="attempt_started"):
    """The ranks of an attempt, or its command, were started."""

    TYPE = "attempt_started"
    ONCE = True
    world: int = 0
    """Processes that the agent started."""
    launcher_pid: int | None = None
    """Of the command; None for a job whose ranks ddptop starts."""
    probed: bool = True
    """Whether its ranks report steps; otherwise it counts as running from now on."""
    at_s: float | None = None
    """CLOCK_BOOTTIME."""
    first_rank: int = 0
    """On one of several nodes, its first."""


class AttemptOpened(EventBase, frozen=True, kw_only=True, tag="attempt_opened"):
    """The next attempt has its number: the one before it started no rank."""

    TYPE = SILENT
    at_s: float | None = None


class RunningAssumed(EventBase, frozen=True, kw_only=True, tag="running_assumed"):
    """The attempt has lived for long enough to count as running without a step."""

    TYPE = SILENT


class RankStarted(EventBase, frozen=True, kw_only=True, tag="rank_started"):
    """A rank's process started, or was discovered."""

    TYPE = "rank_started"
    ONCE = True
    rank: int
    pid: int | None
    node: str = HERE


class TrainingStarted(EventBase, frozen=True, kw_only=True, tag="training"):
    """The first optimizer step of an attempt."""

    TYPE = "training"
    ONCE = True
    after_s: float


class Resumed(EventBase, frozen=True, kw_only=True, tag="resumed"):
    """A later attempt trains; it is known what came back."""

    TYPE = "resumed"
    resume: Resume


class CheckpointRequested(EventBase, frozen=True, kw_only=True, tag="checkpoint_requested"):
    """Someone asked the script to save."""

    TYPE = "checkpoint_asked"
    signals: dict[str, list[int]] = {}
    """Ranks by the name of the signal that they got."""
    flag_file: bool = False


class CheckpointSaved(EventBase, frozen=True, kw_only=True, tag="checkpoint"):
    """A checkpoint is complete."""

    TYPE = "checkpoint"
    checkpoint: Checkpoint
    ranks: int = 1
    """Number of ranks that wrote it."""
    more_before: int = 0
    """Checkpoints since the last such event, which have none of their own."""


# -- ends and failures -----------------------------------------------------------------------------


class RankExited(EventBase, frozen=True, kw_only=True, tag="rank_exited"):
    """A rank's process ended, or the command that started the ranks."""

    ONCE = True
    rank: int | None = None
    """None for the command."""
    pid: int | None
    status: int | None
    """As in subprocess, negative for a signal; None if it could not be collected."""
    at_s: float | None = None
    """CLOCK_BOOTTIME."""
    by_us: bool = False
    """Whether ddptop or torch's agent had begun to end it."""
    node: str = HERE

    @property
    def type(self) -> str:
        """The end of a command has its own type."""
        return "launcher_exited" if self.rank is None else "rank_exited"


class HangSuspected(EventBase, frozen=True, kw_only=True, tag="hang_suspected"):
    """No progress for most of the time allowed."""

    TYPE = "hang_suspected"
    found: str
    """What stands still, and who is behind by which sign."""
    reason: str | None = None
    """Of the pause, as shown."""
    ranks: list[int] = []


class TroubleFound(EventBase, frozen=True, kw_only=True, tag="trouble_found"):
    """The attempt hangs or its loss went bad: evidence is taken, and then it is judged."""

    TYPE = SILENT
    ranks: list[int] = []
    stops: bool = False
    """Whether the job ends for it, whatever the evidence says."""
    reason: Trouble = "hang"


class TroubleDropped(EventBase, frozen=True, kw_only=True, tag="trouble_dropped"):
    """The supervisor died before it had judged; the next one starts watching again."""

    TYPE = SILENT


class RanksEnding(EventBase, frozen=True, kw_only=True, tag="ranks_ending"):
    """ddptop or torch's agent ends the ranks: an exit from now on is no failure."""

    TYPE = SILENT
    at_s: float
    """CLOCK_BOOTTIME."""
    failed: list[int] = []
    """Ranks that the agent had found dead before."""
    node: str | None = None
    """None: on all nodes."""


class FailureJudged(EventBase, frozen=True, kw_only=True, tag="failure"):
    """Why an attempt failed."""

    TYPE = "failure"
    ONCE = True
    cause: Cause
    outcome: AttemptOutcome | None = None
    """What it had achieved, for the restart policy; None where it does not count as a failure."""


class HangJudged(EventBase, frozen=True, kw_only=True, tag="hang"):
    """An attempt hangs, and why."""

    TYPE = "hang"
    ONCE = True
    cause: Cause
    outcome: AttemptOutcome | None = None


class RestartDecided(EventBase, frozen=True, kw_only=True, tag="restart_decided"):
    """The next attempt follows after a failure, at the cost of the budget."""

    TYPE = "group_restart"
    ONCE = True
    used: int
    """Of the budget, this restart included."""
    limit: int
    delay_s: float = 0.0
    at_s: float | None = None
    """CLOCK_BOOTTIME of the next attempt."""
    reason: str | None = None


class NodesChosen(EventBase, frozen=True, kw_only=True, tag="nodes_chosen"):
    """Which nodes take part in the next attempt, which begins once they have met."""

    TYPE = SILENT
    nodes: list[str]
    at_s: float


class NodeFailed(EventBase, frozen=True, kw_only=True, tag="node_failed"):
    """The ranks of a node ended badly; whether the cause is among them is judged over all nodes."""

    TYPE = SILENT
    node: str
    cause: Cause | None = None
    outcome: AttemptOutcome | None = None


class NodeEnded(EventBase, frozen=True, kw_only=True, tag="node_ended"):
    """A node's part of the job is over."""

    TYPE = SILENT
    node: str
    well: bool
    """Whether all of its ranks exited with 0."""


class NodeUnreachable(EventBase, frozen=True, kw_only=True, tag="node_unreachable"):
    """The link to a node is broken. What happens there is unknown, and nothing is done for it."""

    TYPE = "node"
    node: str
    why: str
    at_s: float | None = None
    """CLOCK_BOOTTIME of the head."""


class NodeReachable(EventBase, frozen=True, kw_only=True, tag="node_reachable"):
    """A node can be reached again."""

    TYPE = "node"
    node: str


class NodesAwaited(EventBase, frozen=True, kw_only=True, tag="nodes_awaited"):
    """The next attempt waits for nodes that cannot be reached."""

    TYPE = "node"
    nodes: list[str]
    seconds: float
    """For how long at most."""


class NodeLost(EventBase, frozen=True, kw_only=True, tag="node_lost"):
    """A node is given up: the next attempt does without it."""

    TYPE = "node"
    node: str
    why: str
    refused: bool = False
    """It can be reached, and could not begin: only a person's restart takes it back."""


class RestartRequested(EventBase, frozen=True, kw_only=True, tag="restart_requested"):
    """Someone restarts all ranks; it costs nothing."""

    TYPE = "group_restart"
    at_s: float | None = None
    """CLOCK_BOOTTIME; only if a pending attempt starts now, whose cost is given back."""
    used: int
    limit: int | None = None
    node: str | None = None
    """That came back and is the reason."""
    without: str | None = None
    """A node that could not begin and is the reason. A person asked where there is neither."""
    devices_back: list[Device] = []
    """Set aside before, and fit again."""


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """A device that attempts continue without."""

    device: Device
    reason: str


class WantedAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that was requested and has not reported yet."""

    attempt: int
    replaces: int | None = None
    """Pid of the agent that makes room for it; None without one."""
    connected: bool = False
    """Whether it has reported but not started a rank yet."""


class RestartPrepared(EventBase, frozen=True, kw_only=True, tag="restart_prepared"):
    """The devices of the next attempt are chosen."""

    TYPE = SILENT
    aside: list[SetAside] = []
    """Found unfit just now."""
    sent: bool = False
    """Whether the agent was ordered to end its ranks and start the next attempt."""
    wanted: WantedAgent | None = None
    """If it needs a new agent."""
    node: str = HERE


class AgentConnected(EventBase, frozen=True, kw_only=True, tag="agent_connected"):
    """An agent reported for the first time."""

    TYPE = SILENT
    pid: int
    node: str = HERE


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The job's end, once its ranks have exited."""

    state: EndState
    cause: Cause | None = None
    reason: str | None = None
    requeue: bool | None = None


class EndDecided(EventBase, frozen=True, kw_only=True, tag="end_decided"):
    """The job ends once its ranks have."""

    TYPE = SILENT
    ending: Ending


class StopRequested(EventBase, frozen=True, kw_only=True, tag="stop_requested"):
    """Someone stops or kills the job."""

    TYPE = "stopping"
    grace_s: float | None = None
    kill_at_s: float | None = None
    """CLOCK_BOOTTIME of SIGKILL."""
    by: str | None = None
    """The user who asked."""


class JobEnded(EventBase, frozen=True, kw_only=True, tag="ended"):
    """The job is over, for good."""

    ONCE = True
    state: EndState
    in_queue: bool = False
    """Whether it ended before its first attempt."""
    is_command: bool = False
    cause: Cause | None = None
    reason: str | None = None
    requeue: bool | None = None

    @property
    def type(self) -> str:
        """The state that it ends in."""
        return self.state


class JobLost(EventBase, frozen=True, kw_only=True, tag="lost"):
    """All processes of a live job were gone when the next one of its supervisors came."""

    TYPE = "lost"
    rebooted: bool = False
    requeued: bool = False
    """Whether Slurm ended them to start the job again."""
    last_seen: dt.datetime | None = None

    @property
    def type(self) -> str:
        """Its type in the JSON contract."""
        return "requeued" if self.requeued else self.TYPE


# -- ddptop's own processes ------------------------------------------------------------------------


class AgentLost(EventBase, frozen=True, kw_only=True, tag="agent_lost"):
    """The agent died, and its ranks continue."""

    ONCE = True
    status: int | None
    ranks: int = 0
    is_command: bool = False
    node: str = HERE


class SupervisorRestarted(EventBase, frozen=True, kw_only=True, tag="supervisor_restarted"):
    """A supervisor took the place of one that died."""

    TYPE = "supervisor_restarted"
    damage: str | None = None
    """What was wrong with its predecessor's snapshot."""


class GuardianRestarted(EventBase, frozen=True, kw_only=True, tag="guardian_restarted"):
    """A guardian took the place of one that died."""

    TYPE = "guardian_restarted"
    damage: str | None = None


# -- what deserves attention -----------------------------------------------------------------------


class AlertRaised(EventBase, frozen=True, kw_only=True, tag="alert_raised"):
    """A problem began; `AlertsCleared` tells its end."""

    alert: Alert
    lasts_s: float | None = None
    """For how long it is shown; None: until `AlertsCleared`."""

    @property
    def type(self) -> str:
        """A lost device has its own type."""
        return "gpu_lost" if self.alert.id == "gpu-lost" else "alert"


class AlertsCleared(EventBase, frozen=True, kw_only=True, tag="alerts_cleared"):
    """Problems ended."""

    TYPE = "alert_over"
    messages: dict[str, str] = {}
    """By id of the alert."""
    with_job: bool = False
    """They were still there as the job ended."""


class GpuMemoryAwaited(EventBase, frozen=True, kw_only=True, tag="gpu_memory_awaited"):
    """The next attempt waited for its devices' memory."""

    seconds: float
    found: str
    is_problem: bool = False
    node: str = HERE

    @property
    def type(self) -> str:
        """An alert where the next attempt starts without the memory."""
        return "alert" if self.is_problem else "gpu_memory"


class Noticed(EventBase, frozen=True, kw_only=True, tag="noticed"):
    """Something else that a person should know, once: of logs, the disk, the next devices.

    Also of ddptop itself: sockets, a damaged snapshot, processes that SIGKILL does not end, a bug.
    """

    text: str


class Untyped(EventBase, frozen=True, kw_only=True, tag="untyped"):
    """An event of another version of ddptop, of which only the words are known. Never emitted."""

    text: str


JobEvent: TypeAlias = (
    AttemptOpened
    | RunningAssumed
    | TroubleFound
    | TroubleDropped
    | RanksEnding
    | RestartPrepared
    | AgentConnected
    | EndDecided
    | Launched
    | Queued
    | AttemptStarted
    | RankStarted
    | TrainingStarted
    | Resumed
    | CheckpointRequested
    | CheckpointSaved
    | RankExited
    | HangSuspected
    | FailureJudged
    | HangJudged
    | RestartDecided
    | NodesChosen
    | NodeFailed
    | NodeEnded
    | NodeUnreachable
    | NodeReachable
    | NodesAwaited
    | NodeLost
    | RestartRequested
    | StopRequested
    | JobEnded
    | JobLost
    | AgentLost
    | SupervisorRestarted
    | GuardianRestarted
    | AlertRaised
    | AlertsCleared
    | GpuMemoryAwaited
    | Noticed
    | Untyped
)


LONGEST_S = 1e8
"""A time from now that an event may name, in seconds: one can still reckon with its end."""


def to_data(event: JobEvent) -> dict[str, Any]:
    """The event as plain values, as the history keeps it."""
    plain: dict[str, Any] = msgspec.to_builtins(event, str_keys=True)
    return plain


class _Kept(msgspec.Struct):
    """For `msgspec.convert`, which rebuilds a plain union each time and takes 50 times as long."""

    event: JobEvent


def from_data(data: dict[str, Any] | None) -> JobEvent | None:
    """The event of these values; None where they are of no kind that this version knows."""
    if data is None:
        return None
    try:
        event = msgspec.convert({"event": data}, _Kept, str_keys=True).event
    except (msgspec.ValidationError, RecursionError):
        return None
    lasts_s = getattr(event, "delay_s", None) or getattr(event, "lasts_s", None) or 0.0
    can_be = all(map(is_time, _times(event))) and 0.0 <= lasts_s <= LONGEST_S
    return event if can_be else None


def of_row(row: Event) -> JobEvent:
    """The event of a history's row; `Untyped` if this version knows no such kind."""
    return from_data(row.data) or Untyped(attempt=row.attempt, text=row.message)


def cause_in(row: Event) -> Cause | None:
    """The cause that a row records."""
    event = of_row(row)
    return event.cause if isinstance(event, FailureJudged | HangJudged | JobEnded) else None


def _times(event: JobEvent) -> list[dt.datetime | None]:
    if isinstance(event, CheckpointSaved):
        return [event.checkpoint.at]
    if isinstance(event, AlertRaised):
        return [event.alert.since]
    return [event.last_seen] if isinstance(event, JobLost) else []
