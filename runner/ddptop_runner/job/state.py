"""The state of a job after its events so far: frozen, and changed only by `transition.apply`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection

from ddptop_runner.judge.restarts.devices import without
from ddptop_runner.judge.restarts.policy import History, record
from ddptop_runner.model.diagnose import AttemptOutcome
from ddptop_runner.model.events import Ending, HangSuspected, SetAside, Trouble, WantedAgent
from ddptop_runner.model.snapshot import Alert, Cause, Checkpoint, Resume
from ddptop_runner.model.spec import JobSpec, NodeSpec, Placement
from ddptop_runner.model.words import HERE, LIVE_STATES, Base, RankState
from ddptop_runner.model.words import JobState as Phase


class RankLife(Base, frozen=True, kw_only=True):
    """One process of the current attempt: a rank, or the command that starts them."""

    pid: int | None = None
    exited: bool = False
    status: int | None = None
    """As in subprocess, negative for a signal; None while it lives, and if unknown."""
    at_s: float | None = None
    """CLOCK_BOOTTIME of its exit."""
    by_us: bool = False
    """Whether ddptop or torch's agent had begun to end it."""
    hung: bool = False
    node: str = HERE

    def state(self, working: RankState) -> RankState:
        """The process's state.

        Args:
            working: its state if it has neither exited nor hangs.
        """
        if self.exited:
            if self.by_us:
                return "stopped"
            return "exited" if self.status == 0 else "failed"
        return "hung" if self.hung and working in _AT_WORK else working


_AT_WORK = ("starting", "running", "quiet")
"""States in which a process may turn out to hang."""


class Budget(Base, frozen=True, kw_only=True):
    """Restarts after failures."""

    used: int = 0
    """Since it was last refilled."""
    limit: int | None = None
    """None until an event records it."""


class PendingRestart(Base, frozen=True, kw_only=True):
    """The next attempt, decided but not begun."""

    at: dt.datetime
    at_s: float | None = None
    """The same as CLOCK_BOOTTIME."""
    counted: bool = False
    """Whether it is charged to the budget."""
    next_attempt: int = 0
    """The number of the next attempt."""
    nodes: list[str] = []
    """On several nodes, those chosen for it; empty until then."""
    chosen_s: float = 0.0
    """CLOCK_BOOTTIME at which they were chosen."""


class ShownAlert(Base, frozen=True, kw_only=True):
    """An alert, and until when to show it if no event records its end."""

    alert: Alert
    until: dt.datetime | None = None


class NodeLife(Base, frozen=True, kw_only=True):
    """One node of a job."""

    takes_part: bool = False
    """Whether it takes part in the current attempt."""
    wanted_agent: WantedAgent | None = None
    sent: bool = False
    """Whether its agent was asked to end its ranks and start the next attempt."""
    begun: int | None = None
    """The last attempt for which it was prepared, unless that has started."""
    ending_ranks_at_s: float | None = None
    """CLOCK_BOOTTIME at which ddptop or torch's agent began to end its ranks of this attempt."""
    failed_before: list[int] = []
    """Ranks that the agent had found dead by then."""
    failed: bool = False
    """Whether its ranks failed in this attempt and none of them is alive."""
    ended: bool | None = None
    """Whether its part in this attempt ended well; None while it has not ended."""
    cause: Cause | None = None
    """Why it failed, if that is not for its ranks to show."""
    outcome: AttemptOutcome | None = None
    unknown_since: dt.datetime | None = None
    unknown_since_s: float | None = None
    """The same as CLOCK_BOOTTIME of the head."""
    why: str | None = None
    """Why it cannot be reached or was abandoned."""
    lost: bool = False
    refused: bool = False
    """Whether it could not begin an attempt even though reachable; it is not asked again."""

    @property
    def is_settled(self) -> bool:
        """Whether it has nothing more to report in this attempt."""
        return self.failed or self.ended is not None or self.unknown_since is not None

    def away_s(self, now_s: float) -> float:
        """How long it has been unreachable."""
        return 0.0 if self.unknown_since_s is None else max(0.0, now_s - self.unknown_since_s)


