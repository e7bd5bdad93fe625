"""Scans this host once for training that ddptop did not start, and resolves names to jobs."""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from ddptop_runner.base import bounded
from ddptop_runner.base.clock import boottime_s
from ddptop_runner.base.errors import DamagedFileError, NoSuchJobError, UsageError
from ddptop_runner.base.paths import RunFolder, run_folder, runs_dir
from ddptop_runner.base.units import whole
from ddptop_runner.foreign.process_table import ProcessTable
from ddptop_runner.foreign.recognize import find_jobs, start_order
from ddptop_runner.foreign.types import Census, ForeignJob, ProcessFacts, Unreadable
from ddptop_runner.host import procs, tree
from ddptop_runner.model.snapshot import GpuSample
from ddptop_runner.model.spec import MAX_NAME_LENGTH, read_spec

HINT = "list training runs with `ddptop ps`"

IsOwn = Callable[[str, int], bool]
"""Whether a DDPTOP_JOB_ID belongs to that user's job in this state folder."""


def is_own_job(job_id: str, uid: int) -> bool:
    """Whether this state folder has the job with that DDPTOP_JOB_ID (`name@nonce`).

    Args:
        job_id: from the process's environment.
        uid: the process's user; it must own the run folder, or the ID is forged.
    """
    name = job_id.rpartition("@")[0]
    if not bounded.is_file_name(name):
        return False
    for folder in _folders_of(name):
        try:
            if folder.path.stat().st_uid != uid or not os.access(folder.spec_file, os.R_OK):
                continue
        except (OSError, ValueError):
            continue
        try:
            spec = read_spec(folder)
        except DamagedFileError:
            if folder.job == name:
                return True  # better omitted than shown as a foreign job
            continue
        of_node = spec.placement is not None and job_id.rpartition(".")[0] == spec.job_id
        if of_node or spec.job_id == job_id:
            return True
    return False


def _folders_of(name: str) -> Iterator[RunFolder]:
    """Its run folders; archiving may have renamed the job."""
    yield run_folder(name)
    with contextlib.suppress(OSError):
        for path in runs_dir().iterdir():
            if "-" in path.name and path.name.startswith(name[: MAX_NAME_LENGTH - 4]):
                yield RunFolder(path)


MAX_OF_USER = 1024
"""Processes examined per other user; a person has fewer."""


class HostCensus:
    """Takes censuses repeatedly, caching what is fixed for a process's life.

    Make one per viewer and use it from one thread; each repeated census costs a few milliseconds.
    """

    def __init__(self, own: IsOwn = is_own_job, table: ProcessTable | None = None) -> None:
        """`own` decides which jobs are ddptop's own; their processes are excluded."""
        self._own = own
        self._table = ProcessTable() if table is None else table
        self._answers: dict[tuple[str, int], bool] = {}
        self._boot_unix_s = time.time() - boottime_s()
        self._scanned: tuple[object, ...] = ()
        """What the last census was made from."""
        self._census = Census()

    def scan(self, gpus: Sequence[GpuSample] = ()) -> Census:
        """All foreign training now, the same object while nothing changes; never raises.

        Args:
            gpus: the latest device sample, which shows the processes on each device. Without it,
                jobs are found only by environment and process tree.
        """
        held, strangers = devices_by_pid(gpus)
        facts, left_out = _within_bounds(self._table.scan(held), held)
        if self._scanned == (facts, held, strangers, left_out):
            return self._census
        self._scanned = (facts, held, strangers, left_out)
        by_pid = {process.pid: process for process in facts}
        jobs, unreadable = find_jobs(
            facts,
            held,
            self._own_pids(facts),
            boot_unix_s=self._boot_unix_s,
            uid=os.geteuid(),
        )
        members = {pid for job in jobs for pid in job.pids}
        self._census = Census(
            jobs=tuple(jobs),
            unreadable=(*unreadable, *strangers, *left_out),
            facts={pid: by_pid[pid] for pid in sorted(members) if pid in by_pid},
        )
        return self._census

    def _own_pids(self, facts: Iterable[ProcessFacts]) -> list[int]:
        own, answers = [], {}
        for process in facts:
            job_id = (process.environ or {}).get("DDPTOP_JOB_ID")
            if job_id is None:
                continue
            key = (job_id, process.uid)
            # a run folder is made before its processes and outlives them, so one query is enough
            known = self._answers.get(key)
            answers[key] = self._own(*key) if known is None else known
            if answers[key]:
                own.append(process.pid)
        self._answers = answers  # other users can make up any number of IDs
        return own


