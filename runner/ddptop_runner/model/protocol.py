"""All messages between the processes of a job, and between those and viewers.

Facts go up, orders come down. `job.decide` turns a fact into events and orders; `node.driver`
carries orders out, and reports the result as a fact.

Each message is one JSON line, or one packet of the guardian's channel: `encode`
writes it, and `decode` reads one of the messages that may come over a connection.

- Control socket: a client sends one `SupervisorRequest` and gets one `Reply`; `Follow` gets
  reports. The agent sends `AgentHello`, then `FromAgent`, and gets `ToAgent`. It has only the
  standard library, so it writes the same JSON by hand.
- Guardian's channel: `GuardianHello`, then `ToSupervisor`; back, `ToGuardian`.
- Link to another machine, over the stdio of `ddptop-node`, which `ssh`, `srun`, or a pipe runs
  there: `ToNode` and `Report`. The command holds nothing: it starts the node's part of the job,
  forwards what that publishes, and carries requests to it. So it may end at any time, and another
  one continues after the last event that the head has.
"""

from __future__ import annotations

import datetime as dt
import functools
import random
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from ddptop_runner.base import bounded
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import ControlError, DdptopError, RefusalCode
from ddptop_runner.base.units import name_ranks
from ddptop_runner.model.diagnose import AttemptOutcome
from ddptop_runner.model.events import GpuMemoryAwaited, JobEvent, SetAside, Trouble
from ddptop_runner.model.snapshot import Cause, Event, NodeSnapshot, RankStacks
from ddptop_runner.model.spec import Device, JobSpec, Rendezvous
from ddptop_runner.model.words import HERE

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=10**9)]
"""Of a rank, an attempt, or a process, as another process sends it."""
Status: TypeAlias = Annotated[int, msgspec.Meta(gt=-(10**9), lt=10**9)]
"""As in subprocess, negative for a signal."""
EvidenceReason: TypeAlias = Literal["failure", "hang", "nan"]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Of any kind. Each type repeats the options: msgspec inherits the tag field alone."""


class OfNode(Message, frozen=True, kw_only=True):
    """A fact about one node, or an order to it."""

    node: str = HERE


# -- facts: agent and ranks ------------------------------------------------------------------------


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A process that the agent started."""

    rank: Number | None
    """None for a command that starts the ranks itself."""
    pid: Number
    local_rank: Number = 0
    returncode: Status | None = None
    """As in subprocess, if it has exited."""


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """The agent, as the node sees it."""

    pid: Number | None = None
    """None where it has exited, or was not started."""
    listens: bool = False
    """Whether it is connected."""
    attempt: Number | None = None
    """The attempt that it runs or is about to begin; None if unknown."""
    question: Number | None = None
    """Its open question whether another attempt follows."""
    status: Status | None = None
    """How it exited."""
    cause: Cause | None = None
    """Why, if it exited before it had started a rank."""


class Exited(Message, frozen=True, kw_only=True, tag="exited"):
    """The guardian collected the exit of a process."""

    pid: Number
    """0 for an agent that could not be started."""
    returncode: Status
    at_boottime_s: float


class RankEnded(Exited, frozen=True, kw_only=True, tag="rank_exited"):
    """The agent collected the exit of a process that it had started."""

    attempt: Number


class AgentHello(Message, frozen=True, kw_only=True, tag="agent_hello"):
    """The first message of a connection: all that the agent knows."""

    pid: Number
    attempt: Number
    workers: list[Worker]
    exits: list[RankEnded]


class AgentListens(OfNode, frozen=True, kw_only=True, tag="agent_listens"):
    """The agent has reported all that it knows, at its start or to a new supervisor."""

    pid: Number


class PlainStart(Message, frozen=True, kw_only=True, tag="plain_start"):
    """The agent starts ranks as usual, though it should have forked them."""

    why: str


class GroupStarted(OfNode, frozen=True, kw_only=True, tag="group_started"):
    """The agent started the ranks of an attempt, or its command."""

    attempt: Number
    workers: list[Worker]