class JobState(Base, frozen=True, kw_only=True):
    """A job."""

    phase: Phase = "starting"
    in_queue: bool = False
    """Whether it waits for devices, or ended while waiting."""
    attempt: int | None = None
    attempt_started_at: dt.datetime | None = None
    attempt_started_s: float | None = None
    """The same as CLOCK_BOOTTIME."""
    first_step_after_s: float | None = None
    world: int | None = None
    """Number of processes that the agent started; None before that."""
    first_rank: int = 0
    """On one of several nodes, its first."""
    ranks: dict[int, RankLife] = {}
    launcher: RankLife | None = None
    budget: Budget = Budget()
    history: History = History()
    """The failed attempts that the restart policy considers."""
    set_aside: list[SetAside] = []
    """Devices that the next attempt does without."""
    set_aside_before: list[SetAside] = []
    """Devices that the current attempt does without."""
    policy: str | None = None
    """The reason for the restart policy's last decision."""
    restart: PendingRestart | None = None
    kill_at_s: float | None = None
    """CLOCK_BOOTTIME of SIGKILL; None unless someone stops it."""
    ending: Ending | None = None
    nodes: dict[str, NodeLife] = {}
    """By host; one machine is `HERE`."""
    last_begun: int | None = None
    """The highest attempt for which nodes were chosen, whether it started or not."""
    nodes_before: dict[int, list[str]] = {}
    """By earlier attempt, the nodes that took part in it."""
    cause: Cause | None = None
    """Why the attempt or the job failed; None while it runs."""
    previous_cause: Cause | None = None
    """Why the previous attempt failed; None if it did not."""
    resume: Resume | None = None
    """What came back when the attempt resumed."""
    suspected: HangSuspected | None = None
    suspected_at: dt.datetime | None = None
    trouble: Trouble | None = None
    """The trouble for which evidence is being saved while the ranks are alive."""
    checkpoint: Checkpoint | None = None
    alerts: dict[str, ShownAlert] = {}
    ended_at: dt.datetime | None = None
    exit_code: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.phase not in LIVE_STATES

    @property
    def is_decided(self) -> bool:
        """Whether it is decided what follows the current attempt."""
        return self.restart is not None or self.ending is not None

    @property
    def needs_new_agent(self) -> bool:
        """Whether the next attempt runs on different devices."""
        return self.set_aside != self.set_aside_before

    def spec_in_force(self, spec: JobSpec) -> JobSpec:
        """The job as the current attempt runs it: without the devices that are set aside.

        Args:
            spec: the job, as requested.
        """
        return without(spec, self.set_aside_before)

    @property
    def processes(self) -> list[RankLife]:
        """The attempt's processes: its ranks, or the command that starts them."""
        return list(self.ranks.values()) if self.launcher is None else [self.launcher]

    @property
    def has_living(self) -> bool:
        """Whether a process of the attempt is not known to have exited."""
        return any(life.pid is not None and not life.exited for life in self.processes)

    @property
    def has_failed(self) -> bool:
        """Whether a process of the attempt exited with a status other than 0."""
        return any(life.exited and life.status != 0 for life in self.processes)

    def node(self, name: str = HERE) -> NodeLife:
        """A node's life."""
        return self.nodes.get(name) or NodeLife(takes_part=name == HERE)

    def processes_on(self, node: str) -> list[RankLife]:
        """The attempt's processes on a node."""
        return [life for life in self.processes if life.node == node]

    @property
    def hosts_with_processes(self) -> set[str]:
        """The nodes on which processes of the attempt were started."""
        return {life.node for life in self.processes}

    def has_living_on(self, node: str) -> bool:
        """Whether a process of the attempt on a node is not known to have exited."""
        return any(life.pid is not None and not life.exited for life in self.processes_on(node))

    @property
    def next_attempt(self) -> int:
        """The number of an attempt that is yet to be decided."""
        return max(-1 if self.attempt is None else self.attempt, self.last_begun or 0) + 1

    def restarts_left(self, limit: int) -> int:
        """Restarts left in a budget of that size."""
        return max(0, limit - self.budget.used)

    def history_with(self, outcome: AttemptOutcome | None) -> History:
        """The failed attempts, with this one added; each counts once."""
        failed = self.history.failed
        if outcome is None or (failed and failed[-1].outcome.attempt == outcome.attempt):
            return self.history
        return record(self.history, outcome)

    def alerts_at(self, moment: dt.datetime) -> list[Alert]:
        """The alerts shown at that moment, in order of their beginning."""
        shown = self.alerts.values()
        return [one.alert for one in shown if one.until is None or moment <= one.until]


def placement_of(spec: JobSpec) -> Placement:
    """The nodes of a job on several."""
    assert spec.placement is not None
    return spec.placement


def hosts_of_ranks(state: JobState, spec: JobSpec, attempt: int | None = None) -> dict[int, str]:
    """The host of each rank in an attempt, by default the current one."""
    if spec.placement is None:
        return {rank: life.node for rank, life in state.ranks.items()}
    if attempt is None or attempt == state.attempt:
        members = [name for name, life in state.nodes.items() if life.takes_part]
    else:
        members = state.nodes_before.get(attempt, [])
    return dict(enumerate(one.host for one in nodes_named(spec, members) for _ in range(one.nproc)))


def nodes_named(spec: JobSpec, names: Collection[str]) -> list[NodeSpec]:
    """Those of a job's nodes, in its order."""
    wanted = set(names)
    return [one for one in placement_of(spec).nodes if one.host in wanted]


def away_for_long(state: JobState, now_s: float, spec: JobSpec) -> list[str]:
    """Nodes of the attempt that have been unreachable for longer than the node timeout."""
    timeout_s = placement_of(spec).node_timeout_s
    lives = state.nodes.items()
    return [name for name, life in lives if life.takes_part and life.away_s(now_s) > timeout_s]
