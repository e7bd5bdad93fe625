"""Alerts: pure findings over one snapshot's ranks, with the time since which each holds."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from ddptop_runner.model import Alert, GpuSample, RankSample, Severity


@dataclass(frozen=True)
class Finding:
    """An alert without its time."""

    id: str
    severity: Severity
    message: str
    ranks: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    hold_s: float = 0.0
    """For how long it must hold before it is shown."""


def _ranks_in_words(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def find(ranks: Sequence[RankSample], gpus: Sequence[GpuSample]) -> list[Finding]:
    """What a person should look at, worst first."""
    found = []
    for loss_state, name in (("nan", "NaN"), ("inf", "infinite")):
        bad = tuple(rank.rank for rank in ranks if rank.loss_state == loss_state)
        if bad:
            message = f"the loss of {_ranks_in_words(bad)} is {name}"
            found.append(Finding(f"loss-{loss_state}", "error", message, bad))
    lost = tuple(gpu.index for gpu in gpus if gpu.lost)
    if lost:
        names = ", ".join(map(str, lost))
        message = f"GPUs {names} are lost" if len(lost) > 1 else f"GPU {names} is lost"
        found.append(Finding("gpu-lost", "error", message, gpus=lost))
    hung = tuple(rank.rank for rank in ranks if rank.state == "hung")
    if hung:
        verb = "make" if len(hung) > 1 else "makes"
        message = f"{_ranks_in_words(hung)} {verb} no progress"
        found.append(Finding("hung", "error", message, hung))
    paused = tuple(rank.rank for rank in ranks if rank.state == "paused")
    if paused:
        verb = "are" if len(paused) > 1 else "is"
        message = f"{_ranks_in_words(paused)} {verb} paused by a signal (SIGCONT lets it go on)"
        found.append(Finding("paused", "warning", message, paused))
    quiet = tuple(rank.rank for rank in ranks if rank.state == "quiet")
    if quiet:
        message = f"{_ranks_in_words(quiet)} took no step for much longer than usual"
        found.append(Finding("quiet", "info", message, quiet))
    return found


class AlertBook:
    """Remembers since when each finding holds; a finding that goes and comes back begins anew."""

    def __init__(self) -> None:
        self._since: dict[str, dt.datetime] = {}

    def update(self, found: Sequence[Finding], now: dt.datetime) -> tuple[list[Alert], list[Alert]]:
        """(all alerts that hold now, those among them that are new)."""
        before = self._since
        self._since = {finding.id: before.get(finding.id, now) for finding in found}
        alerts = [
            Alert(
                id=finding.id,
                severity=finding.severity,
                ranks=list(finding.ranks),
                gpus=list(finding.gpus),
                message=finding.message,
                since=self._since[finding.id],
            )
            for finding in found
        ]
        return alerts, [alert for alert in alerts if alert.id not in before]
