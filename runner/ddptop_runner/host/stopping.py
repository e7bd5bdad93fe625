"""Plans which signals end a job's processes, and sends them.

A plan is pure: a list of steps. `run` carries out any plan, for own and foreign jobs. Each signal
goes only to a process whose identity is checked at that moment.

In ddptop's own jobs, the ranks are signaled first, so that a rank that saves its work still has its
data loaders. Launchers are paused, so that none of them kills, interrupts, or restarts a rank
meanwhile. They are continued after half of the grace period, because a rank may write to a pipe
that only they read. Once the ranks have exited, all other processes are asked to exit, and finally
all that remain are killed.
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
"""Grace period for processes without work to save: launchers, data loaders, and shells. torchrun
can take 2 s."""
INTERRUPTED_S = 5.0
"""After SIGINT, Lightning saves while it still traps SIGTERM, and then tears down without the trap.
By now, SIGTERM ends a rank whose teardown waits in vain for the others."""
TRAP_SIGTERM = frozenset({"lightning"})
"""Frameworks that catch SIGTERM and continue; SIGINT ends them gracefully."""
KILL_WAIT_S = 10.0
"""How long to wait after SIGKILL; a process may hang in the kernel (a lost GPU, a dead mount)."""
POLL_S = 0.02
LOOK_EVERY_S = 1.0
"""How often to look for processes started by those that are being ended."""

Everyone = Callable[[], Iterable[ProcessId]]
"""Finds all processes to end; called repeatedly, because they may start others."""


@dataclass(frozen=True)
class Step:
    """Signals, and the wait for their effect. Skipped if no process is left."""

    signals: tuple[signal.Signals, ...]
    pids: tuple[int, ...] | None
    """The recipients; None for all remaining processes and those that they start meanwhile."""
    wait_s: float = 0.0
    """Maximum time to wait until `until` have exited."""
    until: tuple[int, ...] | None = None
    """None for all processes."""


@dataclass(frozen=True)
class Outcome:
    """The result of a plan."""

    left: tuple[ProcessId, ...]
    """Processes that could not be ended."""
    last: signal.Signals | None
    """The last signal sent that could end a process."""


def ask_to_end(frameworks: Collection[str]) -> signal.Signals:
    """The signal that ends a rank gracefully.

    Args:
        frameworks: the frameworks that it has imported.
    """
    return signal.SIGTERM if TRAP_SIGTERM.isdisjoint(frameworks) else signal.SIGINT


def plan(
    ranks: Mapping[int, Collection[str]], launchers: Sequence[int], grace_s: float
) -> list[Step]:
    """The steps that end a job's processes.

    Args:
        ranks: by pid, the frameworks of each living rank.
        launchers: the processes above them that are not ranks.
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
    """End processes according to `plan`; returns those that could not be ended.

    Args:
        everyone: finds them.
        grace_s: how long they may take; 0 kills at once.
        ranks: by pid, the frameworks of the processes that are ranks.
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
        steps: the plan.
        everyone: finds the processes to end; this process is never one of them.
        uid: only processes of this user are signaled; None for all users.
        known: what `everyone` has just found; None to call it.
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
        """Find the processes; returns the new ones."""
        self._look_at_s = asyncio.get_running_loop().time() + LOOK_EVERY_S
        by_pid = {one.pid: one for one in (self._everyone() if found is None else found)}
        by_pid.pop(os.getpid(), None)
        new = [process for pid, process in by_pid.items() if self._known.get(pid) != process]
        self._known.update(by_pid)
        return new

    def alive(self, pids: Iterable[int] | None) -> list[ProcessId]:
        """The remaining processes among these, or among all with None."""
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