class ProcessExited(OfNode, frozen=True, kw_only=True, tag="process_exited"):
    """A rank exited, or the command that starts the ranks."""

    attempt: Number
    rank: Number | None
    """None for the command."""
    pid: Number | None
    status: Status | None
    """As in subprocess; None if it could not be collected."""
    at_s: float
    """CLOCK_BOOTTIME."""


class OrphanExited(OfNode, frozen=True, kw_only=True, tag="orphan_exited"):
    """A rank exited whose agent is gone, so nothing else ends the group."""


class AgentExited(OfNode, frozen=True, kw_only=True, tag="agent_exited"):
    """The agent exited, and every exit that it could report is known."""

    pid: Number | None
    agent: AgentState
    """Since then, without a pid."""


class AgentAsked(OfNode, frozen=True, kw_only=True, tag="agent_asked"):
    """The agent waits for an answer before it takes a step that cannot be undone."""

    question: Number
    kind: Literal["failing", "torn_down", "group_stopped", "ended"]
    attempt: Number | None = None
    ranks: list[Number] = []
    """Those that it found dead."""
    workers: list[Worker] = []
    """If the group is torn down: how its processes ended."""


FromAgent: TypeAlias = GroupStarted | PlainStart | RankEnded | AgentAsked
"""What the agent reports after its hello."""


# -- facts: results of orders ----------------------------------------------------------------------


class EvidenceKept(OfNode, frozen=True, kw_only=True, tag="evidence_kept"):
    """The evidence of a failure is on disk, or cannot be kept."""

    attempt: Number
    question: Number | None
    ranks: list[Number] = []


class LeftoversEnded(OfNode, frozen=True, kw_only=True, tag="leftovers_ended"):
    """What ranks had started is gone, and so is their memory on the devices."""

    question: Number | None = None
    with_agent: bool = False
    memory: GpuMemoryAwaited | None = None
    """What a person should know of the wait for memory, if anything."""


class AttemptJudged(Message, frozen=True, kw_only=True, tag="attempt_judged"):
    """Why an attempt failed, from its exits, logs, and evidence."""

    attempt: Number
    trouble: Trouble | None = None
    """As in `JudgeAttempt`."""
    cause: Cause | None
    """None where ddptop itself failed to find out."""
    outcome: AttemptOutcome | None
    jitter: float = msgspec.field(default_factory=random.random)
    """Random, from 0 to 1: spreads the waits before a restart."""


class TroubleFound(Message, frozen=True, kw_only=True, tag="trouble_found"):
    """Ranks that are alive hang, or their loss is not finite."""

    reason: Trouble
    ranks: list[Number] = []


class RestartDue(Message, frozen=True, kw_only=True, tag="restart_due"):
    """The next attempt is due, or nothing waits for it anymore."""

    attempt: Number


class DevicesChosen(OfNode, frozen=True, kw_only=True, tag="devices_chosen"):
    """On which devices the next attempt can run."""

    agent: AgentState
    aside: list[SetAside] = []
    """Unfit devices that it runs without."""
    refused: str | None = None
    """Why there can be no next attempt."""
    notes: list[str] = []


class NothingLeft(Message, frozen=True, kw_only=True, tag="nothing_left"):
    """No process of the job is left but guardian and supervisor."""


# -- facts: people and supervisors -----------------------------------------------------------------


class StopAsked(Message, frozen=True, kw_only=True, tag="stop_asked"):
    """Someone stops the job."""

    grace_s: Seconds = 30.0
    """Between SIGTERM and SIGKILL; 0 kills at once."""
    by: str | None = None
    """The user who asked."""


class RestartAsked(Message, frozen=True, kw_only=True, tag="restart_asked"):
    """Someone restarts the job, which costs nothing."""

    agent: AgentState
    devices_back: list[Device] = []
    """Set aside before, and fit again."""


class SupervisorStarted(Message, frozen=True, kw_only=True, tag="supervisor_started"):
    """A supervisor took the place of one that died; every exit since is known."""

    agent: AgentState
    agent_end_seen: bool = False
    """Whether the agent's exit is being followed already."""


# -- facts: the nodes of a job on several, as their head sees them ---------------------------------


class NodeNoticed(OfNode, frozen=True, kw_only=True, tag="node_noticed"):
    """A node recorded what its ranks did, or a problem; its times are the head's by now."""

    event: JobEvent


