"""One fault on one live job: wait until it trains, inject the fault, and watch what follows."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from benchmarks.faults import verdict
from benchmarks.faults.commit import argument_of, commit
from benchmarks.faults.kinds import Fault
from benchmarks.faults.record import read_record

from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.base.start import own_command
from ddptop_runner.host import procs
from ddptop_runner.job.registry import JobView, read_job
from ddptop_runner.model.snapshot import Event, NodeSnapshot, ProcessId
from ddptop_runner.store import logs
from ddptop_runner.store.history_reader import HistoryReader
from ddptop_runner.store.history_schema import RANK

READY_STEPS = 5
"""A fault is injected once every rank has taken this many steps in the attempt."""
READY_S = 120.0
"""Importing torch in two ranks takes 2 s on an idle machine, and a minute on a busy one."""
LOOK_S = 0.2
COMMAND_S = 2.0
"""Time between two commands, which adopt a job without a guardian."""
FLOOD_LINE = re.compile(r"flood (\d+) of (\d+) ")
EVERY_LINE = 1_000_000
LEAVE_S = 10.0
"""How long a job's processes may still exist after its end."""


@dataclass
class Outcome:
    """The outcome of one fault."""

    fault: Fault
    rank: int
    complaints: list[str] = field(default_factory=list)
    """Empty if everything was as expected."""
    committed_at: float | None = None
    """Unix seconds; None if it was not injected."""
    settled_s: float | None = None
    """Time until everything expected was observed; None if it was not."""


