"""Holds a job's guardian while a Slurm step runs, and handles Slurm's signals.

Slurm kills whatever a step leaves behind, so a guardian cannot be a daemon there: it is its
holder's child. The batch step's holder also holds a step on each other node. Near the time limit
(SIGUSR1), it has the job save a checkpoint, and requeues it, unless its requeues are used up.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec

from ddptop_runner.base import bounded, programs
from ddptop_runner.base.clock import poll
from ddptop_runner.base.errors import DdptopError, UsageError
from ddptop_runner.base.files import write_atomic
from ddptop_runner.base.paths import RunFolder, state_home
from ddptop_runner.base.start import own_command
from ddptop_runner.host import procs
from ddptop_runner.job.event_log import EventLog
from ddptop_runner.job.registry import JobView, read_job
from ddptop_runner.jobs import checkpoint, commands
from ddptop_runner.judge.restarts.policy import History, record
from ddptop_runner.launch.slurm import (
    Allocation,
    allocation,
    hold_argv,
    step_environment,
)
from ddptop_runner.model import run_step
from ddptop_runner.model.diagnose import AttemptOutcome
from ddptop_runner.model.events import CANCELLED_BY, JobEnded, StopRequested
from ddptop_runner.model.snapshot import Checkpoint, NodeSnapshot, encode
from ddptop_runner.model.spec import read_spec
from ddptop_runner.model.words import LIVE_STATES, Base
from ddptop_runner.node import adoption
from ddptop_runner.node.guardian_start import start_guardian_process
from ddptop_runner.node.remote import member_folder, node_job_id
from ddptop_runner.store.history import HistoryReader, HistoryWriter

POLL_S = 0.1
REQUEUE_MARGIN_S = 20.0
"""How much of the remaining time is reserved for ending the ranks."""
CHECKPOINT_S = 90.0
"""How long a checkpoint may take if the remaining time is unknown."""
LEAD_S = 8
"""Offset of a requeued job's begin time. If that is not after the job's end, Slurm waits 2 min."""
STEP_PAUSES_S = (1.0, 2.0, 5.0, 15.0)
ASK_S = 20.0
NOT_WORTH_REQUEUEING = 93
STATUSES = {"finished": 0, "stopped": 4, "lost": 5}


def report(text: str) -> None:
    """Write to the output of the batch step."""
    sys.stderr.write(f"ddptop: {text}\n")
    sys.stderr.flush()


# --- how often a job was requeued, and whether it may be again ---------------------------------

IDLE_REQUEUES = 3
"""How many requeues in a row may pass without progress."""


class Requeues(Base, frozen=True, kw_only=True):
    """A job's requeue counts, stored in its run folder."""

    slurm_job: str
    count: int = 0
    without_progress: int = 0
    """Requeues in a row without progress."""
    attempt: int | None = None
    """The attempt at the last requeue."""
    step: int | None = None
    """The furthest known step of the run at a requeue."""
    checkpoint_step: int | None = None
    """The same of its checkpoints."""
    saved_at: dt.datetime | None = None
    """When the last checkpoint known at a requeue was saved."""


def requeued(before: Requeues, snapshot: NodeSnapshot | None) -> Requeues:
    """The counts after one more requeue, of a job last seen in that state.

    Progress is what refills the budget of restarts; unknown progress does not count as none.
    """
    if snapshot is None or snapshot.attempt == before.attempt:  # it did not run since
        return msgspec.structs.replace(
            before, count=before.count + 1, without_progress=before.without_progress + 1
        )
    saved = snapshot.checkpoint
    is_new = saved is not None and saved.at != before.saved_at
    outcome = _outcome(snapshot, saved if is_new else None, saves=saved is not None)
    past = History(furthest_step=before.step, checkpointed_step=before.checkpoint_step)
    now = record(past, outcome)
    last = now.failed[-1]
    return Requeues(
        slurm_job=before.slurm_job,
        count=before.count + 1,
        without_progress=0 if last.progress else before.without_progress + last.in_vain,
        attempt=snapshot.attempt,
        step=now.furthest_step,
        checkpoint_step=now.checkpointed_step,
        saved_at=None if saved is None else saved.at,
    )


def _outcome(snapshot: NodeSnapshot, saved: Checkpoint | None, *, saves: bool) -> AttemptOutcome:
    """What the restart policy considers, for an attempt that has to leave its nodes.

    Args:
        snapshot: the job's last.
        saved: the checkpoint that it saved since the last requeue, if any.
        saves: whether it is known to save.
    """
    run = run_step.of_snapshot(snapshot)
    began = snapshot.attempt_started_at
    return AttemptOutcome(
        attempt=snapshot.attempt or 0,
        lived_s=0.0 if began is None else (snapshot.ts - began).total_seconds(),
        steps=None if saved is not None or run is None else run.step - (run.began or 0),
        exit_code=None,
        signal=None,
        exception=None,
        new_checkpoint=True if saved is not None else False if saves else None,
        global_step=run.step if run is not None and run.counts == "run" else None,
        checkpoint_step=run_step.run_step(saved),
    )