class LinkBroken(OfNode, frozen=True, kw_only=True, tag="link_broken"):
    """A node cannot be reached."""

    why: str


class LinkMade(OfNode, frozen=True, kw_only=True, tag="link_made"):
    """A node can be reached, and has reported all that happened meanwhile."""

    is_there: bool = True
    """Whether processes of the job are on it."""
    agent: AgentState = AgentState()
    after_seq: Number = 0
    """Of the last event that it has taken over from the head."""


class NodeRefused(OfNode, frozen=True, kw_only=True, tag="node_refused"):
    """A node could not begin an attempt."""

    attempt: Number
    error: str
    answered: bool = False
    """Whether the node itself said so."""


class NodesDue(Message, frozen=True, kw_only=True, tag="nodes_due"):
    """Nodes that cannot be reached were waited for long enough, or something has changed."""

    attempt: Number


class CheckpointWaited(Message, frozen=True, kw_only=True, tag="checkpoint_waited"):
    """The ranks have saved, or nothing more is waited for."""

    attempt: Number


Fact: TypeAlias = (
    AgentListens
    | GroupStarted
    | ProcessExited
    | OrphanExited
    | AgentExited
    | AgentAsked
    | EvidenceKept
    | LeftoversEnded
    | AttemptJudged
    | TroubleFound
    | RestartDue
    | DevicesChosen
    | NothingLeft
    | StopAsked
    | RestartAsked
    | SupervisorStarted
    | NodeNoticed
    | LinkBroken
    | LinkMade
    | NodeRefused
    | NodesDue
    | CheckpointWaited
)


# -- orders ----------------------------------------------------------------------------------------


class AnswerAgent(OfNode, frozen=True, kw_only=True, tag="answer_agent"):
    """Answer the agent's question."""

    question: Number
    restart: bool | None = None
    """Whether another attempt follows; None where that is not asked."""
    rendezvous: Rendezvous | None = None
    """Of the attempt that begins with this answer, on several nodes."""
    memory_snapshot: bool = False
    """Whether the ranks of that attempt record what allocates GPU memory."""


class TellAgent(OfNode, frozen=True, kw_only=True, tag="tell_agent"):
    """Tell the agent to restart the group, or that the ranks are being ended."""

    order: Literal["restart_group", "stopping"]


ToAgent: TypeAlias = AnswerAgent | TellAgent


class KeepEvidence(OfNode, frozen=True, kw_only=True, tag="keep_evidence"):
    """Keep the evidence of a failure, before any signal. Leads to `EvidenceKept`."""

    question: Number | None = None
    ranks: list[Number] = []


class InterruptRanks(OfNode, frozen=True, kw_only=True, tag="interrupt_ranks"):
    """Send SIGINT to ranks that catch the agent's SIGTERM and continue."""


class EndLeftovers(OfNode, frozen=True, kw_only=True, tag="end_leftovers"):
    """End what ranks had started. Leads to `LeftoversEnded`."""

    question: Number | None = None
    grace_s: float | None = None
    """Between SIGTERM and SIGKILL for the group itself; None: it has had its time."""
    with_agent: bool = False
    """Whether to end the agent and its store, too, as another agent replaces it."""
    await_memory: bool = False
    """Whether the next attempt needs the memory of this one on the devices."""


class JudgeAttempt(Message, frozen=True, kw_only=True, tag="judge_attempt"):
    """Find out why the attempt failed. Leads to `AttemptJudged`.

    On several nodes, evidence is kept where ranks are alive, and failing nodes are waited for.
    """

    trouble: Trouble | None = None
    """A hang or a bad loss, whose evidence is to be kept, as its ranks are alive."""


class WaitForRestart(Message, frozen=True, kw_only=True, tag="wait_for_restart"):
    """Wait until the next attempt may begin. Leads to `RestartDue`."""

    at_s: float | None
    """CLOCK_BOOTTIME; None: now."""


class SkipWait(Message, frozen=True, kw_only=True, tag="skip_wait"):
    """Stop waiting for the next attempt."""


class ChooseDevices(OfNode, frozen=True, kw_only=True, tag="choose_devices"):
    """Find out which devices are fit. Leads to `DevicesChosen`."""


