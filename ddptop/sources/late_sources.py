"""Sources that the first frame does not need: each is imported when it is first asked.

Used by the collector's thread alone.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddptop.sources.compare import CompareSource
    from ddptop.sources.foreign import ForeignSource
    from ddptop.sources.rank import RankSource
    from ddptop.sources.recent import RecentSource
    from ddptop.sources.replay import ReplaySource
    from ddptop.sources.story import StorySource
    from ddptop_runner.foreign.types import ForeignJob


class LateSources:
    """One of each, for the collector's life."""

    def __init__(self, watched: ForeignJob | None) -> None:
        """`watched` is the foreign job that the user selected."""
        self._watched = watched

    @functools.cached_property
    def foreign(self) -> ForeignSource:
        """Training that ddptop did not start."""
        from ddptop.sources.foreign import ForeignSource

        return ForeignSource(self._watched)

    @property
    def asked_foreign(self) -> ForeignSource | None:
        """The foreign source if it has been used; else None."""
        return self.foreign if "foreign" in vars(self) else None

    @functools.cached_property
    def ranks(self) -> RankSource:
        """One rank over time."""
        from ddptop.sources.rank import RankSource

        return RankSource()

    @functools.cached_property
    def recent(self) -> RecentSource:
        """A job's last minutes."""
        from ddptop.sources.recent import RecentSource

        return RecentSource()

    @functools.cached_property
    def stories(self) -> StorySource:
        """A job's attempts."""
        from ddptop.sources.story import StorySource

        return StorySource()

    @functools.cached_property
    def compared(self) -> CompareSource:
        """Jobs on one axis."""
        from ddptop.sources.compare import CompareSource

        return CompareSource()

    @functools.cached_property
    def replays(self) -> ReplaySource:
        """A job as it was."""
        from ddptop.sources.replay import ReplaySource

        return ReplaySource()
