"""Print a fault's progress: what is done, the job's story, and the verdict."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from ddptop.faults.kinds import Fault
from ddptop.faults.trial import Outcome, Tell, Trial
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.store.log_clean import sanitize

LOOK_S = 0.5
END_S = 3600.0
"""How long the bundled training may go on after the fault."""
UNEVENTFUL = ("rank_started", "rank_exited")
"""Event types that are redundant next to the others."""


class StoryTeller:
    """Tells a job's events as they come, from a thread of its own.

    Args:
        trial: whose job it is.
        tell: is told one line per event.
    """

    def __init__(self, trial: Trial, tell: Tell) -> None:
        self._trial = trial
        self._tell = tell
        self._told = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> StoryTeller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def _work(self) -> None:
        while not self._over.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        with suppress(DdptopError):
            for event in self._trial.events():
                stamp = event.ts.timestamp()
                if stamp <= self._told:
                    continue
                self._told = stamp
                if event.type not in UNEVENTFUL:
                    at = event.ts.astimezone()
                    message = " ".join(sanitize(event.message).split())
                    self._tell(f"{at:%H:%M:%S}  {event.type}: {message}")


def tell_all(folder: RunFolder, fault: Fault, rank: int, tell: Tell) -> int:
    """Commit the fault, tell the story to the job's end, and give the verdict.

    Returns:
        0: as expected; 1: not.

    Raises:
        DdptopError: when the fault cannot be committed on this job.
    """

    def say(line: str) -> None:
        tell(f"{time.strftime('%H:%M:%S')}  {line}")

    trial = Trial(folder, say)
    with StoryTeller(trial, tell):
        outcome = trial.run(fault, rank)
        complaints = [*outcome.complaints, *trial.end(END_S, [outcome])]
    tell(in_words(outcome, complaints))
    return 1 if complaints else 0


def in_words(outcome: Outcome, complaints: list[str]) -> str:
    """The verdict as one paragraph."""
    if complaints:
        return f"{outcome.fault.name}: NOT as expected: {'; '.join(complaints)}"
    took = "" if outcome.settled_s is None else f" after {outcome.settled_s:.0f} s"
    return f"{outcome.fault.name}: as expected{took}: {outcome.fault.expected}"