class StartAgent(OfNode, frozen=True, kw_only=True, tag="start_agent"):
    """Start an agent for an attempt."""

    attempt: Number
    rendezvous: Rendezvous | None = None
    """Of the attempt, on several nodes."""


class EndRanks(Message, frozen=True, kw_only=True, tag="end_ranks"):
    """End all ranks, then the agent and whatever is left. Leads to `NothingLeft`."""

    grace_s: float


class Conclude(Message, frozen=True, kw_only=True, tag="conclude"):
    """End whatever is left of the job. Leads to `NothingLeft`."""


class BeginOn(OfNode, frozen=True, kw_only=True, tag="begin_on"):
    """Start what supervises an attempt on a node, or choose the node's devices if that runs.

    The latter leads to `DevicesChosen`.
    """

    attempt: Number
    rendezvous: Rendezvous


class AwaitNodes(Message, frozen=True, kw_only=True, tag="await_nodes"):
    """Wait for nodes that cannot be reached. Leads to `NodesDue`."""

    seconds: float


class AskCheckpoint(Message, frozen=True, kw_only=True, tag="ask_checkpoint"):
    """Have the ranks save, so that ending them loses no steps. Leads to `CheckpointWaited`."""


class EndOn(OfNode, frozen=True, kw_only=True, tag="end_on"):
    """End what a node still runs of a job that is ending."""

    grace_s: float
    """Between SIGTERM and SIGKILL."""


Order: TypeAlias = (
    AnswerAgent
    | TellAgent
    | KeepEvidence
    | InterruptRanks
    | EndLeftovers
    | JudgeAttempt
    | WaitForRestart
    | SkipWait
    | ChooseDevices
    | StartAgent
    | EndRanks
    | Conclude
    | BeginOn
    | AwaitNodes
    | AskCheckpoint
    | EndOn
)


# -- requests, and replies to them -----------------------------------------------------------------


class Ping(Message, frozen=True, kw_only=True, tag="ping"):
    """Reply `Done`."""


class Restart(Message, frozen=True, kw_only=True, tag="restart"):
    """Restart all ranks."""


class GetStacks(Message, frozen=True, kw_only=True, tag="stacks"):
    """Reply `Stacks`: of all ranks, or of one."""

    rank: Number | None = None


class SaveEvidence(Message, frozen=True, kw_only=True, tag="evidence"):
    """Save the evidence of the node's living ranks."""

    reason: EvidenceReason = "failure"


class Carry(Message, frozen=True, kw_only=True, tag="carry"):
    """What a node takes over from its head: events of the job, and orders to carry out."""

    events: list[JobEvent] = []
    orders: list[Order] = []
    seq: Number
    """Of the head's last event before the orders."""


class JudgeRanks(Message, frozen=True, kw_only=True, tag="judge_ranks"):
    """Find out how the node's ranks ended. Reply `RanksJudged`."""

    attempt: Number


class AttemptBegan(Message, frozen=True, kw_only=True, tag="began"):
    """At which step of the run an attempt began, as another node found out."""

    attempt: Number
    step: Number


class RequestCheckpoint(Message, frozen=True, kw_only=True, tag="checkpoint"):
    """Ask the script to save now. Reply `SaveAsked`."""


class MoveInQueue(Message, frozen=True, kw_only=True, tag="move_in_queue"):
    """Change the place of a job that waits. Reply `Done`."""

    place: dt.datetime
    """As in `Waiting`."""


class FetchLogs(Message, frozen=True, kw_only=True, tag="fetch_log"):
    """Fetch logs from other nodes, and follow them for a while. Reply `SilentHosts`."""

    attempt: Number
    ranks: list[Number] | None = None
    """None: all."""


class FetchEvidence(Message, frozen=True, kw_only=True, tag="fetch_evidence"):
    """Fetch the nodes' evidence of that name. Reply `SilentHosts`."""

    name: str


class Follow(Message, frozen=True, kw_only=True, tag="follow"):
    """Send events after this one, and snapshots, from now on."""

    job_id: str = ""
    """Of the node's part; not needed at its own control socket."""
    after_seq: Number = 0


