"""Named findings: how a job's ranks sit on its devices, and what is wrong with that.

Pure functions over joined samples (see `rank_devices.join`), for ddptop's own jobs and for those
that it did not start. What is not known makes no finding.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddptop_runner.alerts import Finding
from ddptop_runner.findings_help import explain
from ddptop_runner.model import GpuSample, RankSample

__all__ = ["explain", "find"]


def find(
    ranks: Sequence[RankSample], gpus: Sequence[GpuSample], job: str, *, given: bool = True
) -> list[Finding]:
    """What is wrong with the job's balance and devices, worst first.

    Each finding says for how long it has to hold before it is shown (`hold_s`): see AlertBook.

    Args:
        ranks: the job's ranks on this host, joined with their devices.
        gpus: the job's devices; each process of the job carries `job` (and its rank, where it has
            one), so that any other is somebody else's.
        job: the job's name, as in `GpuProcess.job`.
        given: whether `gpus` were given to the job (--gpus, CUDA_VISIBLE_DEVICES). False where
            they are only what it happens to see: then one that it leaves alone is no finding.
    """
    return []
