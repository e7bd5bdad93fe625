"""What a node and its job say to each other: facts go up, orders come down.

Both are plain data, so that they can travel between machines as JSON lines. `job.decide` turns a
fact into events and orders; `node.driver` carries orders out, and reports the result as a fact. An
order that leads to a fact passes its `question` on: the number of the agent's question that is
answered in the end, or None where no agent waits.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from ddptop_runner.model.diagnose import AttemptOutcome
from ddptop_runner.model.events import JobEvent, SetAside, Trouble
from ddptop_runner.model.snapshot import Cause
from ddptop_runner.model.spec import Device, Rendezvous


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Of either kind. Each type repeats the options: msgspec inherits the tag field alone."""


# -- facts: agent and ranks ------------------------------------------------------------------------


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A process that the agent started."""

    rank: int | None
    """None for a command that starts the ranks itself."""
    pid: int
    local_rank: int = 0


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """The agent, as the node sees it."""

    pid: int | None = None
    """None where it has exited, or was not started."""
    listens: bool = False
    """Whether it is connected."""


class AgentConnected(Message, frozen=True, kw_only=True, tag="agent_connected"):
    """The agent reported, at its start or to a new supervisor."""

    pid: int


class AgentListens(Message, frozen=True, kw_only=True, tag="agent_listens"):
    """It has reported all that it knows."""


class PlainStart(Message, frozen=True, kw_only=True, tag="plain_start"):
    """The agent starts ranks as usual, though it should have forked them."""

    why: str


class GroupStarted(Message, frozen=True, kw_only=True, tag="group_started"):
    """The agent started the ranks of an attempt, or its command."""

    attempt: int
    workers: list[Worker]


class ProcessExited(Message, frozen=True, kw_only=True, tag="process_exited"):
    """A rank exited, or the command that starts the ranks."""

    attempt: int
    rank: int | None
    """None for the command."""
    pid: int | None
    status: int | None
    """As in subprocess; None if it could not be collected."""
    at_s: float
    """CLOCK_BOOTTIME."""
    approximate: bool = False
    """Whether that time may be late."""


class OrphanExited(Message, frozen=True, kw_only=True, tag="orphan_exited"):
    """A rank exited whose agent is gone, so nothing else ends the group."""


class AgentExited(Message, frozen=True, kw_only=True, tag="agent_exited"):
    """The agent exited, and every exit that it could report is known."""

    pid: int | None
    status: int | None


class AgentAsked(Message, frozen=True, kw_only=True, tag="agent_asked"):
    """The agent waits for an answer before it takes a step that cannot be undone."""

    question: int
    kind: Literal["failing", "torn_down", "group_stopped", "ended"]
    attempt: int | None = None
    ranks: list[int] = []
    """Those that it found dead."""


# -- facts: results of orders ----------------------------------------------------------------------


class EvidenceKept(Message, frozen=True, kw_only=True, tag="evidence_kept"):
    """The evidence of a failure is on disk, or cannot be kept."""

    attempt: int
    question: int | None
    ranks: list[int] = []


class LeftoversEnded(Message, frozen=True, kw_only=True, tag="leftovers_ended"):
    """What ranks had started is gone, and so is their memory on the devices."""

    question: int | None
    waited_s: float = 0.0
    found: str | None = None
    """What a person should know of the wait for memory."""
    is_problem: bool = False


class AttemptJudged(Message, frozen=True, kw_only=True, tag="attempt_judged"):
    """Why an attempt failed, from its exits, logs, and evidence."""

    attempt: int
    question: int | None
    cause: Cause | None
    """None where ddptop itself failed to find out."""
    outcome: AttemptOutcome | None
    ends: list[dict[str, Any]] = []
    """As in `FailureJudged`."""
    jitter: float
    """Random, from 0 to 1: spreads the waits before a restart."""


class StartJudged(Message, frozen=True, kw_only=True, tag="start_judged"):
    """Why an agent exited before it had started a rank."""

    attempt: int
    """The latest when it exited."""
    status: int | None
    cause: Cause
    jitter: float


class TroubleFound(Message, frozen=True, kw_only=True, tag="trouble_found"):
    """Ranks that are alive hang, or their loss is not finite."""

    reason: Trouble
    ranks: list[int] = []


class TroubleJudged(Message, frozen=True, kw_only=True, tag="trouble_judged"):
    """The evidence of it is kept, and this is the cause."""

    attempt: int
    reason: Trouble
    cause: Cause
    outcome: AttemptOutcome | None
    """None where ddptop itself failed to judge it."""
    jitter: float


class RestartDue(Message, frozen=True, kw_only=True, tag="restart_due"):
    """The next attempt is due, or nothing waits for it anymore."""

    attempt: int
    question: int | None


class DevicesChosen(Message, frozen=True, kw_only=True, tag="devices_chosen"):
    """On which devices the next attempt can run."""

    attempt: int
    question: int | None
    agent: AgentState
    aside: list[SetAside] = []
    """Unfit devices that it runs without."""
    refused: str | None = None
    """Why there can be no next attempt."""
    notes: list[str] = []


class RanksEnded(Message, frozen=True, kw_only=True, tag="ranks_ended"):
    """Every rank was ended, and the agent with them."""


class AgentMadeRoom(Message, frozen=True, kw_only=True, tag="agent_made_room"):
    """The old agent and all of its ranks are gone."""

    attempt: int
    """The one that they were of."""
    waited_s: float = 0.0
    found: str | None = None
    is_problem: bool = False


class NothingLeft(Message, frozen=True, kw_only=True, tag="nothing_left"):
    """No process of the job is left but guardian and supervisor."""


# -- facts: people and supervisors -----------------------------------------------------------------


class StopAsked(Message, frozen=True, kw_only=True, tag="stop_asked"):
    """Someone stops the job."""

    grace_s: float
    """Between SIGTERM and SIGKILL; 0 kills at once."""
    by: str | None = None
    """The user who asked."""


class RestartAsked(Message, frozen=True, kw_only=True, tag="restart_asked"):
    """Someone restarts the job, which costs nothing."""

    agent: AgentState
    attempt: int | None = None
    """The number of the next attempt, where the head of a job on several nodes asks."""
    rendezvous: Rendezvous | None = None
    """Of that attempt."""
    devices_back: list[Device] = []
    """Set aside before, and fit again."""


class SupervisorStarted(Message, frozen=True, kw_only=True, tag="supervisor_started"):
    """A supervisor took the place of one that died; every exit since is known."""

    agent: AgentState
    agent_end_seen: bool = False
    """Whether the agent's exit is being followed already."""