SupervisorRequest: TypeAlias = (
    Ping
    | StopAsked
    | Restart
    | GetStacks
    | SaveEvidence
    | Carry
    | JudgeRanks
    | AttemptBegan
    | RequestCheckpoint
    | MoveInQueue
    | FetchLogs
    | FetchEvidence
)


class Start(Message, frozen=True, kw_only=True, tag="start"):
    """Start the node's part of the job, unless it is running."""

    spec: JobSpec
    """The node's own, with `membership`; its `job_id` is the job's."""
    env: dict[str, str]
    """Variables that the job gets besides those of the node."""
    attempt: Number
    rendezvous: Rendezvous


class Forget(Message, frozen=True, kw_only=True, tag="forget"):
    """Delete the run folder of a node's part of a job."""

    job_id: str


class Preflight(Message, frozen=True, kw_only=True, tag="preflight"):
    """Reply `Found` to a `launch.preflight.Question`."""

    question: dict[str, Any]


class GetEnvironment(Message, frozen=True, kw_only=True, tag="environment"):
    """Reply `Found`: the launching shell's variables in the node's processes."""


class ReadFiles(Message, frozen=True, kw_only=True, tag="read_file"):
    """Reply `Pieces`: new data in the logs or the evidence of an attempt."""

    where: str
    """`logs/attempt-N` or `evidence/attempt-N-REASON`."""
    names: list[str] | None = None
    """None means all files there."""
    known: dict[str, tuple[int, int]] = {}
    """By name, the known range of a file."""
    tail_bytes: int | None = None
    """How much of an unknown file to fetch; None means as much as one answer holds."""
    whole: bool = False
    """Whether to also fetch the part before the known range, once the end is known."""


NodeRequest: TypeAlias = SupervisorRequest | Start | Forget | Preflight | GetEnvironment | ReadFiles


class Done(Message, frozen=True, kw_only=True, tag="done"):
    """It was done."""


class Refused(Message, frozen=True, kw_only=True, tag="refused"):
    """It was not done."""

    error: str
    hint: str | None = None
    code: RefusalCode | None = None


class Stacks(Message, frozen=True, kw_only=True, tag="stacks"):
    """Where the ranks stand."""

    stacks: list[RankStacks]


class SaveAsked(Message, frozen=True, tag="save_asked"):
    """How the ranks were asked to save."""

    signalled: dict[int, str]
    """Name of the signal sent, by rank."""
    flag_file: str
    """Path of the file created for scripts that check for it (DDPTOP_CHECKPOINT_FILE)."""
    flag_stamp: int | None = None
    """Its change time in nanoseconds, for `is_taken`; None if it could not be created."""
    at: dt.datetime = msgspec.field(default_factory=utc_now)
    """The time of the request; a checkpoint that begins later fulfills it."""
    refused: dict[int, str] = {}
    """By rank, why it got no signal even though its script handles one."""

    def by_signal(self) -> dict[str, list[int]]:
        """Ranks by the name of the signal sent to them."""
        by_name: dict[str, list[int]] = {}
        for rank, name in self.signalled.items():
            by_name.setdefault(name, []).append(rank)
        return by_name

    def in_words(self) -> str:
        """How the script was asked: `sending SIGUSR1 to rank 0 and creating the flag file`."""
        return ways_to_ask(self.by_signal(), flag_file=self.flag_stamp is not None)


def ways_to_ask(signals: Mapping[str, list[int]], *, flag_file: bool) -> str:
    """How a script was asked to save: by signals to ranks, and by a file."""
    ways = [f"sending {name} to {name_ranks(ranks)}" for name, ranks in signals.items()]
    return " and ".join([*ways, *(["creating the flag file"] if flag_file else [])])


class RanksJudged(Message, frozen=True, kw_only=True, tag="ranks_judged"):
    """How a node's ranks ended, and why, as far as the node can tell."""

    ends: list[dict[str, Any]] = []
    """`judge.causes.culprit.RankEnd` of each rank, as plain data."""
    cause: Cause
    outcome: AttemptOutcome


class SilentHosts(Message, frozen=True, kw_only=True, tag="silent_hosts"):
    """Hosts that did not answer when files were fetched, and why."""

    why: dict[str, str]


