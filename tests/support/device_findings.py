"""Jobs checked as a whole: the expected finding, or none."""

from __future__ import annotations

from tests.support.device_jobs import (
    JOB,
    change,
    change_all,
    make_job,
    of_rank,
)

from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.balance.findings import find
from ddptop_runner.model.snapshot import GpuSample, RankSample

RANKS, GPUS = make_job()
Case = tuple[list[RankSample], list[GpuSample]]


def the(case: Case, id_: str) -> Finding:
    """The only finding, which must have this ID."""
    found = find(*case, JOB)
    assert [finding.id for finding in found] == [id_], found
    return found[0]


def assert_healthy(case: Case) -> None:
    """Asserts that there is no finding."""
    assert find(*case, JOB) == []


def with_strays(ranks: list[int], gib: float | None = 0.5, on: int = 0) -> Case:
    """Those ranks also use this much memory on that device."""
    strays = [of_rank(rank, gib) for rank in ranks]
    return RANKS, change(GPUS, {on: {"processes": [of_rank(on), *strays]}})


UNSTEPPED = change_all(RANKS, step=None)