def _within_bounds(
    facts: list[ProcessFacts], held: Collection[int]
) -> tuple[list[ProcessFacts], list[Unreadable]]:
    """(each other user's MAX_OF_USER oldest processes, an entry for each user with more)."""
    of_user: dict[int, list[ProcessFacts]] = defaultdict(list)
    for process in facts:
        of_user[process.uid].append(process)
    cut = []
    for uid, theirs in of_user.items():
        if len(theirs) <= MAX_OF_USER or uid == os.geteuid():
            continue
        theirs.sort(key=lambda process: (process.pid not in held, *start_order(process)))
        more = theirs[MAX_OF_USER:]
        del theirs[MAX_OF_USER:]
        reason = (
            f"{len(more)} more of this user's processes were not inspected (limit: {MAX_OF_USER})"
        )
        cut.append(Unreadable(more[0].pid, procs.user_name(uid), None, reason=reason))
    if cut:
        facts = [process for theirs in of_user.values() for process in theirs]
    return facts, cut


def devices_by_pid(
    gpus: Sequence[GpuSample],
) -> tuple[dict[int, list[str]], list[Unreadable]]:
    """(device UUIDs by pid of this host, entries for pids of other namespaces).

    A pid counts as this host's only if the sample identified its user: in a container, the driver
    may report pids of the host, which are other processes here.
    """
    held: dict[int, list[str]] = {}
    strange: dict[int, tuple[list[str], str]] = {}
    for gpu in sorted(gpus, key=lambda gpu: gpu.index):
        if gpu.uuid is None:
            continue
        for process in gpu.processes or ():
            if process.user is not None:
                held.setdefault(process.pid, []).append(gpu.uuid)
            elif not process.has_exited:
                strange.setdefault(process.pid, ([], process.note or ""))[0].append(gpu.uuid)
    strangers = [
        Unreadable(pid=pid, user=None, command=None, gpus=tuple(uuids), reason=note)
        for pid, (uuids, note) in sorted(strange.items())
        if pid not in held
    ]
    return held, strangers


def resolve(text: str, census: Census) -> ForeignJob:
    """The foreign job that the user means by `text`.

    Args:
        text: the pid of any process of the job, or of the script or shell that started only this
            job; the job's name, a unique prefix of it, or the script's name.
        census: the latest.

    Raises:
        NoSuchJobError: no process or job matches.
        UsageError: several jobs match; the message lists them.
    """
    if (pid := whole(text)) is not None:
        return _resolve_pid(pid, census)
    exact = [job for job in census.jobs if job.name == text]
    script = [job for job in census.jobs if job.name.rpartition(":")[0] == text]
    prefix = [job for job in census.jobs if text and job.name.startswith(text)]
    for matches in (exact, script, prefix):
        if len(matches) == 1:
            return matches[0]
        if matches:
            names = ", ".join(sorted(job.name for job in matches))
            raise UsageError(f"{text!r} is ambiguous: {names}", "use a longer prefix or a PID")
    raise NoSuchJobError(f"no training run named {text!r} outside ddptop", HINT)


def _resolve_pid(pid: int, census: Census) -> ForeignJob:
    job = next((job for job in census.jobs if pid in job.pids), None)
    if job is not None:
        return job
    # pid 1 is the ancestor of everything
    below = [job for job in census.jobs if pid > 1 and tree.descends_from(job.root_pid, pid)]
    if len(below) == 1:
        return below[0]
    if below:
        names = ", ".join(sorted(job.name for job in below))
        raise UsageError(f"pid {pid} started several training runs: {names}", "specify one")
    hidden = next((one for one in census.unreadable if one.pid == pid), None)
    if hidden is not None:
        raise NoSuchJobError(f"pid {pid} cannot be inspected", hidden.reason)
    if procs.start_ticks(pid) is None:
        raise NoSuchJobError(f"no process {pid} on this machine", HINT)
    raise NoSuchJobError(f"pid {pid} is not recognized as training", HINT)


def find_again(job: ForeignJob, census: Census) -> ForeignJob | None:
    """The same job in a later census; None if it is gone.

    Two jobs are the same if they share a rank or the launcher, so a job survives both a restart of
    its ranks and the death of its launcher. Ranks take precedence over the launcher.
    """
    found = [(_shared(job, other), other) for other in census.jobs]
    shared, best = max(found, key=lambda item: item[0], default=((0, False), None))
    return best if any(shared) else None


def has_same_rank(one: ForeignJob, other: ForeignJob) -> bool:
    """Whether a rank of both is the same process."""
    return _shared(one, other)[0] > 0


def _shared(one: ForeignJob, other: ForeignJob) -> tuple[int, bool]:
    """(number of ranks that are the same processes, whether the launcher is)."""
    ranks = {(rank.pid, rank.start_ticks) for rank in one.ranks}
    others = {(rank.pid, rank.start_ticks) for rank in other.ranks}
    roots = [(job.root_pid, job.root_start_ticks) for job in (one, other)]
    same = roots[0] == roots[1] or roots[0] in others or roots[1] in ranks
    return len(ranks & others), same
