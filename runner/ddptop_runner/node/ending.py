"""Finds a job's guardian and supervisor without its files, and ends a job without them."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.base.start import own_words
from ddptop_runner.host import procs
from ddptop_runner.model.snapshot import ProcessId


def guards_of(folder: RunFolder, owner: int) -> list[ProcessId]:
    """All guardians and supervisors that run from this folder."""
    running = map(procs.identify, procs.all_pids())
    return [process for process in running if is_guard(process, folder, owner)]


def is_guard(process: ProcessId, folder: RunFolder, owner: int) -> bool:
    """Whether a process is this job's guardian or supervisor, running as the job's owner."""
    words = own_words(procs.argv(process.pid))[:2]
    return (
        words in (["guardian", str(folder.path)], ["supervisor", str(folder.path)])
        and procs.uid_of(process.pid) == owner
        and procs.is_alive(process)
    )


def end_here(guards: Sequence[ProcessId], job_id: str, owner: int, grace_s: float) -> bool:
    """End a job without its guardian and supervisor; returns whether there was a process."""
    import asyncio  # takes 50 ms, which `wait` and `rm` can do without

    from ddptop_runner.host import stopping, tree
    from ddptop_runner.job.processes import agent_processes, alive, rank_processes

    below = [pid for guard in guards for pid in tree.descendants_of(guard.pid)]
    known = [procs.identify(pid) for pid in below]

    def find() -> list[ProcessId]:
        ranks = rank_processes(job_id, owner)
        return [*alive(known), *ranks, *agent_processes(job_id, owner)]

    found = bool(guards or find())
    for guard in guards:  # the guardian first: it would restart the supervisor
        procs.signal_process(guard, signal.SIGKILL)
    asyncio.run(stopping.end(find, grace_s))
    return found


def is_stopped(process: ProcessId) -> bool:
    """Whether SIGSTOP or a debugger has paused the process."""
    return procs.state_letter(process.pid) in ("T", "t")


def restore_folder(folder: RunFolder) -> bool:
    """Recreate a run folder that was deleted while its job runs; returns whether it was.

    The job's supervisor fills it within a second.
    """
    if os.path.lexists(folder.path) or not guards_of(folder, os.geteuid()):
        return False
    folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return True
