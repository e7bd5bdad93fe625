"""The states of jobs, ranks, and nodes, each an enumeration to which new versions may add."""

import functools
import re
from typing import Literal

import msgspec

JobState = Literal[
    "queued",
    "starting",
    "running",
    "restarting",
    "hung",
    "stopping",
    "finished",
    "failed",
    "stopped",
    "lost",
]
"""A job's state. A group changes state as a unit: one failed rank restarts all local ranks.

queued → starting → running ⇄ restarting; running → hung → restarting; any live state → stopping →
stopped; running → finished; running → failed. `lost` is never written: a reader infers it if the
processes that should be alive are not.
"""

WaitKind = Literal["never", "time", "after", "group", "turn", "gpus"]
"""What a queued job waits for. `never`: a job of --after did not finish, so it ends; `time`: --at;
`after`: jobs of --after; `group`: jobs of its sweep, because of --parallel; `turn`: jobs that come
first in the queue; `gpus`: too few are free."""

LIVE_STATES: frozenset[str] = frozenset(
    {"queued", "starting", "running", "restarting", "hung", "stopping"}
)
"""States in which processes of the job should exist."""

RankState = Literal[
    "starting",
    "running",
    "paused",
    "quiet",
    "hung",
    "exited",
    "failed",
    "stopped",
    "unknown",
    "blocked",
    "zombie",
]
"""A rank's state. `starting`: no step yet; `paused`: stopped by SIGSTOP; `quiet`: no step for much
longer than usual, without a verdict; `exited`: exit status 0; `failed`: any other end; `stopped`:
ended by ddptop (stop, kill, or a restart of the group). Only for foreign jobs: `blocked`: in
uninterruptible sleep (D) for a while; `zombie`: ended, but not reaped by its parent."""

NodePart = Literal["waiting", "starting", "running", "held", "ended", "unreachable", "lost"]
"""The state of a node of a job on several. `waiting`: not started; `held`: its ranks have ended,
and it waits for the next attempt; `unreachable`: unknown, and left alone; `lost`: given up until it
can be reached again."""

ENDED: frozenset[RankState] = frozenset({"exited", "failed", "stopped", "zombie"})
"""States of a rank that has ended."""

Phase = Literal[
    "start", "steps", "compile", "evaluation", "checkpoint", "data", "collective", "end"
]
"""What a rank is doing, as recognized by the probe. `start`: before the first step; `steps`:
training; `compile`: torch.compile is at work; `evaluation`: forward passes without backward;
`checkpoint`: saving or loading a file; `data`: the training thread waits for its data loader;
`collective`: waiting for other ranks in a collective; `end`: the script has ended, and its process
is about to exit."""

PauseState = Literal["no_step", "stalled", "hung"]
"""A running job that takes no steps. `no_step`: for longer than usual, such as during an evaluation
or a checkpoint; `stalled`: after most of the time until a verdict; `hung`: after the verdict."""

OnNan = Literal["alert", "stop", "restart"]
"""What to do when a loss is NaN or infinite."""

LossState = Literal["ok", "nan", "inf"]
LossSource = Literal["probe", "api", "log"]
LossIs = Literal["sum", "mean"]
NotLearning = Literal["no_gradients", "zero_gradients"]
ProgressSource = Literal["api", "trainer", "log"]
"""Source of the total: `report`, a framework's trainer object, or the output."""
ProgressUnit = Literal["run", "epoch", "samples"]
"""What progress counts: steps of the whole run, or steps or samples of the epoch."""
StepCounts = Literal["run", "attempt", "epoch"]
"""What a step counts: the whole run across restarts, or only one attempt or epoch."""
Severity = Literal["info", "warning", "error"]


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """The base of frozen types. msgspec does not inherit options, so each type repeats them."""


_EVALUATION = r"(?:^|[^a-z])(?:val|valid|validation|eval|evaluation|test|dev)(?:[^a-z]|$)"


@functools.lru_cache(maxsize=1024)
def is_of_evaluation(name: str) -> bool:
    """Whether a scalar's name shows that it is measured in evaluations, such as `val_loss`."""
    return re.search(_EVALUATION, name.lower()) is not None


def is_validation_loss(name: str) -> bool:
    """Whether a scalar with this name is a loss of an evaluation."""
    return is_of_evaluation(name) and "loss" in name.lower()


HERE = ""
"""The name of the only node of a job on one machine."""
