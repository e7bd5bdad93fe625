"""Simulated runs built from recorded progress: scaled, disturbed, and optionally with a rank that
freezes.

Models real runs, and how a network, a scheduler, and a user disturb them. Knows nothing about how
hangs are detected.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ddptop_runner.judge.hangs.verdict import RankProgress

SAMPLES = Path(__file__).parents[1] / "unit" / "judge" / "progress"
PROBE_S = 1.3
"""How long after its start a phase was recognized, which does not change in a slower run."""


@dataclass(frozen=True)
class Trace:
    """One recorded run."""

    name: str
    times_s: list[float]
    looks: list[list[dict[str, Any]]]

    @property
    def seconds(self) -> float:
        return self.times_s[-1]

    @property
    def trained_s(self) -> float:
        """When the last progress was made: an interpreter exits equally fast in a slower run."""
        return max(
            at_s - rank.get("since_progress_s", 0.0)
            for at_s, look in zip(self.times_s, self.looks, strict=True)
            for rank in look
        )


@cache
def read(name: str) -> Trace:
    with gzip.open(SAMPLES / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return Trace(name, [line["t"] for line in lines], [line["ranks"] for line in lines])


def names() -> list[str]:
    return sorted(path.name.partition(".")[0] for path in SAMPLES.glob("*.jsonl.gz"))


@dataclass(frozen=True)
class Moment:
    """One update of a simulated run."""

    now_s: float
    """CLOCK_BOOTTIME."""
    ranks: list[RankProgress]
    stands_s: float | None = None
    """How long a rank has been frozen, if one is."""
    supervisor_died: bool = False
    """Whether this is the first update after a supervisor restart."""
    attempt_began: bool = False


@dataclass
class Disturbances:
    """The disturbances of a simulated run."""

    scale: float = 1.0
    """How much slower than recorded the run is."""
    jitter: float = 0.0
    """How unevenly the run's seconds pass."""
    drops: float = 0.0
    """The share of updates without a new report from a rank."""
    stops_at: dict[float, float] = field(default_factory=dict)
    """{share of the run: seconds without a supervisor}."""
    suspends_at: dict[float, float] = field(default_factory=dict)
    """{share of the run: seconds for which the machine was suspended}."""
    pauses_at: dict[float, float] = field(default_factory=dict)
    """{share of the run: seconds for which a user paused a rank}."""
    deaf_at: dict[float, float] = field(default_factory=dict)
    """{share of the run: seconds without a report from any rank}."""
    dies_at: tuple[float, ...] = ()
    """The shares of the run at which the supervisor was restarted."""
    attempts: int = 1
    freeze_at: float | None = None
    """The share of the run at which a rank freezes for good."""
    frozen_rank: int = 1


def disturbed(chance: random.Random, scale: float) -> Disturbances:
    """Disturbances that can occur in a healthy run."""

    def moments(most: int, longest_s: float) -> dict[float, float]:
        return {
            chance.random(): chance.uniform(2, longest_s) for _ in range(chance.randint(0, most))
        }

    return Disturbances(
        scale=scale,
        jitter=chance.uniform(0.0, 0.5),
        drops=chance.choice([0.0, 0.1, 0.5]),
        stops_at=moments(2, 600),
        suspends_at=moments(1, 7200),
        pauses_at=moments(1, 120),
        deaf_at=moments(1, 900),
        dies_at=tuple(chance.random() for _ in range(chance.randint(0, 2))),
        attempts=1 if scale > 20 else chance.choice([1, 1, 2]),
    )