def why_no_requeue(counts: Requeues, most: int | None) -> str | None:
    """Why a job must not be requeued; None if it may be.

    Args:
        counts: its requeues, including this one.
        most: --max-requeues; None for no limit.
    """
    if most is not None and counts.count > most:
        return f"it was requeued {counts.count - 1} times (--max-requeues {most})"
    if counts.without_progress > IDLE_REQUEUES:
        return f"no progress in the last {IDLE_REQUEUES} requeues"
    return None


def requeues_file(folder: RunFolder) -> Path:
    """The file with a job's requeue counts."""
    return folder.path / "requeues.json"


def read_requeues(folder: RunFolder, slurm_job: str) -> Requeues:
    """A job's requeue counts so far, without those of an earlier Slurm job."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        decoder = msgspec.json.Decoder(Requeues)
        found = bounded.decode_json(decoder, bounded.read_bytes(requeues_file(folder)))
        if found.slurm_job == slurm_job:
            return found
    return Requeues(slurm_job=slurm_job)


def write_requeues(folder: RunFolder, counts: Requeues) -> None:
    """Store the counts; if the disk is full, the old ones remain."""
    with contextlib.suppress(OSError):
        write_atomic(requeues_file(folder), msgspec.json.encode(counts))


# --- holding --------------------------------------------------------------------------------------


class GuardianHolder:
    """Starts the guardian of a run folder whenever a job is handed over there."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._guardian: subprocess.Popen[bytes] | None = None
        self._adoption: threading.Thread | None = None
        self._refused = False
        self.status: int | None = None
        """Exit status of the last guardian that exited."""

    def poll(self) -> None:
        """Reap an exited guardian, and start one if a job is handed over."""
        if self._guardian is not None and (status := self._guardian.poll()) is not None:
            self._guardian, self.status = None, status
            if self._refused:  # it would refuse the job again
                self.folder.handover_file.unlink(missing_ok=True)
        if self._guardian is None and self.folder.handover_file.exists():
            self._start()

    @property
    def holds(self) -> bool:
        """Whether a guardian is running or about to start."""
        is_adopting = self._adoption is not None and self._adoption.is_alive()
        return self._guardian is not None or is_adopting or self.folder.handover_file.exists()

    def _start(self) -> None:
        spec = read_spec(self.folder)
        self._guardian = start_guardian_process(self.folder, spec)
        self._refused = not _is_taken_over(self.folder, self._guardian)

    def kill(self) -> None:
        """Kill the guardian, which would restart its supervisor."""
        if self._guardian is not None:
            self._guardian.kill()
            self._guardian.wait()

    def readopt(self) -> None:
        """Hand over a job that has lost its guardian; `poll` starts the new one."""

        def adopt() -> None:
            with contextlib.suppress(DdptopError, OSError):
                adoption.adopt(read_job(self.folder), os.environ)

        if self._adoption is None or not self._adoption.is_alive():
            self._adoption = threading.Thread(target=adopt, daemon=True)
            self._adoption.start()


