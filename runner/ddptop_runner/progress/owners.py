"""Whose a file is that a training logs to: pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ddptop_runner import procs
from ddptop_runner.trace_files.find import TraceFile


def rank_of(
    file: TraceFile, ranks: Mapping[int, Collection[int]], others: Collection[int] = ()
) -> int | None:
    """The rank that a file is taken for; None where another training writes it.

    Two trainings may log below one folder. A file whose name does not tell its writer is the first
    rank's: the others leave logging to it.

    Args:
        file: as it was found.
        ranks: pids of each rank and of what it started.
        others: pids that belong to the job and to no rank.
    """
    first = min(ranks, default=None)
    if file.pid is None or file.host is None:
        return first
    if file.host.split(".")[0] != procs.host_name():
        return None
    for rank, pids in ranks.items():
        if file.pid in pids:
            return rank
    return first if file.pid in others else None
