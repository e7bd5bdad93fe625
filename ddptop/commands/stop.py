"""`ddptop stop` and `ddptop kill`: return when the last process has exited."""

from __future__ import annotations

from ddptop.commands.unguarded import taken_up
from ddptop.plain.output import say
from ddptop_runner.base.errors import DdptopError, WaitTimeoutError
from ddptop_runner.job.registry import JobView, read_job
from ddptop_runner.jobs import commands
from ddptop_runner.jobs.slurm_queue import find

END_ALLOWANCE_S = 60.0
"""Beyond the grace: evidence, leftovers, history. After it something is stuck in the kernel."""


def run(job: str, grace_s: float, *, save: bool = False, timeout_s: float | None = None) -> int:
    """End the job, politely for `grace_s` seconds; 0: at once.

    Args:
        job: its name.
        grace_s: between SIGTERM and SIGKILL.
        save: have it save first; where no checkpoint comes it is not ended.
        timeout_s: for the checkpoint; None: as `ddptop checkpoint`.
    """
    view = taken_up(find(job))
    if save and not _saved(view, timeout_s):
        return 0
    told = commands.stop(view, grace_s) if grace_s > 0 else commands.kill(view)
    if told is not None:
        say(f"ddptop: {told}")
    ended = commands.wait_until_ended(view, grace_s + END_ALLOWANCE_S)
    say(f"ddptop: {ended.job} {ended.state}")
    return 0


def _saved(view: JobView, timeout_s: float | None) -> bool:
    """Wait for a checkpoint; False where the job ended by itself once it had saved.

    Raises:
        DdptopError: when no checkpoint came: the job goes on.
    """
    from ddptop_runner.jobs import checkpoint as wanted

    try:
        saved = wanted.save(view, wanted.TIMEOUT_S if timeout_s is None else timeout_s)
    except WaitTimeoutError as error:
        raise DdptopError(
            f"{error.message}; {view.job} was not stopped and is still running",
            f"{error.hint}; use stop without --save to stop it anyway",
        ) from error
    say(f"ddptop: saved {saved.path}")
    view = read_job(view.folder)
    if not view.is_live:
        say(f"ddptop: {view.job} {view.state}")
    return view.is_live