class Step:
    """The step that holds a node's part of the job, restarted if it ends too early."""

    def __init__(self, slurm_job: str, host: str, command: list[str], log: Path) -> None:
        self._argv = hold_argv(slurm_job, host, command)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._ends = 0
        self._next_s = 0.0

    def poll(self) -> None:
        """Start the step unless it is running."""
        now_s = time.monotonic()
        if self._process is not None and self._process.poll() is not None:
            self._process = None
            self._next_s = now_s + STEP_PAUSES_S[min(self._ends, len(STEP_PAUSES_S) - 1)]
            self._ends += 1
        if self._process is None and now_s >= self._next_s:
            self._process = programs.start(self._argv, self._log, env=step_environment(os.environ))

    def end(self) -> None:
        """End the step."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5.0)


class JobHolder:
    """Holds a job until it ends, or Slurm ends its allocation."""

    def __init__(self, folder: RunFolder, found: Allocation, most: int | None) -> None:
        self._folder = folder
        self._allocation = found
        self._most = most
        self._guardian = GuardianHolder(folder)
        spec = read_spec(folder)
        self._steps: list[Step] = []
        if spec.placement is not None:
            for index, node in enumerate(spec.placement.nodes):
                command = [*node.command[:-1], *member_words(node_job_id(spec.job_id, index))]
                log = folder.logs_dir / f"step-{index}.log"
                self._steps.append(Step(found.job, node.host, command, log))
        self._signals: set[int] = set()
        self._saving: threading.Thread | None = None
        self._lost_since_s: float | None = None

    def run(self) -> int:
        """Hold the job; returns the exit status of the batch step."""
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, lambda number, _: self._signals.add(number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        while True:
            self._guardian.poll()
            for step in self._steps:
                step.poll()
            if signal.SIGTERM in self._signals and self._allocation.is_batch:
                if self._is_cancelled():
                    with contextlib.suppress(DdptopError, OSError):
                        self._cancel()
                return self._leave()
            if signal.SIGUSR1 in self._signals and self._allocation.is_batch:
                self._signals.discard(signal.SIGUSR1)
                self._on_time_limit()
            if not self._guardian.holds and (view := self._ended()) is not None:
                return self._finish(view)
            time.sleep(POLL_S)

    def _ended(self) -> JobView | None:
        """The job, if it has ended; replaces a guardian that was killed."""
        view = read_job(self._folder)
        if view.needs_guardian:
            self._guardian.readopt()
            return None
        if view.is_live:
            if self._saving is not None and self._saving.is_alive():
                return None
            # nothing is running anymore, but its files do not show that yet
            self._lost_since_s = self._lost_since_s or time.monotonic()
            return view if time.monotonic() - self._lost_since_s > ASK_S else None
        return view

    def _finish(self, view: JobView) -> int:
        for step in self._steps:
            step.end()
        snapshot = view.snapshot
        requeue = None if snapshot is None else snapshot.requeue
        if view.state == "failed" and not requeue:
            report(f"{view.job} failed, and would fail again; not requeued")
            return NOT_WORTH_REQUEUEING
        if view.state == "failed" and requeue and self._allocation.is_batch:
            if (why := self._count(view)) is not None:
                report(f"{view.job} failed; not requeued: {why}")
            elif self._requeue(f"{view.job} failed"):
                return self._leave()
        return STATUSES.get(view.state, 1)

    def give_back(self, view: JobView) -> int:
        """Requeue a job that cannot continue on these nodes; returns the step's exit status."""
        if (why := self._count(view)) is not None:
            report(f"{view.job} is not continued: {why}")
            return NOT_WORTH_REQUEUEING
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # until its begin time is moved
        return self._leave() if self._requeue(f"{view.job} cannot continue here") else 1

    # -- the time limit ----------------------------------------------------------------------------

    def _on_time_limit(self) -> None:
        if self._saving is None or not self._saving.is_alive():
            self._saving = threading.Thread(target=self._save_and_requeue, daemon=True)
            self._saving.start()

    def _save_and_requeue(self) -> None:
        view = read_job(self._folder)
        if (why := self._count(view)) is not None:
            report(f"the time limit is near; {view.job} is not requeued: {why}")
            return
        limit_s = self._time_left_s()
        deadline_s = time.monotonic() + limit_s
        report(f"the time limit is near; waiting up to {limit_s:.0f} s for a checkpoint")
        try:
            view = self._once_it_can_save(deadline_s)
            found = checkpoint.wait(view, checkpoint.ask(view), deadline_s - time.monotonic())
        except DdptopError as error:
            report(error.message)  # its hint is for a user who waits
        except OSError as error:
            report(str(error))
        else:
            report(f"saved{found.in_words()}: {found.checkpoint.path}")
        with contextlib.suppress(DdptopError, OSError):  # unreadable: requeued as it was last seen
            view = read_job(self._folder)
        if view.is_live and view.state != "stopping":  # otherwise `run` returns its state
            self._requeue("the time limit is near")

    def _once_it_can_save(self, deadline_s: float) -> JobView:
        """Wait until the job's ranks are running: it may be starting or restarting."""
        while (view := read_job(self._folder)).is_live and view.state not in checkpoint.ASKABLE:
            if time.monotonic() >= deadline_s:
                break
            time.sleep(POLL_S)
        return view

    def _time_left_s(self) -> float:
        printed = _ask("squeue", "--noheader", f"--job={self._allocation.job}", "--format=%e")
        with contextlib.suppress(ValueError):
            end_s = time.mktime(time.strptime(printed.strip(), "%Y-%m-%dT%H:%M:%S"))
            return max(5.0, end_s - time.time() - REQUEUE_MARGIN_S)
        return CHECKPOINT_S

    def _count(self, view: JobView) -> str | None:
        """Count a requeue; returns why the job must not be requeued, or None."""
        counts = requeued(read_requeues(self._folder, self._allocation.job), view.snapshot)
        if (why := why_no_requeue(counts, self._most)) is None:
            write_requeues(self._folder, counts)
        return why

    def _requeue(self, why: str) -> bool:
        job = self._allocation.job
        problem = _ask("scontrol", "requeue", job, fails=True)
        report(f"{why}; {f'Slurm did not requeue job {job}: {problem}' if problem else 'requeued'}")
        return not problem

    def _is_cancelled(self) -> bool:
        """Whether Slurm ends the job for good, as scancel demands."""
        job, before = self._allocation.job, self._allocation.restarts
        words = _ask("scontrol", "show", "job", "--oneliner", job).split()
        shown = dict(word.split("=", 1) for word in words if "=" in word)
        is_ending = shown.get("JobState") in ("COMPLETING", "CANCELLED")
        return is_ending and shown.get("Restarts") == str(before) and shown["Reason"] == "None"

    def _cancel(self) -> None:
        """Record that the job was cancelled: Slurm's SIGTERM has ended its supervisor, too.

        Raises:
            DdptopError: a file of the job cannot be read; `OSError`.
        """
        self._guardian.kill()
        with contextlib.suppress(UsageError):  # Slurm was faster
            commands.stop(read_job(self._folder), 0.0)
        snapshot = read_job(self._folder).snapshot
        if snapshot is None or snapshot.state not in LIVE_STATES:
            return
        rows = HistoryReader(self._folder.history_db).events(silent=True)
        history = HistoryWriter(self._folder.history_db)
        log = EventLog(history, report)
        log.restore(rows, snapshot)
        asked = StopRequested(attempt=snapshot.attempt, grace_s=0.0, by=CANCELLED_BY)
        for event in (asked, JobEnded(attempt=snapshot.attempt, state="stopped")):
            log.emit(event)
        history.close(final=True)
        ended = msgspec.structs.replace(
            snapshot, state="stopped", ended_at=log.state.ended_at, ranks=[], pause=None, alerts=[]
        )
        write_atomic(self._folder.node_file(snapshot.host), encode(ended))

    # -- the end of the allocation -----------------------------------------------------------------

    def _leave(self) -> int:
        """Wait for the job's processes to end, and make Slurm restart a requeued job soon."""
        job_id = read_spec(self._folder).job_id
        while True:
            self._guardian.poll()
            begin = f"StartTime=now+{LEAD_S}"
            problem = _ask("scontrol", "update", f"JobId={self._allocation.job}", begin, fails=True)
            if not procs.pids_of_job(job_id, os.geteuid()):
                return 128 + signal.SIGTERM
            time.sleep(0.5 if not problem else 1.0)


