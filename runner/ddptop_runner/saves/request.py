"""Asks the ranks to save now, in a way that can never end one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddptop_runner.paths import RunFolder
from ddptop_runner.rank_table import RankRecord


@dataclass(frozen=True)
class SaveAsked:
    """How the ranks were asked."""

    signalled: dict[int, str]
    """Rank -> name of the signal that it got."""
    flag_file: str
    """Path of the file that was made for scripts that look for it (DDPTOP_CHECKPOINT_FILE)."""


def ask(folder: RunFolder, records: Sequence[RankRecord]) -> SaveAsked:
    """Signal each rank that handles a signal for it, and make the flag file."""
    raise NotImplementedError