class Trial:
    """A live job into which faults are injected, one after the other.

    Args:
        folder: its run folder.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._was: set[str] = set()
        self._commanded_s = 0.0
        self._flooded = False

    def run(self, fault: Fault, rank: int) -> Outcome:
        """Inject the fault once the job trains; wait at most `patience_s` for what is expected."""
        outcome = Outcome(fault, rank)
        if (trouble := self._wait_until_ready()) is not None:
            outcome.complaints.append(trouble)
            return outcome
        self._was, self._flooded = set(), fault.name == "log-flood"
        before = self._seen(rank, time.time())
        at = outcome.committed_at = time.time()
        try:
            undo = commit(fault, read_job(self._folder), rank)
        except DdptopError as error:
            outcome.complaints.append(f"could not inject the fault: {error}")
            return outcome
        undo_at = at + fault.hold_s
        undone = not fault.hold_s
        try:
            while True:
                if not undone and time.time() >= undo_at and verdict.is_shown(fault, self._was):
                    undo()
                    undone = True
                now = self._seen(rank, at)
                outcome.complaints = verdict.wrong(fault, rank, before, now)
                lacking = (
                    verdict.missing(fault, rank, before, now)
                    if undone
                    else ["the fault was not undone"]
                )
                if not lacking and not outcome.complaints:
                    outcome.settled_s = time.time() - at
                    return outcome
                over = now.state in ("finished", "failed", "stopped", "lost")
                if (outcome.complaints and over) or time.time() - at > fault.patience_s:
                    outcome.complaints += lacking
                    return outcome
                if over and undone:  # a last look at what was written at the end
                    outcome.complaints += verdict.missing(fault, rank, before, self._seen(rank, at))
                    return outcome
                self._play_the_person(fault)
                time.sleep(LOOK_S)
        finally:
            if not undone:
                undo()

    def _wait_until_ready(self) -> str | None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            view = self._view()
            if view is not None and not view.is_live:
                return f"the job was {view.state} before the fault"
            if view is not None and view.snapshot is not None and _trains(view.snapshot):
                return None
            time.sleep(LOOK_S)
        return f"the job did not start training within {READY_S:g} s"

    def _view(self) -> JobView | None:
        with suppress(DdptopError):
            return read_job(self._folder)
        return None

    def events(self, since_unix: float = 0.0) -> list[Event]:
        """The job's state and events since a given time.

        Raises:
            DdptopError: when the history cannot be read.
        """
        found = HistoryReader(self._folder.history_db).events()
        return [event for event in found if event.ts.timestamp() >= since_unix]

    def _seen(self, rank: int, since_unix: float) -> verdict.Seen:
        view, events, well = self._view(), [], True
        try:
            events = self.events(since_unix)
        except DdptopError:
            well = False
        if view is None or view.snapshot is None:
            return verdict.Seen("unreadable", None, events=events, files_are_well=False)
        snapshot = view.snapshot
        self._was |= {one.state for one in snapshot.ranks if one.rank == rank}
        if view.guarded is False:
            self._was.add("unguarded")
        return verdict.Seen(
            view.state,
            snapshot.attempt,
            steps={one.rank: one.step for one in snapshot.ranks},
            restarts_used=snapshot.restarts_used,
            guarded=view.guarded,
            holders={
                "guardian": _pid(snapshot.guardian),
                "supervisor": _pid(snapshot.supervisor),
                "agent": _pid(snapshot.agent),
            },
            set_aside=tuple(snapshot.set_aside),
            was=frozenset(self._was),
            events=events,
            files_are_well=well,
            flood=self._flood(view, rank) if self._flooded else None,
        )

    def _flood(self, view: JobView, rank: int) -> verdict.Flood | None:
        attempt = None if view.snapshot is None else view.snapshot.attempt
        log = self._folder.log_file(attempt or 0, rank)
        numbers = []
        wanted = 0
        for line in logs.last_lines(log, EVERY_LINE):
            if (found := FLOOD_LINE.match(line)) is not None:
                numbers.append(int(found[1]))
                wanted = int(found[2])
        if not log.exists() or not numbers:
            return None
        with logs.LogFile(log) as file:
            live_bytes = file.end - file.first
        in_order = numbers == list(range(numbers[0], wanted))
        return verdict.Flood(wanted, len(numbers), in_order, live_bytes)

    def _play_the_person(self, fault: Fault) -> None:
        """Run a command, which adopts a job without a guardian."""
        if fault.name != "guardian-killed" or "unguarded" not in self._was:
            return
        if time.monotonic() - self._commanded_s > COMMAND_S:
            self._commanded_s = time.monotonic()
            command = own_command("ddptop", "status", self._folder.job)
            subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)

    def end(
        self,
        timeout_s: float,
        outcomes: Sequence[Outcome] = (),
        wanted: str = "finished",
        *,
        gap_s: float = verdict.GAP_S,
    ) -> list[str]:
        """Wait for the job's end, and compare ddptop's record with the script's own.

        Args:
            timeout_s: how long the end may take.
            outcomes: what was committed before: a damaged history is allowed its gap.
            wanted: the state in which the job should end.
            gap_s: how long the history may have nothing of an attempt that trains.
        """
        deadline = time.monotonic() + timeout_s
        view = read_job(self._folder)
        while view.is_live:
            if time.monotonic() > deadline:
                return [f"the job is still {view.state} after {timeout_s:g} s"]
            time.sleep(LOOK_S)
            view = read_job(self._folder)
        found = (
            [] if view.state == wanted else [f"the job's final state is {view.state}, not {wanted}"]
        )
        found += self._left_running(view)
        faults = {outcome.fault.name: outcome.fault for outcome in outcomes}
        with suppress(DdptopError):
            if "corrupt-files" not in faults:
                last = 0 if view.snapshot is None else view.snapshot.attempt or 0
                found += verdict.story_gaps(self.events(), last)
            found += self._steps_lost(view, faults, gap_s)
        return found

    def _steps_lost(self, view: JobView, faults: Mapping[str, Fault], gap_s: float) -> list[str]:
        record = argument_of(view, "--record")
        if record is None or view.snapshot is None or "corrupt-files" in faults:
            return []
        reader = HistoryReader(self._folder.history_db)
        series = reader.series(RANK, "step", 0, time.time() + 1, 1_000_000)
        last = {one.rank: one.step for one in view.snapshot.ranks}
        gap_s += faults["disk-full"].hold_s if "disk-full" in faults else 0.0
        finished = view.state == "finished"
        return verdict.steps_lost(read_record(record), series, last, gap_s, finished=finished)

    def _left_running(self, view: JobView) -> list[str]:
        deadline = time.monotonic() + LEAVE_S
        while left := procs.pids_of_job(view.spec.job_id):
            if time.monotonic() > deadline:
                return [f"left running: {' '.join(map(str, left))}"]
            time.sleep(LOOK_S)
        return []


def _pid(process: ProcessId | None) -> int | None:
    return None if process is None else process.pid


def _trains(snapshot: NodeSnapshot) -> bool:
    return (
        snapshot.state == "running"
        and bool(snapshot.ranks)
        and all(one.state == "running" and (one.step or 0) >= READY_STEPS for one in snapshot.ranks)
    )