# -- facts: the nodes of a job on several, as their head sees them ---------------------------------


class NodeReported(Message, frozen=True, kw_only=True, tag="node_reported"):
    """A node recorded an event; its times are the head's by now."""

    node: str
    event: JobEvent


class LinkBroken(Message, frozen=True, kw_only=True, tag="link_broken"):
    """A node cannot be reached."""

    node: str
    why: str


class LinkMade(Message, frozen=True, kw_only=True, tag="link_made"):
    """A node can be reached, and has reported all that happened meanwhile."""

    node: str
    is_there: bool = True
    """Whether processes of the job are on it, or its part has ended on record."""


class PartRefused(Message, frozen=True, kw_only=True, tag="part_refused"):
    """A node could not begin an attempt."""

    node: str
    attempt: int
    error: str
    answered: bool = False
    """Whether the node itself said so."""


class VerdictsDue(Message, frozen=True, kw_only=True, tag="verdicts_due"):
    """Evidence is kept on every node that can be reached, and no verdict is waited for longer."""

    attempt: int


class NodesDue(Message, frozen=True, kw_only=True, tag="nodes_due"):
    """Nodes that cannot be reached were waited for long enough, or something has changed."""

    attempt: int


class CheckpointWaited(Message, frozen=True, kw_only=True, tag="checkpoint_waited"):
    """The ranks have saved, or nothing more is waited for."""

    attempt: int


Fact: TypeAlias = (
    AgentConnected
    | AgentListens
    | PlainStart
    | GroupStarted
    | ProcessExited
    | OrphanExited
    | AgentExited
    | AgentAsked
    | EvidenceKept
    | LeftoversEnded
    | AttemptJudged
    | StartJudged
    | TroubleFound
    | TroubleJudged
    | RestartDue
    | DevicesChosen
    | RanksEnded
    | AgentMadeRoom
    | NothingLeft
    | StopAsked
    | RestartAsked
    | SupervisorStarted
    | NodeReported
    | LinkBroken
    | LinkMade
    | PartRefused
    | VerdictsDue
    | NodesDue
    | CheckpointWaited
)


# -- orders ----------------------------------------------------------------------------------------


class AnswerAgent(Message, frozen=True, kw_only=True, tag="answer_agent"):
    """Answer the agent's question."""

    question: int
    restart: bool | None = None
    """Whether another attempt follows; None where that is not asked."""
    restarts_left: int = 0
    rendezvous: Rendezvous | None = None
    """Of the attempt that begins with this answer, on several nodes."""


