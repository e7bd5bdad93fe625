"""All alerts of one job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec

from ddptop_runner.judge import alerts
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.balance import findings
from ddptop_runner.judge.training import findings as training
from ddptop_runner.judge.training import workers
from ddptop_runner.judge.training.window import Window
from ddptop_runner.model.snapshot import Alert, GpuSample, NodeSnapshot, RankSample, Resume

_AT_WORK = ("starting", "running", "hung")
"""States in which ranks should be on their devices."""
RANKS_PER_S = 64
"""Findings on the training are made anew at most for so many ranks a second."""


class JobWatch:
    """The alerts of one job. Keep one per job, and update it about once per second.

    Args:
        available_bytes: returns the memory that this host has left; None if unknown.
    """

    def __init__(self, available_bytes: Callable[[], int | None] = lambda: None) -> None:
        self._window = Window(available_bytes)
        self.resume: Resume | None = None
        """What came back when the attempt resumed; None if unknown."""
        self._book = alerts.AlertBook()
        self._found: list[Finding] = []
        """On the training, until the time below."""
        self._found_until_s = 0.0

    def recall(self, shown: Sequence[Alert]) -> None:
        """Continue with the alerts that an earlier supervisor has shown."""
        self._book.recall(shown)
        self._window.is_late = True

    def note_workers(self, stacks: str) -> None:
        """Take the stacks of loader processes that a rank waits for."""
        self._window.workers = workers.in_words(stacks)

    def update(
        self,
        snapshot: NodeSnapshot,
        now_s: float,
        *,
        given: bool = True,
        extra: Sequence[Finding] = (),
    ) -> tuple[list[Alert], list[Alert]]:
        """(alerts to show, the new ones among them), worst first.

        Args:
            snapshot: the job now; its `alerts` are ignored.
            now_s: a monotonic clock, in seconds.
            given: see `findings.find`.
            extra: findings from elsewhere.
        """
        ranks, gpus, job = snapshot.ranks, snapshot.gpus, snapshot.job
        self.resume = snapshot.resume
        several = len({rank.host for rank in ranks}) > 1
        found = [*alerts.find(ranks, () if several else gpus), *extra]
        found += alerts.of_nodes(snapshot.nodes)
        if snapshot.state in _AT_WORK:
            if not several:
                found += findings.find(ranks, gpus, job, given=given)
            self._window.update(snapshot, now_s)
            self.resume = self.resume or training.resumed(self._window, snapshot.checkpoint)
            if now_s >= self._found_until_s:
                self._found = training.find(self._window, self.resume)
                self._found_until_s = now_s + len(ranks) / RANKS_PER_S
            found += self._found
        else:
            self._found_until_s = now_s
        if several:
            found += _of_each_host(snapshot, given=given)
        return self._book.update(found, snapshot.ts, now_s)


def _of_each_host(snapshot: NodeSnapshot, *, given: bool) -> list[Finding]:
    """What is wrong with devices, host by host, since each host numbers its own from 0."""
    ranks_of: dict[str, list[RankSample]] = defaultdict(list)
    gpus_of: dict[str | None, list[GpuSample]] = defaultdict(list)
    for rank in snapshot.ranks:
        ranks_of[rank.host].append(rank)
    for gpu in snapshot.gpus:
        gpus_of[gpu.host].append(gpu)
    found = []
    for host, ranks in sorted(ranks_of.items()):
        gpus = gpus_of[host]
        here = alerts.lost(gpus)
        if snapshot.state in _AT_WORK:
            here += findings.find(ranks, gpus, snapshot.job, given=given)
        found += [
            msgspec.structs.replace(
                one, id=f"{one.id}@{host}", host=host, message=f"{host}: {one.message}"
            )
            for one in here
        ]
    return found
