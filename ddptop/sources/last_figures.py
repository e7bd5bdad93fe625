"""The last figures of a foreign job that is watched, for when its processes are gone."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ddptop_runner.foreign.types import ForeignView
from ddptop_runner.model.snapshot import GpuSample, RankSample


class LastFigures:
    """Remembers each rank and the devices as long as there is something to see of them."""

    def __init__(self) -> None:
        self._job: str | None = None
        self._ranks: dict[int, RankSample] = {}
        self._gpus: Sequence[GpuSample] = ()

    def follow(self, job: str | None) -> None:
        """Remember this job's; another one's are forgotten."""
        if job != self._job:
            self._job, self._gpus = job, ()
            self._ranks.clear()

    def fill(self, view: ForeignView) -> ForeignView:
        """The view of the followed job; once it is gone, with the figures that it had last."""
        if view.job != self._job:
            return view
        snapshot = view.snapshot
        if view.is_live:
            seen = {rank.rank: rank for rank in snapshot.ranks if rank.rss_bytes is not None}
            if seen:
                self._ranks.update(seen)
                self._gpus = snapshot.gpus
            return view
        ranks = [
            msgspec.structs.replace(
                self._ranks.get(rank.rank, rank), state=rank.state, state_reason=rank.state_reason
            )
            for rank in snapshot.ranks
        ]
        gpus = list(self._gpus or snapshot.gpus)
        snapshot = msgspec.structs.replace(snapshot, ranks=ranks, gpus=gpus)
        return msgspec.structs.replace(view, snapshot=snapshot)
