"""Alerts: pure findings on one snapshot's ranks, with the time since which each holds.

Those on balance and devices are in `balance.findings`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

import msgspec

from ddptop_runner.base.units import has_or_have, is_or_are, name_gpus, name_ranks
from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import Alert, GpuSample, NodeStatus, Pause, RankSample
from ddptop_runner.model.words import Severity

LINGER_S = 5.0
"""How long an alert with a `hold_s` remains after it is no longer found."""

RECALLED_LINGER_S = 90.0
"""How long an alert of an earlier supervisor remains: until it could have been found again."""

MOST_HOSTS = 4
"""Number of hosts to name in one sentence."""

EARLY_EXIT_HOLD_S = 3.0
EARLY_EXIT_STEPS = 2
"""A difference of one step may be due to a last message sent just before the end."""

LONGEST_GAP_S = 5.0
"""The most time that one update adds to how long a finding has held."""

_WORST_FIRST: tuple[Severity, ...] = ("error", "warning", "info")


class Finding(msgspec.Struct, frozen=True):
    """An alert without a time."""

    id: str
    severity: Severity
    message: str
    ranks: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    hold_s: float = 0.0
    """How long it must hold before it is shown."""
    has_event: bool = False
    """Whether an event has already reported it."""
    host: str | None = None
    """The devices' host, in a job on several machines."""
    since: dt.datetime | None = None
    """When it began, if that is known better than when it was found."""
    evidence: Mapping[str, float | None] = {}
    """The figures that it rests on, by name with unit."""


def find(ranks: Sequence[RankSample]) -> list[Finding]:
    """Findings on ranks that require attention."""
    found = []
    for loss_state, name in (("nan", "NaN"), ("inf", "infinite")):
        lost_it = [rank for rank in ranks if rank.loss_state == loss_state]
        if lost_it:
            bad = tuple(rank.rank for rank in lost_it)
            message = f"the loss on {name_ranks(bad)} is {name}{_since_step(lost_it)}"
            found.append(Finding(f"loss-{loss_state}", "error", message, bad))
    hung = tuple(rank.rank for rank in ranks if rank.state == "hung")
    if hung:
        message = f"{name_ranks(hung)} {is_or_are(hung)} not making progress"
        found.append(Finding("hung", "error", message, hung))
    paused = tuple(rank.rank for rank in ranks if rank.state == "paused")
    if paused:
        whom = "them" if len(paused) > 1 else "it"
        message = (
            f"{name_ranks(paused)} {is_or_are(paused)} paused{_whereabouts(ranks, paused)} by a"
            f" signal (SIGCONT resumes {whom})"
        )
        found.append(Finding("paused", "warning", message, paused))
    found += _early_exits(ranks)
    return found


def _since_step(ranks: Sequence[RankSample]) -> str:
    """` since step 1,203, first on rank 2`; in DDP, the others follow a step later."""
    steps = sorted((rank.loss_bad_since or 0, rank.rank) for rank in ranks if rank.loss_bad_since)
    if not steps:
        return ""
    step, number = steps[0]
    who = f", first on rank {number}" if len(steps) > 1 and steps[1][0] > step else ""
    return f" since {run_step.in_words(ranks[0], step)}{who}"


def _whereabouts(ranks: Sequence[RankSample], numbers: Sequence[int]) -> str:
    """` on b at train.py:12` for ranks of one host, if there are several, or at one place."""
    found = [rank for rank in ranks if rank.rank in numbers]
    hosts, places = {rank.host for rank in found}, {rank.stands_at for rank in found}
    on = f" on {hosts.pop()}" if len(hosts) == 1 < len({rank.host for rank in ranks}) else ""
    at = f" at {place}" if len(places) == 1 and (place := places.pop()) else ""
    return on + at


def lost(gpus: Sequence[GpuSample]) -> list[Finding]:
    """Devices of one host that the driver cannot reach."""
    gone = tuple(gpu.index for gpu in gpus if gpu.lost)
    if not gone:
        return []
    message = f"{name_gpus(gone)} {is_or_are(gone)} lost"
    return [Finding("gpu-lost", "error", message, gpus=gone)]


REPORTED_BY_EVENTS = frozenset({"node-unreachable", "node-lost"})
"""Findings that have their own events."""


def of_nodes(nodes: Sequence[NodeStatus]) -> list[Finding]:
    """Nodes that are unreachable or were given up."""
    found = []
    away = [node for node in nodes if node.state == "unreachable"]
    gone = [node for node in nodes if node.state == "lost"]
    if away:
        who = _hosts_since(away)
        ranks = tuple(sorted(rank for node in away for rank in node.ranks))
        whose = "their" if len(away) > 1 else "its"
        doing = f": {whose} {name_ranks(ranks, compact=True)} may be training" if ranks else ""
        message = f"{who}{doing}{_reason(away)}"
        found.append(Finding("node-unreachable", "warning", message, ranks, has_event=True))
    if gone:
        hosts = ", ".join(node.host for node in gone)
        message = f"{hosts} {is_or_are(gone)} lost{_reason(gone)}"
        found.append(Finding("node-lost", "warning", message, has_event=True))
    return found