def live(trace: Trace, what: Disturbances, chance: random.Random) -> Iterator[Moment]:
    """A simulated run, update by update."""
    now_s = chance.uniform(1e3, 1e6)
    died = False
    for attempt in range(what.attempts):
        ranks = [_Rank(trace, number, what.scale) for number in range(len(trace.looks[0]))]
        events = sorted(
            [(at, "stop", s) for at, s in what.stops_at.items()]
            + [(at, "suspend", s) for at, s in what.suspends_at.items()]
            + [(at, "pause", s) for at, s in what.pauses_at.items()]
            + [(at, "deaf", s) for at, s in what.deaf_at.items()]
            + [(at, "die", 0.0) for at in what.dies_at]
        )
        run_s, paused_s, deaf_s, frozen_s = 0.0, 0.0, 0.0, None
        tempo, began = 1.0, True
        paused_rank = chance.randrange(len(ranks))
        while run_s <= trace.seconds or frozen_s is not None:
            look_s = chance.uniform(0.98, 1.1)
            if frozen_s is not None and frozen_s > 60:
                look_s *= 2.5  # a busy machine, with fewer updates
            share = run_s / trace.seconds
            moves_s = look_s * tempo / (what.scale if run_s < trace.trained_s else 1.0)
            tempo = min(1.5, max(0.6, tempo + chance.uniform(-0.2, 0.2) * what.jitter))
            while events and events[0][0] <= share and frozen_s is None:
                _, kind, seconds = events.pop(0)
                if kind == "stop":
                    look_s += seconds
                    moves_s += seconds / what.scale
                elif kind == "suspend":
                    look_s += seconds
                elif kind == "pause":
                    paused_s = seconds
                elif kind == "deaf":
                    deaf_s = seconds
                else:
                    died = True
            now_s += look_s
            if what.freeze_at is not None and share >= what.freeze_at and frozen_s is None:
                frozen_s = 0.0
            if paused_s > 0:
                paused_s, moves_s = paused_s - look_s, 0.0
            elif frozen_s is not None:
                frozen_s, moves_s = frozen_s + look_s, 0.0
            run_s += moves_s
            deaf_s -= look_s
            seen = []
            for rank in ranks:
                forgets = died or (not began and (deaf_s > 0 or chance.random() < what.drops))
                seen.append(rank.at(min(run_s, trace.seconds), look_s, chance, stale=forgets))
            if died:  # what the new supervisor reads from the old one's snapshot
                seen = [
                    dataclasses.replace(one, phase=None, enqueued={}, completed={}, unheard_s=None)
                    for one in seen
                ]
            if paused_s > 0 and seen[paused_rank].alive:
                seen[paused_rank] = dataclasses.replace(seen[paused_rank], paused=True)
            if frozen_s is not None:
                seen = _frozen(seen, what.frozen_rank, frozen_s)
            yield Moment(now_s, seen, frozen_s, died, began and attempt > 0)
            died = began = False