class Found(Message, frozen=True, kw_only=True, tag="found"):
    """What `launch.preflight` found out, or variables."""

    data: dict[str, Any]


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a file."""

    name: str
    offset: int
    data: bytes
    written_at: float
    """Unix time of the last write to the file."""
    anew: bool = False
    """Whether the file was truncated, so that known data is gone."""


class Pieces(Message, frozen=True, kw_only=True, tag="pieces"):
    """New data."""

    pieces: list[Piece] = []
    more: bool = False
    """Whether there is more to fetch."""


Reply: TypeAlias = Done | Refused | Stacks | SaveAsked | RanksJudged | SilentHosts | Found | Pieces


def refused(error: DdptopError) -> Refused:
    """The reply to a request that raised an error."""
    code = error.code if isinstance(error, ControlError) else None
    return Refused(error=error.message, hint=error.hint, code=code)


# -- the guardian's channel ------------------------------------------------------------------------


class GuardianHello(Message, frozen=True, kw_only=True, tag="hello"):
    """The first message to a supervisor: all that the guardian knows."""

    attempt: Number
    """The first attempt of this life of the job."""
    agent_pid: Number | None
    guardian_pid: Number
    exits: list[Exited] = []
    supervisor_restarts: Number = 0
    adopted: bool = False
    """Whether the guardian adopted a job that was alive without one."""


class AgentStarted(Message, frozen=True, kw_only=True, tag="agent_started"):
    """The guardian started an agent."""

    pid: Number
    """0 if it could not."""


ToSupervisor: TypeAlias = Exited | AgentStarted
"""After the hello."""


class Print(Message, frozen=True, kw_only=True, tag="print"):
    """Print a line in the pane."""

    text: str


class LaunchAgent(Message, frozen=True, kw_only=True, tag="start_agent"):
    """Start an agent."""

    plan: dict[str, Any]
    """See `host.handover.agent_plan`."""
    env: dict[str, str]
    """Variables that all further agents get, such as those that name the devices."""


class JobOver(Message, frozen=True, kw_only=True, tag="done"):
    """The job has ended, and so does the supervisor."""

    exit_code: int


ToGuardian: TypeAlias = Print | LaunchAgent | JobOver


# -- the link to another machine -------------------------------------------------------------------


class Ask(Message, frozen=True, kw_only=True, tag="ask"):
    """A request, answered with `Answer`."""

    id: int
    request: NodeRequest


ToNode: TypeAlias = Ask | Follow


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """The first line."""

    ddptop: str
    """Its version."""
    boottime_s: float
    now: dt.datetime


class NodeEvent(Message, frozen=True, kw_only=True, tag="event"):
    """An event of the node's log, in order and without gaps."""

    event: Event


class NodeFact(Message, frozen=True, kw_only=True, tag="fact"):
    """A fact for the head to decide on; a new connection repeats what it may have missed.

    `LinkMade` with nothing there: the node has no such job, or all of it is gone without an end.
    """

    fact: Fact


class NodeState(Message, frozen=True, kw_only=True, tag="state"):
    """The node's snapshot, once a second, and what the hang watch needs of each rank."""

    snapshot: NodeSnapshot
    progress: list[dict[str, Any]] = []
    """`judge.hangs.verdict.RankProgress` of each rank, as plain data."""


class Answer(Message, frozen=True, kw_only=True, tag="answer"):
    """To the request of that number."""

    id: int
    reply: Reply


Report: TypeAlias = Hello | NodeEvent | NodeFact | NodeState | Answer


# -- the codec -------------------------------------------------------------------------------------

ToControlSocket: TypeAlias = SupervisorRequest | Follow | AgentHello
"""The first line of a connection."""


def encode(message: Message) -> bytes:
    """The message as a packet."""
    return msgspec.json.encode(message)


def line(message: Message) -> bytes:
    """The message as a line."""
    return encode(message) + b"\n"


def decode(data: bytes, kind: object) -> Any:
    """A message of that type, or of one of these types.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return bounded.decode_json(_decoder(kind), data)


@functools.cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """A process needs few of them, and each takes a while to make."""
    return msgspec.json.Decoder(kind)
