"""Determines which training writes a log file, and since when. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping

from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.host import procs
from ddptop_runner.reading.text.parser import Reading
from ddptop_runner.reading.trace_files.find import TraceFile


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


def written_at(reading: Reading, now: dt.datetime) -> dt.datetime:
    """When something was logged, by the file's own word; `now` where that says nothing or errs."""
    at_s = reading.written_at_s
    return utc_from_unix(at_s) if at_s is not None and 0 < at_s < now.timestamp() else now
