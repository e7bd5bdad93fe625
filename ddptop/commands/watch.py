"""`ddptop watch`: the job screen for training that ddptop did not start."""

from __future__ import annotations

from ddptop_runner.base.errors import NoSuchJobError, UsageError
from ddptop_runner.base.units import whole
from ddptop_runner.devices.report import sample_once
from ddptop_runner.foreign.census import HostCensus, resolve
from ddptop_runner.foreign.types import ForeignJob
from ddptop_runner.host import procs
from ddptop_runner.job.registry import JobView, all_jobs
from ddptop_runner.job.registry import resolve as resolve_own


def find(target: str) -> JobView | ForeignJob:
    """Return the job with this PID or name; ddptop's own jobs come before foreign ones.

    Raises:
        NoSuchJobError: no job has this pid or name.
        UsageError: several jobs match.
    """
    if (own := _own(target)) is not None:
        return own
    return resolve(target, HostCensus().scan(sample_once().gpus))


def _own(target: str) -> JobView | None:
    """Ddptop's own job with this process, name, or prefix; digits are not taken as a prefix."""
    if (pid := whole(target)) is not None:
        live = (view for view in all_jobs() if view.is_live and not view.on_other_host)
        found = next((view for view in live if pid in procs.pids_of_job(view.spec.job_id)), None)
        if found is not None:
            return found
    try:
        named = resolve_own(target)
    except NoSuchJobError:
        return None
    return named if named.job == target or not target.isdigit() else None


def run(target: str, *, readonly: bool, terminal: bool, ascii_only: bool | None = None) -> int:
    """Show the job until the user quits; return the exit status.

    Raises:
        NoSuchJobError: no job has this pid or name.
        UsageError: several jobs match, or there is no terminal.
    """
    found = find(target)
    if not terminal:
        raise UsageError("watch needs a terminal", "use ddptop ps in scripts")
    from ddptop.commands import attach

    if isinstance(found, JobView):
        return attach.run(found.job, readonly=readonly, ascii_only=ascii_only)
    return attach.run(None, watched=found, readonly=readonly, ascii_only=ascii_only)
