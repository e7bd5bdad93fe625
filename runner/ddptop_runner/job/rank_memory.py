"""What a snapshot keeps of the ranks for the next supervisor, besides samples and state."""

from __future__ import annotations

from typing import Any

import msgspec

from ddptop_runner.model.words import Base


class RanksMet(Base, frozen=True, kw_only=True):
    """What a command's ranks said of their numbers."""

    numbered: list[int] = []
    """Pids of ranks that know no rank themselves."""
    told_size: int | None = None
    """The world size, as the ranks say."""
    former_steps: int | None = None
    """The most steps of any process that is no rank any more."""


class RankMemory(Base, frozen=True, kw_only=True):
    """`memory["group"]`. Times are CLOCK_BOOTTIME."""

    last_step_s: dict[int, float] = {}
    """By rank."""
    ranks_met: RanksMet | None = None
    """None of a job that is no command."""


def read_memory(memory: dict[str, Any]) -> RankMemory:
    """What an earlier supervisor's snapshot keeps; empty where that cannot be understood."""
    try:
        return msgspec.convert(memory.get("group") or {}, RankMemory, str_keys=True)
    except msgspec.ValidationError:
        return RankMemory()
