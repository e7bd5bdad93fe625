"""Looking once over this host for training that ddptop did not start, and naming what was meant."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddptop_runner.foreign.types import Census, ForeignJob
from ddptop_runner.model import GpuSample

IsOwn = Callable[[str], bool]
"""Whether a DDPTOP_JOB_ID is that of a job in this state folder."""


def is_own_job(job_id: str) -> bool:
    """Whether this state folder has the job of that DDPTOP_JOB_ID (`name@nonce`)."""
    raise NotImplementedError


class CensusTaker:
    """Takes a census again and again, keeping what is fixed for a process's life.

    Make one per viewer and use it from one thread: a repeated look costs a few milliseconds.
    """

    def __init__(self, own: IsOwn = is_own_job) -> None:
        """`own` tells which jobs are ddptop's own here; their processes are left out."""
        self._own = own

    def take(self, gpus: Sequence[GpuSample] = ()) -> Census:
        """All foreign training now; never raises.

        Args:
            gpus: the latest sample of the devices: its processes tell who holds which. Without
                it jobs are found by their environment and process tree only.
        """
        raise NotImplementedError

    def keep(self, job: ForeignJob) -> None:
        """Have every later census hold this job's processes as a job, recognised or not.

        For a process that a person pointed at (see `resolve`). It is forgotten once it is gone.
        """
        raise NotImplementedError


def resolve(text: str, census: Census, own: IsOwn = is_own_job) -> ForeignJob:
    """The foreign job that a person means by `text`.

    Args:
        text: the pid of any process of the job, the job's name, a unique prefix of it, or the
            script's name. A living pid that belongs to no recognised job is a job of one rank,
            with a note that says so; its facts are not in the census (see `CensusTaker.keep`).
        census: as just taken.
        own: as for `CensusTaker`.

    Raises:
        NoSuchJobError: nothing of that pid or name is there.
        UsageError: the name could be that of several jobs (the message lists them), or the
            process belongs to one of ddptop's own (the message names the verb for it).
    """
    raise NotImplementedError


def find_again(job: ForeignJob, census: Census) -> ForeignJob | None:
    """The same job in a later census, or None when it is not there any more.

    It is the same while its launcher or one of its ranks is the same process, so that a restart of
    the ranks and the death of the launcher both keep it.
    """
    raise NotImplementedError
