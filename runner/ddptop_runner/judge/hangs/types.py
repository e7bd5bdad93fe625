"""What the hang watch sees of a rank, and what it concludes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddptop_runner.host.tree import LoaderUsage
from ddptop_runner.model.words import PauseState, Phase


@dataclass(frozen=True)
class RankProgress:
    """One rank at one look. Unknown is None, and unknown progress is not "no progress"."""

    rank: int
    alive: bool
    paused: bool
    """Stopped by a signal: the person's doing."""
    steps: int | None
    """Optimizer steps of this attempt; None when no probe was heard."""
    since_progress_s: float
    """Seconds since its last step, or since the attempt started when it has taken none."""
    phase: Phase | None = None
    phase_s: float = 0.0
    """Seconds since the phase began."""
    enqueued: Mapping[str, int] = field(default_factory=dict)
    """By process group: the last collective that the rank has entered."""
    completed: Mapping[str, int] = field(default_factory=dict)
    batches: int | None = None
    cpu_s: float | None = None
    """CPU time of the rank and all its descendants since they started."""
    written_bytes: int | None = None
    """By the rank, as /proc/<pid>/io tells."""
    loader: LoaderUsage | None = None
    """Its data loader's processes; None while it does not wait for them, and where it has none."""
    unheard_s: float | None = None
    """Seconds since the probe's last word, which comes at least every 5 s unless the interpreter's
    lock is held; None when it was never heard."""
    exited_with: int | None = None
    """Return code of a rank that has ended."""
    stands_at: str | None = None

    @property
    def known(self) -> bool:
        """Whether its progress can be known at all."""
        return self.steps is not None or bool(self.completed)

    @property
    def is_unheard(self) -> bool:
        """Whether its probe is overdue: its interpreter does not respond."""
        return (self.unheard_s or 0.0) > UNHEARD_S

    @property
    def pending(self) -> bool:
        """Whether it has entered a collective that is not complete."""
        return any(
            entered > self.completed.get(group, entered) for group, entered in self.enqueued.items()
        )


@dataclass(frozen=True)
class Standing:
    """One rank at one look, measured in the time for which somebody looked.

    A supervisor that was stopped, or a machine that was suspended, adds nothing to these times.
    """

    rank: RankProgress
    doing: Phase
    silent_s: float
    """Since its last step or completed collective."""
    idle_s: float
    """Since its last sign of life: progress, or an activity that belongs to what it does."""
    stepless_s: float = 0.0
    """Since its last step; of a rank that takes none, since its last completed collective."""
    busy: bool | None = None
    """Whether it and its descendants use the CPU; None while that is not known."""
    is_still: bool = False
    """Whether nothing is heard of it, and it has used next to no CPU for long: what trains or
    sleeps, with a probe, uses more."""
    batches: int | None = None
    """Taken since `doing` began."""


@dataclass(frozen=True)
class Culprits:
    """The ranks that a stalled group waits for, and how that is known."""

    ranks: tuple[int, ...]
    because: str
    """In words."""
    proven: bool = False
    """Whether the others cannot go on without them, whatever they do."""
    named: bool = True
    """False where nobody is behind, and `ranks` are all."""


@dataclass(frozen=True)
class HangVerdict:
    """A group that has used up its time without progress."""

    ranks: tuple[int, ...]
    """The culprits: whom the others wait for; all where nobody is behind."""
    quiet_s: float
    """For how long no rank made progress."""
    message: str
    """What stands still, who is behind and by which sign, in words."""
    named: bool = True
    """False where nobody is behind."""


@dataclass(frozen=True)
class SeenPause:
    """A pause of a job that has taken steps before."""

    state: PauseState
    stepless_s: float
    reason: str | None = None
    ranks: tuple[int, ...] = ()
    """Whom the others wait for."""


@dataclass(frozen=True)
class HangLook:
    """What one look found."""

    quiet: Mapping[int, float] = field(default_factory=dict)
    """Ranks that take longer than usual, with the seconds since their last progress. No alarm."""
    suspicion: HangVerdict | None = None
    """The job is stalled. Nothing is done yet."""
    verdict: HangVerdict | None = None
    """Time to take evidence, and to act."""
    pause: SeenPause | None = None
    """None while steps come, and before the first."""
    notes: Mapping[int, str] = field(default_factory=dict)
    """By rank: why it is silent and well, such as "evaluating for 40 s"."""


UNHEARD_S = 8.0
"""A probe speaks at least every 5 s unless its interpreter's lock is held."""


WARM_STEPS = 3


WARM_COLLECTIVES = 20
"""Before this many the first of everything still happens."""


def is_warm(ranks: Sequence[RankProgress], *, first_step: bool) -> bool:
    """Whether the start is over for the group.

    Args:
        ranks: all of it.
        first_step: one step is enough.
    """
    steps = max((rank.steps or 0 for rank in ranks), default=0)
    collectives = max((sum(rank.completed.values()) for rank in ranks), default=0)
    return steps >= (1 if first_step else WARM_STEPS) or (
        steps == 0 and collectives >= WARM_COLLECTIVES
    )