class TellAgent(Message, frozen=True, kw_only=True, tag="tell_agent"):
    """Tell the agent to restart the group, or that the ranks are being ended."""

    order: Literal["restart_group", "stopping"]
    restarts_left: int | None = None


class KeepEvidence(Message, frozen=True, kw_only=True, tag="keep_evidence"):
    """Keep the evidence of a failure, before any signal. Leads to `EvidenceKept`."""

    question: int | None = None
    ranks: list[int] = []


class InterruptRanks(Message, frozen=True, kw_only=True, tag="interrupt_ranks"):
    """Send SIGINT to ranks that catch the agent's SIGTERM and continue."""


class EndLeftovers(Message, frozen=True, kw_only=True, tag="end_leftovers"):
    """End what ranks had started. Leads to `LeftoversEnded`."""

    question: int | None = None
    grace_s: float | None = None
    """Between SIGTERM and SIGKILL for the group itself; None: it has had its time."""
    await_memory: bool = False
    """Whether the next attempt needs the memory of this one on the devices."""


class JudgeAttempt(Message, frozen=True, kw_only=True, tag="judge_attempt"):
    """Find out why the attempt failed. Leads to `AttemptJudged`."""

    question: int | None = None


class JudgeStart(Message, frozen=True, kw_only=True, tag="judge_start"):
    """Find out why the agent started no rank. Leads to `StartJudged`."""

    status: int | None


class JudgeTrouble(Message, frozen=True, kw_only=True, tag="judge_trouble"):
    """Keep the evidence of a hang or a bad loss, and judge it. Leads to `TroubleJudged`."""

    reason: Trouble


class WaitForRestart(Message, frozen=True, kw_only=True, tag="wait_for_restart"):
    """Wait until the next attempt may begin. Leads to `RestartDue`."""

    at_s: float | None
    """CLOCK_BOOTTIME; None: now."""
    question: int | None = None


class SkipWait(Message, frozen=True, kw_only=True, tag="skip_wait"):
    """Stop waiting for the next attempt."""


class ChooseDevices(Message, frozen=True, kw_only=True, tag="choose_devices"):
    """Find out which devices are fit. Leads to `DevicesChosen`."""

    question: int | None = None


class ReplaceAgent(Message, frozen=True, kw_only=True, tag="replace_agent"):
    """End the agent, its ranks, and its store. Leads to `AgentMadeRoom`."""


class StartAgent(Message, frozen=True, kw_only=True, tag="start_agent"):
    """Start an agent for an attempt."""

    attempt: int
    restarts_left: int


class EndRanks(Message, frozen=True, kw_only=True, tag="end_ranks"):
    """End all ranks, then the agent. Leads to `RanksEnded`."""

    grace_s: float


class Conclude(Message, frozen=True, kw_only=True, tag="conclude"):
    """End whatever is left of the job. Leads to `NothingLeft`."""


class BeginOn(Message, frozen=True, kw_only=True, tag="begin_on"):
    """Have a node take part in an attempt, whatever it does now."""

    node: str
    attempt: int
    rendezvous: Rendezvous


class KeepEvidenceOnNodes(Message, frozen=True, kw_only=True, tag="keep_evidence_on_nodes"):
    """Keep evidence where ranks are alive, then wait for verdicts. Leads to `VerdictsDue`."""


class AwaitNodes(Message, frozen=True, kw_only=True, tag="await_nodes"):
    """Wait for nodes that cannot be reached. Leads to `NodesDue`."""

    seconds: float


class AskCheckpoint(Message, frozen=True, kw_only=True, tag="ask_checkpoint"):
    """Have the ranks save, so that ending them loses no steps. Leads to `CheckpointWaited`."""


class EndOn(Message, frozen=True, kw_only=True, tag="end_on"):
    """End what a node still runs of a job that is ending."""

    node: str
    grace_s: float
    """Between SIGTERM and SIGKILL."""


Order: TypeAlias = (
    AnswerAgent
    | TellAgent
    | KeepEvidence
    | InterruptRanks
    | EndLeftovers
    | JudgeAttempt
    | JudgeStart
    | JudgeTrouble
    | WaitForRestart
    | SkipWait
    | ChooseDevices
    | ReplaceAgent
    | StartAgent
    | EndRanks
    | Conclude
    | BeginOn
    | KeepEvidenceOnNodes
    | AwaitNodes
    | AskCheckpoint
    | EndOn
)
