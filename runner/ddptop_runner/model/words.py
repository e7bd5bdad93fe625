"""The words in which a job's and a rank's condition is told: each a closed list, which may grow."""

from __future__ import annotations

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
stopped; running → finished; running → failed. `lost` is never written: a reader concludes it when
the processes that should be alive are not.
"""

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
    "stuck",
]
"""A rank's state. `starting`: no step yet; `paused`: stopped by SIGSTOP; `quiet`: no step for much
longer than usual, no verdict; `exited`: ended with 0; `failed`: ended otherwise; `stopped`: ended
by ddptop (stop, kill, or a restart of the group). Seen from outside only: `blocked`: in
uninterruptible sleep (D) at every look for a while; `zombie`: ended, and its parent has not asked
how; `stuck`: its device reads full utilization at idle power, as a waiting collective does."""

NodePart = Literal["waiting", "starting", "running", "held", "ended", "unreachable", "lost"]
"""A node's part in a job on several. `waiting`: it has not been started; `held`: its ranks have
ended, and it waits for the next attempt; `unreachable`: nobody knows, and nothing is done for it;
`lost`: given up, until it can be reached again."""

ENDED: frozenset[RankState] = frozenset({"exited", "failed", "stopped", "zombie"})
"""States of a rank that is over."""

Phase = Literal[
    "start", "steps", "compile", "evaluation", "checkpoint", "data", "collective", "end"
]
"""What a rank is doing, recognised and never declared. `start`: before the first step; `steps`:
training; `compile`: torch.compile at work; `evaluation`: forward passes without backward;
`checkpoint`: a file is being saved or loaded; `data`: the training thread waits for its data
loader; `collective`: it waits in a collective for other ranks; `end`: the script is over, and its
process is about to end."""

PauseState = Literal["no_step", "stalled", "hung"]
"""A running job that takes no step: `no_step`: longer than usual, as an evaluation or a checkpoint
lasts; `stalled`: longer than this job's own pauses, or an idle rank is waited for; `hung`: the
verdict was given."""

OnNan = Literal["alert", "stop", "restart"]
"""What to do when a loss is NaN or infinite."""

LossState = Literal["ok", "nan", "inf"]
LossSource = Literal["probe", "api", "log"]
LossIs = Literal["sum", "mean"]
ProgressSource = Literal["api", "trainer", "log"]
"""Who said the total: `report`, the trainer object of a framework, or a line of output."""
ProgressUnit = Literal["run", "epoch", "samples"]
"""What a progress counts: steps of the whole run, steps of this epoch, samples of this epoch."""
StepCounts = Literal["run", "attempt", "epoch"]
"""What a step counts: those of the whole run, over restarts, or of one attempt or epoch only."""
Severity = Literal["info", "warning", "error"]


HAS_ENDED = "the job has ended"
"""What a supervisor answers that has yet to write the last snapshot."""


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """Frozen and complete in itself. msgspec inherits neither option: each type repeats them."""


_EVALUATION = re.compile(
    r"(?:^|[^a-z])(?:val|valid|validation|eval|evaluation|test|dev)(?:[^a-z]|$)"
)


@functools.lru_cache(maxsize=1024)
def is_of_evaluation(name: str) -> bool:
    """Whether a scalar is named like one that is measured now and then, such as `val_loss`."""
    return _EVALUATION.search(name.lower()) is not None
