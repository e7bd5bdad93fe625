"""Where the ranks of a foreign job stand, on request, through py-spy."""

from __future__ import annotations

from collections.abc import Sequence

from ddptop_runner.evidence import RankStacks
from ddptop_runner.foreign.types import ForeignRank

DUMP_TIMEOUT_S = 10.0


def take(ranks: Sequence[ForeignRank], timeout_s: float = DUMP_TIMEOUT_S) -> list[RankStacks]:
    """The Python stacks of each rank; `note` says why where there are none.

    Blocks up to `timeout_s` for all ranks together: call it outside of any loop that draws. No
    process is paused.
    """
    raise NotImplementedError
