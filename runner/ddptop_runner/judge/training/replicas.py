"""Whether the replicas of a DistributedDataParallel job still have equal weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ddptop_runner.base.units import name_ranks
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.model.snapshot import RankSample, WeightHashes

MAX_INCOMPLETE = 8
"""The latest looks that not all ranks have reported yet; they report only the last of theirs."""


STEPS_APART, REPORTED_APART_S = 3, 0.5
"""How far apart the steps of ranks in one snapshot are that train together: each reports its own
at another time."""


class Replicas:
    """What the looks at the weights of one attempt have shown."""

    def __init__(self) -> None:
        self._is_uneven = False
        """Whether ranks have taken more steps than others, as in `model.join()`: equal steps are
        then not the same ones."""
        self._looks: dict[int, dict[int, WeightHashes]] = {}
        """By step and rank, those after `latest`."""
        self.latest: dict[int, WeightHashes] = {}
        """By rank, those of the last step that is known of all ranks."""
        self.equal_at: int | None = None
        """The last step after which the replicas were equal."""
        self.differ_at: int | None = None
        """The first one after that at which they were not; None while they are."""
        self.groups: list[str] = []
        """The names of the groups of parameters."""

    def add(self, ranks: Sequence[RankSample]) -> None:
        """Add what the living ranks have reported last."""
        if any(rank.weight_hashes is None or rank.ddp_world_size != len(ranks) for rank in ranks):
            return
        if not ranks:
            return
        steps = [rank.step or 0 for rank in ranks]
        reported = STEPS_APART + REPORTED_APART_S * max(rank.steps_per_s or 0.0 for rank in ranks)
        self._is_uneven = self._is_uneven or max(steps) - min(steps) > reported
        if self._is_uneven:
            return
        self.groups = next((rank.weight_groups for rank in ranks if rank.weight_groups), [])
        for rank in ranks:
            if (hashes := rank.weight_hashes) is not None:
                self._looks.setdefault(hashes.step, {})[rank.rank] = hashes
        for step in sorted(self._looks):
            if len(self._looks[step]) == len(ranks):
                self._compare(step, self._looks[step])
                self._looks = {at: one for at, one in self._looks.items() if at > step}
        for step in sorted(self._looks)[:-MAX_INCOMPLETE]:
            del self._looks[step]

    def _compare(self, step: int, looks: dict[int, WeightHashes]) -> None:
        if len({one.layout for one in looks.values()}) > 1:
            return
        self.latest = looks
        if len({tuple(one.groups) for one in looks.values()}) == 1:
            self.equal_at, self.differ_at = step, None
        elif self.differ_at is None:
            self.differ_at = step


def diverged(replicas: Replicas, ranks: Sequence[RankSample]) -> list[Finding]:
    """Some replicas have other weights than most, or all have their own."""
    step, latest = replicas.differ_at, replicas.latest
    if step is None:
        return []
    (most, count), *_ = Counter(tuple(one.groups) for one in latest.values()).most_common()
    apart = tuple(rank for rank, one in sorted(latest.items()) if tuple(one.groups) != most)
    columns = zip(*(one.groups for one in latest.values()), strict=False)
    first = next(i for i, hashes in enumerate(columns) if len(set(hashes)) > 1)
    where = f" (first in {replicas.groups[first]})" if first < len(replicas.groups) else ""
    began = next(((rank.run_step or 0) - (rank.step or 0) for rank in ranks if rank.run_step), 0)
    who = f"the weights on {name_ranks(apart)} differ from the others'"
    if 2 * count <= len(latest):
        apart, who = tuple(sorted(latest)), "the ranks' weights differ"
    message = (
        f"{who} since step {began + step:,}{where}, so they no longer train one model: does the "
        "script change weights on one rank, or call model.module where it should call the model?"
    )
    evidence = {
        "differ_at_step": began + step,
        "equal_at_step": None if replicas.equal_at is None else began + replicas.equal_at,
    }
    return [Finding("diverged-weights", "warning", message, apart, evidence=evidence)]
