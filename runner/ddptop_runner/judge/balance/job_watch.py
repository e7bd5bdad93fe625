"""All alerts of one job."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ddptop_runner.judge import alerts
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.balance import findings
from ddptop_runner.judge.training import findings as training
from ddptop_runner.judge.training import workers
from ddptop_runner.judge.training.window import Window
from ddptop_runner.model.snapshot import Alert, NodeSnapshot, Resume

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
        self.resume = snapshot.resume
        found = [*alerts.find(snapshot.ranks), *extra, *alerts.of_nodes(snapshot.nodes)]
        found += _on_devices(snapshot, given=given)
        if snapshot.state in _AT_WORK:
            self._window.update(snapshot, now_s)
            self.resume = self.resume or training.resumed(self._window, snapshot.checkpoint)
            if now_s >= self._found_until_s:
                self._found = training.find(self._window, self.resume)
                self._found_until_s = now_s + len(snapshot.ranks) / RANKS_PER_S
            found += self._found
        else:
            self._found_until_s = now_s
        return self._book.update(found, snapshot.ts, now_s)


def _on_devices(snapshot: NodeSnapshot, *, given: bool) -> list[Finding]:
    """What is wrong with devices, host by host, since each host numbers its own from 0."""
    hosts = sorted({rank.host for rank in snapshot.ranks})
    found = []
    for host in hosts if len(hosts) > 1 else [None]:
        ranks = [rank for rank in snapshot.ranks if host in (None, rank.host)]
        gpus = [gpu for gpu in snapshot.gpus if host in (None, gpu.host)]
        here = alerts.lost(gpus)
        if snapshot.state in _AT_WORK:
            here += findings.find(ranks, gpus, snapshot.job, given=given)
        for one in here:
            id_, message = f"{one.id}@{host}", f"{host}: {one.message}"
            on_host = msgspec.structs.replace(one, id=id_, host=host, message=message)
            found.append(one if host is None else on_host)
    return found
