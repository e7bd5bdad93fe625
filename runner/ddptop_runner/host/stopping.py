"""Which signals end a job's processes, in which order, and sending them.

A plan is pure: a list of steps. `run` carries out any plan, of own and of foreign jobs. Each signal
goes only to a process whose identity is checked at that moment.

In a job of ddptop's own the ranks come first, by themselves, so that one which saves its work still
has its data loaders, and no launcher that kills it, interrupts it, or restarts it meanwhile:
launchers are paused. They are continued when half of the grace period is over, because a rank may
write to a pipe that only they empty. Once the ranks are gone, everything else is asked to exit, and
at last all that is left is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ddptop_runner.host import procs, tree
from ddptop_runner.model.snapshot import ProcessId

LEFTOVER_GRACE_S = 5.0
"""For what has nothing to save: launchers, data loaders, shells. torchrun was seen to take 2."""
INTERRUPTED_S = 5.0
"""After SIGINT Lightning saves, still trapping SIGTERM, and then tears down, no longer trapping it:
from here on SIGTERM ends one whose teardown waits for the others in vain."""
TRAP_SIGTERM = frozenset({"lightning"})
"""Frameworks that catch SIGTERM and go on; SIGINT ends them well."""
KILL_WAIT_S = 10.0
"""After SIGKILL a process may hang in the kernel (a lost GPU, a dead mount) for longer."""
POLL_S = 0.02
LOOK_EVERY_S = 1.0
"""How often to look for what was started by a process that is just being ended."""

Everyone = Callable[[], Iterable[ProcessId]]
"""Finds every process that is to end; called again and again, since they may start others."""


@dataclass(frozen=True)
class Step:
    """Signals, and the wait for their effect. Skipped if no process is left."""

    signals: tuple[signal.Signals, ...]
    pids: tuple[int, ...] | None
    """Whom they are sent to; None: every process that is left, or that is started meanwhile."""
    wait_s: float = 0.0
    """At most, until `until` have ended."""
    until: tuple[int, ...] | None = None
    """None: every process."""


@dataclass(frozen=True)
class Outcome:
    """How a plan went."""

    left: tuple[ProcessId, ...]
    """Those that could not be ended."""
    last: signal.Signals | None
    """The last signal that was meant to end a process and reached one."""


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
    kill = Step((signal.SIGKILL,), None, KILL_WAIT_S)
    if grace_s <= 0:
        return [kill]
    if not ranks:
        return [Step((signal.SIGTERM, signal.SIGCONT), None, grace_s), kill]
    pids = tuple(ranks)
    steps = [Step((signal.SIGSTOP,), tuple(launchers))] if launchers else []
    asked = {pid: ask_to_end(frameworks) for pid, frameworks in ranks.items()}
    for number in dict.fromkeys(asked.values()):
        theirs = tuple(pid for pid in pids if asked[pid] == number)
        steps.append(Step((number, signal.SIGCONT), theirs))
    continued_s = grace_s / 2 if launchers else 0.0
    before_continue_s = grace_s - continued_s
    interrupted = tuple(pid for pid in pids if asked[pid] == signal.SIGINT)
    if interrupted:
        first_s = min(before_continue_s, INTERRUPTED_S)
        steps.append(Step((), (), first_s, until=pids))
        steps.append(Step((signal.SIGTERM,), interrupted, before_continue_s - first_s, until=pids))
    else:
        steps.append(Step((), (), before_continue_s, until=pids))
    if launchers:
        steps.append(Step((signal.SIGCONT,), tuple(launchers), continued_s, until=pids))
    steps.append(Step((signal.SIGKILL,), pids, LEFTOVER_GRACE_S, until=pids))
    steps.append(Step((signal.SIGTERM, signal.SIGCONT), None, min(grace_s, LEFTOVER_GRACE_S)))
    return [*steps, kill]


async def end(
    everyone: Everyone, grace_s: float, ranks: Mapping[int, Collection[str]] | None = None
) -> tuple[ProcessId, ...]:
    """End processes as `plan` has it; those that could not be ended.

    Args:
        everyone: finds them.
        grace_s: how long they may take; 0 kills at once.
        ranks: by pid, the frameworks of those among them that are ranks.
    """
    known = [process for process in everyone() if process.pid != os.getpid()]
    if not known:
        return ()
    pids = {process.pid for process in known}
    ranks = {pid: frameworks for pid, frameworks in (ranks or {}).items() if pid in pids}
    steps = plan(ranks, tree.launchers_of(ranks, known), grace_s)
    return (await run(steps, everyone, known=known)).left


async def run(
    steps: Iterable[Step],
    everyone: Everyone,
    uid: int | None = None,
    known: Iterable[ProcessId] | None = None,
) -> Outcome:
    """Carry out a plan until no process is left.

    Args:
        steps: in this order.
        everyone: finds the processes that are to end; this process is never one of them.
        uid: whose a process has to be when it is signaled; None where that does not matter.
        known: what `everyone` has just found; None: ask it.
    """
    ending = _Ending(everyone, uid)
    ending.look(known)
    for step in steps:
        if await ending.take(step):
            break
    return Outcome(tuple(ending.alive(None)), ending.last)


class _Ending:
    """A plan being carried out."""

    def __init__(self, everyone: Everyone, uid: int | None) -> None:
        self._everyone, self._uid = everyone, uid
        self._known: dict[int, ProcessId] = {}
        self._look_at_s = 0.0
        self.last: signal.Signals | None = None

    def look(self, found: Iterable[ProcessId] | None = None) -> list[ProcessId]:
        """Those that were not known before."""
        self._look_at_s = asyncio.get_running_loop().time() + LOOK_EVERY_S
        by_pid = {one.pid: one for one in (self._everyone() if found is None else found)}
        by_pid.pop(os.getpid(), None)
        new = [process for pid, process in by_pid.items() if self._known.get(pid) != process]
        self._known.update(by_pid)
        return new

    def alive(self, pids: Iterable[int] | None) -> list[ProcessId]:
        """Those of these processes that are left; None: all of them."""
        known = self._known
        some = known.values() if pids is None else (known[pid] for pid in pids if pid in known)
        return [process for process in some if procs.is_alive(process)]

    def _send(self, processes: Collection[ProcessId], signals: Sequence[signal.Signals]) -> None:
        for number in signals:
            reached = procs.signal_all(processes, number, self._uid)
            if reached and number not in (signal.SIGSTOP, signal.SIGCONT):
                self.last = number

    async def take(self, step: Step) -> bool:
        """Send the signals of a step and wait; returns whether no process is left."""
        if step.until is not None and not self.alive(step.until):
            return False
        self._send(self.alive(step.pids), step.signals)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + step.wait_s
        while step.wait_s > 0:
            waiting = bool(self.alive(step.until))
            if step.until is None and (not waiting or loop.time() >= self._look_at_s):
                new = self.look()
                self._send(new, step.signals if step.pids is None else ())
                waiting = waiting or bool(new)
            if not waiting:
                return step.until is None
            if loop.time() >= deadline_s:
                return False
            await asyncio.sleep(POLL_S)
        return False