def _hosts_since(nodes: Sequence[NodeStatus]) -> str:
    """`b has been unreachable since 12:03`."""
    since = min((node.unknown_since for node in nodes if node.unknown_since), default=None)
    hosts = ", ".join(node.host for node in nodes[:MOST_HOSTS])
    more = f" and {len(nodes) - MOST_HOSTS} more" if len(nodes) > MOST_HOSTS else ""
    when = "" if since is None else f" since {since.astimezone():%H:%M}"
    return f"{hosts}{more} {has_or_have(nodes)} been unreachable{when}"


def _reason(nodes: Sequence[NodeStatus]) -> str:
    why = next((node.why for node in nodes if node.why), None)
    return f" ({why})" if why else ""


def stalled(pause: Pause | None, *, has_event: bool) -> list[Finding]:
    """The warning that a job pauses for longer than usual.

    Args:
        pause: None while there are steps.
        has_event: whether an event reports it.
    """
    if pause is None or pause.state != "stalled":
        return []
    why = "" if pause.reason is None else f": {pause.reason}"
    ranks, since = tuple(pause.ranks), pause.since
    return [
        Finding("stalled", "warning", f"no steps{why}", ranks, has_event=has_event, since=since)
    ]


def _early_exits(ranks: Sequence[RankSample]) -> list[Finding]:
    """A rank that exited with status 0 while others train on or wait for it in a collective.

    Ranks may normally end seconds apart, since one may save the model or finish its log.
    """
    alive = [rank for rank in ranks if rank.state in ("running", "quiet", "paused", "hung")]
    found = []
    for rank in ranks:
        if rank.state != "exited" or not any(_goes_on_without(rank, other) for other in alive):
            continue
        at = "" if rank.step is None else f" at {run_step.in_words(rank)}"
        verb = "continue" if len(alive) > 1 else "continues"
        others = name_ranks([other.rank for other in alive])
        message = f"rank {rank.rank} exited with status 0{at} while {others} {verb}"
        id_ = f"early-exit-{rank.rank}"
        found.append(Finding(id_, "warning", message, (rank.rank,), hold_s=EARLY_EXIT_HOLD_S))
    return found


def _goes_on_without(gone: RankSample, other: RankSample) -> bool:
    if other.phase == "collective":
        return True
    ahead = None if None in (gone.step, other.step) else (other.step or 0) - (gone.step or 0)
    return ahead is not None and ahead >= EARLY_EXIT_STEPS


class _Held(msgspec.Struct):
    """A finding with the time of its first occurrence."""

    finding: Finding
    since: dt.datetime
    held_s: float = 0.0
    missing_s: float = 0.0
    shown: bool = False
    linger_s: float = 0.0
    """How long it remains after it is no longer found."""


class AlertBook:
    """Tracks since when each finding holds, and shows it once it has held long enough.

    A finding with `hold_s` 0 is shown at once and starts over whenever it returns. One that must
    hold also starts over until it is shown; it then remains for `LINGER_S` after it is no longer
    found, so that borderline figures do not make it flicker.
    """

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._updated_s: float | None = None

    def recall(self, shown: Sequence[Alert]) -> None:
        """Restore the alerts of an earlier supervisor, which are not new."""
        for alert in shown:
            finding = msgspec.convert(alert, Finding, from_attributes=True)
            self._held[alert.id] = _Held(
                finding, alert.since, shown=True, linger_s=RECALLED_LINGER_S
            )

    def update(
        self, found: Sequence[Finding], now: dt.datetime, now_s: float | None = None
    ) -> tuple[list[Alert], list[Alert]]:
        """(all present alerts, worst first; the new ones among them).

        Args:
            found: the present findings.
            now: the wall clock.
            now_s: a monotonic clock, in seconds, to measure how long findings hold; defaults to
                `now`.
        """
        now_s = now.timestamp() if now_s is None else now_s
        # what held during a longer gap (a suspended machine) is unknown
        passed_s = 0.0 if self._updated_s is None else min(now_s - self._updated_s, LONGEST_GAP_S)
        self._updated_s = now_s
        held: dict[str, _Held] = {}
        new: list[_Held] = []
        for finding in found:
            one = self._held.get(finding.id)
            if one is None:
                one = _Held(finding, now)
            else:
                one.finding, one.missing_s = finding, 0.0
                one.held_s += max(0.0, passed_s)
            one.linger_s = LINGER_S if finding.hold_s else 0.0
            held[finding.id] = one
            if not one.shown and one.held_s >= finding.hold_s:
                one.shown = True
                new.append(one)
        for id_, one in self._held.items():
            if id_ in held:
                continue
            one.missing_s += max(0.0, passed_s)
            if one.shown and one.linger_s and one.missing_s <= one.linger_s:
                held[id_] = one
        self._held = held
        shown = [_alert(one) for one in held.values() if one.shown]
        shown.sort(key=lambda alert: _WORST_FIRST.index(alert.severity))
        return shown, [_alert(one) for one in new]


def _alert(held: _Held) -> Alert:
    dated = msgspec.structs.replace(held.finding, since=held.finding.since or held.since)
    return msgspec.convert(dated, Alert, from_attributes=True)