def _ask(*argv: str, fails: bool = False) -> str:
    """Run a Slurm command; returns its output or, with `fails`, only why it failed."""
    try:
        done = programs.run(argv, ASK_S, env={**os.environ, "SLURM_TIME_FORMAT": "standard"})
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error) if fails else ""
    if not fails:
        return done.stdout
    return "" if done.returncode == 0 else (done.stderr.strip() or f"status {done.returncode}")


def member_words(job_id: str) -> list[str]:
    """The arguments to ddptop's start file that run the holder of a node's part of a job."""
    return [__spec__.name, "member", job_id]


def job_argv(folder: RunFolder, most_requeues: int | None) -> list[str]:
    """The argv of a job's holder, to be run inside the allocation."""
    most = "" if most_requeues is None else str(most_requeues)
    return own_command(__spec__.name, "job", str(folder.path), most)


def start_detached(folder: RunFolder, argv: list[str]) -> None:
    """Start a job's holder in its own session; returns once it has started the guardian.

    Raises:
        DdptopError: the guardian did not start.
    """
    process = programs.start(argv, folder.supervisor_log)
    if not _is_taken_over(folder, process):
        raise DdptopError(
            f"the guardian for {folder.job} did not start", f"see {folder.supervisor_log}"
        )
    process.returncode = 0  # it outlives this process, which never reaps it


def _is_taken_over(folder: RunFolder, process: subprocess.Popen[bytes]) -> bool:
    """Whether the guardian takes the job that is handed over, before this process ends."""
    file = folder.handover_file
    poll(lambda: not file.exists() or process.poll() is not None, ASK_S, POLL_S / 10)
    return not file.exists()


def hold_member(job_id: str) -> int:
    """Hold a node's part of a job until the step ends."""
    if not bounded.is_file_name(job_id):
        return 2
    (state_home() / "members").mkdir(mode=0o700, parents=True, exist_ok=True)
    holder = GuardianHolder(member_folder(job_id))
    while True:
        with contextlib.suppress(DdptopError, OSError):
            holder.poll()
        time.sleep(POLL_S)


def main(kind: str, *arguments: str) -> int:
    """Hold a job, or a node's part of one."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.umask(0o077)
    if kind == "member":
        return hold_member(*arguments)
    path, most = arguments
    found = allocation(os.environ)
    if found is None:
        report("not inside a Slurm allocation")
        return 2
    return JobHolder(RunFolder(Path(path)), found, int(most) if most else None).run()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
