"""The Python stacks of one rank."""

from __future__ import annotations

from ddptop_runner.model.base import Base


class RankStacks(Base, frozen=True, kw_only=True):
    """Where one rank stands."""

    rank: int
    pid: int | None = None
    text: str | None = None
    """faulthandler's or py-spy's words; None where none could be had."""
    note: str | None = None
    """Why there is no text."""
    loader: str | None = None
    """Stacks of its data loader's processes, one after the other, while it waits for them."""
