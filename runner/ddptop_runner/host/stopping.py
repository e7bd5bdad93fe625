"""Which signals stop a job's processes, and in which order. Pure.

Ranks first, by themselves, so that one which saves its work still has its data loaders, and no
launcher that kills it, interrupts it or starts it anew meanwhile: launchers are paused. They are
woken when half of the grace is over, because a rank may write to a pipe that only they empty. Once
the ranks are gone everything else is asked to end, and at last all that is left is killed.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

LEFTOVER_GRACE_S = 5.0
"""For what has nothing to save: launchers, data loaders, shells. torchrun was seen to take 2."""
INTERRUPTED_S = 5.0
"""After SIGINT Lightning saves, still trapping SIGTERM, and then tears down, no longer trapping it:
from here on SIGTERM ends one whose teardown waits for the others in vain."""
TRAP_SIGTERM = frozenset({"lightning"})
"""Frameworks that catch SIGTERM and go on; SIGINT ends them well."""


@dataclass(frozen=True)
class Step:
    """Signals, and the wait for their effect. Left out where nobody is left to be waited for."""

    signals: tuple[signal.Signals, ...]
    pids: tuple[int, ...] | None
    """Whom they are sent to; None: every process of the job that is left."""
    wait_s: float = 0.0
    """At most, until `until` have ended."""
    until: tuple[int, ...] | None = None
    """None: every process of the job."""


def ask_to_end(frameworks: Collection[str]) -> signal.Signals:
    """The signal that makes a rank end well.

    Args:
        frameworks: those that it has imported.
    """
    return signal.SIGTERM if TRAP_SIGTERM.isdisjoint(frameworks) else signal.SIGINT


def plan(
    ranks: Mapping[int, Collection[str]], launchers: Sequence[int], grace_s: float
) -> list[Step]:
    """What to send, to whom, and for how long to wait.

    Args:
        ranks: by pid, the frameworks of each living rank.
        launchers: the processes above them that are no ranks.
        grace_s: how long ranks may take; 0 kills at once.
    """
    if grace_s <= 0:
        return []
    if not ranks:
        return [Step((signal.SIGTERM, signal.SIGCONT), None, grace_s)]
    pids = tuple(ranks)
    steps = [Step((signal.SIGSTOP,), tuple(launchers))] if launchers else []
    asked = {pid: ask_to_end(frameworks) for pid, frameworks in ranks.items()}
    for number in dict.fromkeys(asked.values()):
        theirs = tuple(pid for pid in pids if asked[pid] == number)
        steps.append(Step((number, signal.SIGCONT), theirs))
    woken_s = grace_s / 2 if launchers else 0.0
    alone_s = grace_s - woken_s
    interrupted = tuple(pid for pid in pids if asked[pid] == signal.SIGINT)
    if interrupted:
        first_s = min(alone_s, INTERRUPTED_S)
        steps.append(Step((), (), first_s, until=pids))
        steps.append(Step((signal.SIGTERM,), interrupted, alone_s - first_s, until=pids))
    else:
        steps.append(Step((), (), alone_s, until=pids))
    if launchers:
        steps.append(Step((signal.SIGCONT,), tuple(launchers), woken_s, until=pids))
    steps.append(Step((signal.SIGKILL,), pids, LEFTOVER_GRACE_S, until=pids))
    steps.append(Step((signal.SIGTERM, signal.SIGCONT), None, min(grace_s, LEFTOVER_GRACE_S)))
    return steps