class _Rank:
    """One rank of a trace, at any time between its recorded samples."""

    def __init__(self, trace: Trace, number: int, scale: float) -> None:
        self._times_s = trace.times_s
        self._looks = [look[number] for look in trace.looks]
        self._scale = scale
        self._last: RankProgress | None = None
        self._silent_s = 0.0
        """Since anything changed: the times of a rank that stands still go on."""
        self._run_s = 0.0
        self._unheard_s = 0.0

    def at(
        self, run_s: float, look_s: float, chance: random.Random, *, stale: bool
    ) -> RankProgress:
        """Its progress at that second of the run.

        Args:
            run_s: seconds of the recorded run.
            look_s: seconds since the look before, as clocks tell.
            chance: for the time of its last datagram.
            stale: nothing new is heard of it.
        """
        stood_s = look_s - (run_s - self._run_s) * self._scale
        self._run_s = run_s
        self._silent_s += max(0.0, stood_s)
        before = self._last
        index = max(0, bisect_right(self._times_s, run_s) - 1)
        here = self._looks[index]
        there = self._looks[min(index + 1, len(self._looks) - 1)]
        span_s = self._times_s[min(index + 1, len(self._looks) - 1)] - self._times_s[index]
        part = min(1.0, (run_s - self._times_s[index]) / span_s) if span_s > 0 else 0.0
        part = max(0.0, part)
        values: dict[str, Any] = {
            "alive": False,
            "paused": False,
            "steps": here["steps"],
            **{name: value for name, value in here.items() if name != "paused"},
        }
        since_s = here.get("since_progress_s", 0.0) + part * span_s
        collected = part
        steps, next_steps = here["steps"], there["steps"]
        if steps is not None and next_steps is not None and next_steps > steps:
            # steps between two samples were evenly spaced, and the last one is as recorded
            last_s = -here.get("since_progress_s", 0.0)
            next_s = span_s - there.get("since_progress_s", 0.0)
            apart_s = (next_s - last_s) / (next_steps - steps)
            taken = int((part * span_s - last_s) / apart_s) if apart_s > 0 else 0
            taken = max(0, min(next_steps - steps, taken))
            values["steps"] = steps + taken
            since_s = max(0.0, part * span_s - (last_s + taken * apart_s))
            # so were the collectives
            collected = max(0.0, min(1.0, (part * span_s - last_s) / max(1e-6, next_s - last_s)))
        stood = self._silent_s if before is not None and values["steps"] == before.steps else 0.0
        self._silent_s = stood
        values["since_progress_s"] = since_s * self._scale + stood
        values["phase_s"] = (here.get("phase_s", 0.0) + part * span_s) * self._scale
        self._recognize(values, run_s)
        for name in ("batches", "written_bytes"):
            if here.get(name) is not None and there.get(name) is not None:
                values[name] = int(here[name] + part * (there[name] - here[name]))
        if here.get("cpu_s") is not None:
            used_s = there.get("cpu_s", here["cpu_s"]) - here["cpu_s"]
            values["cpu_s"] = self._scale * (here["cpu_s"] + part * used_s)
        for name in ("enqueued", "completed"):
            counts, later = here.get(name, {}), there.get(name, {})
            values[name] = {
                group: int(count + collected * (later.get(group, count) - count))
                for group, count in counts.items()
            }
        recorded_s = here.get("unheard_s")
        if recorded_s is not None and recorded_s <= 5.0:
            values["unheard_s"] = chance.uniform(0.0, 5.0)
        seen = RankProgress(**values)
        if stale and before is not None:  # the process itself is still observed
            seen = dataclasses.replace(
                before,
                alive=seen.alive,
                exited_with=seen.exited_with,
                cpu_s=seen.cpu_s,
                written_bytes=seen.written_bytes,
                since_progress_s=before.since_progress_s + look_s,
                phase_s=before.phase_s + look_s,
                unheard_s=None if before.unheard_s is None else before.unheard_s + look_s,
            )
        self._last = seen
        return seen

    def _recognize(self, values: dict[str, Any], run_s: float) -> None:
        """What the probe reports about a pause, as soon after its start as it was recorded."""
        ahead_s = run_s + PROBE_S * (1 - 1 / self._scale)
        index = bisect_right(self._times_s, ahead_s)
        if index >= len(self._looks):
            return
        soon = self._looks[index]
        if soon["steps"] == values["steps"] and soon.get("phase") not in (None, "steps", "start"):
            began_s = self._times_s[index] - soon.get("phase_s", 0.0) - PROBE_S
            if run_s >= began_s:
                values["phase"] = soon["phase"]
                values["phase_s"] = (run_s - began_s) * self._scale
                values["stands_at"] = soon.get("stands_at")


def _frozen(ranks: list[RankProgress], number: int, stands_s: float) -> list[RankProgress]:
    """One rank stops doing anything, and all others end up waiting for it.

    Args:
        ranks: of a moment that does not pass.
        number: the rank.
        stands_s: for how long.
    """
    frozen = ranks[number]
    entered = frozen.enqueued.get("0")
    if entered is None:
        return ranks
    return [
        one
        if one is frozen or not one.alive or "0" not in one.enqueued
        else dataclasses.replace(
            one,
            phase="collective" if stands_s > 5 else one.phase,
            phase_s=max(0.0, stands_s - 5),
            enqueued={**one.enqueued, "0": entered + 1},
            completed={**one.completed, "0": entered},
        )
        for one in ranks
    ]
