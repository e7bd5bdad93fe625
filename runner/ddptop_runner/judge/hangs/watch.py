"""Keeps the state of the hang verdict between samples, across attempts and supervisors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddptop_runner.base.spans import name_ranks
from ddptop_runner.judge.hangs import notes
from ddptop_runner.judge.hangs.following import Following, held_up, is_warm, what_it_does
from ddptop_runner.judge.hangs.learned import Learned
from ddptop_runner.judge.hangs.pause import Facts, awaited, begins_after_s, pause_state, reason
from ddptop_runner.judge.hangs.types import HangLook, HangVerdict, RankProgress, SeenPause, Standing
from ddptop_runner.judge.hangs.verdict import UNEXPLAINED, Judgement, judge
from ddptop_runner.model.words import Phase

LONGEST_LOOK_S = 3.0
"""The most that one look adds to any time: of a longer gap (a supervisor that was stopped, a
suspended machine) nobody knows what happened in it."""

HEAR_S = 10.0
"""A supervisor that is started again hears each probe within this time; what a rank does is not
known before."""
DEAF_S = 20.0
"""When no probe at all is heard for this long, it may be the socket that is gone."""

_NO_TRAINING: frozenset[Phase] = frozenset({"start", "compile", "evaluation", "checkpoint", "end"})
"""Times between steps in which one of these happened are not usual ones."""


class HangWatch:
    """Looks at a group's progress once a second.

    Args:
        timeout_s: seconds without progress that are allowed; None with `auto` False: off.
        auto: learn the time allowed from the run.
    """

    def __init__(self, timeout_s: float | None, *, auto: bool = False) -> None:
        self._timeout_s = timeout_s
        self._auto = auto and timeout_s is None
        self._learned = Learned()
        self._clock_s = 0.0
        self._looked_s: float | None = None
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """The group was started anew: what was learned stays, what was seen does not."""
        self._ranks: dict[int, Following] = {}
        self._stalled = False
        self._acted = False
        self._before: Judgement | None = None
        self._stepless_s = 0.0
        self._done_meanwhile: set[Phase] = set()
        """What was done since the last step."""
        self._was_paused = False
        """Whether a signal has paused a rank since the last step."""

    def forget(self, rank: int) -> None:
        """Another process is that rank from now on."""
        self._ranks.pop(rank, None)

    def look(self, ranks: Sequence[RankProgress], now_s: float, *, hung: bool = False) -> HangLook:
        """What this moment says.

        Args:
            ranks: all ranks of the attempt.
            now_s: CLOCK_BOOTTIME.
            hung: whether a verdict was acted upon already.
        """
        real_s = 0.0 if self._looked_s is None else max(0.0, now_s - self._looked_s)
        passed_s = min(real_s, LONGEST_LOOK_S)
        self._looked_s = now_s
        self._clock_s += passed_s
        alive = [rank for rank in ranks if rank.alive]
        paused = tuple(rank.rank for rank in alive if rank.paused)
        known = [
            rank
            for rank in alive
            if rank.known and (rank.unheard_s is not None or self._clock_s > HEAR_S)
        ]
        ended = [rank for rank in ranks if not rank.alive]
        self._follow(known, ended, passed_s, now_s, gap=real_s > LONGEST_LOOK_S)
        if paused:
            self._begin_anew()
        standings = [self._ranks[rank.rank].standing(rank, self._clock_s) for rank in known]
        unknown = {
            rank.rank: note
            for rank in alive
            if rank.steps is None and (note := notes.of_unknown(rank)) is not None
        }
        if not standings:
            return HangLook(notes=unknown if self.is_on else {})
        judgement = judge(standings, ended, self._learned.rules(self._timeout_s))
        self._learn_pauses(judgement)
        self._learn_stops(standings, judgement, bool(paused))
        quiet = {} if paused else self._quiet(standings, judgement)
        explained = dict(unknown if self.is_on else {})
        explained.update(self._notes(standings, judgement, paused, quiet))
        if paused or len(known) < len(alive):
            why = f"{name_ranks(paused)} {notes.is_or_are(paused)} paused" if paused else None
            pause = self._stands(standings, why)
            return HangLook(quiet=quiet, pause=pause, notes=explained)
        if _is_deaf(standings):
            self._begin_anew()  # what happened meanwhile is not known
            deaf = [standing for standing in standings if standing.doing != "end"]
            explained.update({standing.rank.rank: notes.DEAF for standing in deaf})
            return HangLook(pause=self._stands(standings, notes.DEAF), notes=explained)
        pause = self._pause(standings, judgement, hung=hung)
        stalled = self.is_on and pause is not None and pause.state == "stalled"
        suspicion = judgement.tell() if stalled else None
        verdict = self._verdict(judgement)
        return HangLook(
            quiet=quiet, suspicion=suspicion, verdict=verdict, pause=pause, notes=explained
        )

    @property
    def is_on(self) -> bool:
        """Whether a verdict may come."""
        return self._auto or self._timeout_s is not None

    # -- what is seen ----------------------------------------------------------------------------

    def _follow(
        self,
        ranks: list[RankProgress],
        ended: list[RankProgress],
        passed_s: float,
        boottime_s: float,
        *,
        gap: bool,
    ) -> None:
        everyone = (*ranks, *ended)
        warm = is_warm(everyone, first_step=not self._auto)
        only_collectives = warm and not any(rank.steps for rank in everyone)
        waiting = held_up(everyone)
        trains = True
        for rank in ranks:
            followed = self._ranks.get(rank.rank)
            if followed is None:
                followed = self._ranks[rank.rank] = Following(self._clock_s)
            clean = followed.clean
            interval_s = followed.advance(rank, self._clock_s, passed_s, boottime_s)
            if interval_s is not None:
                if clean and warm and not gap:
                    self._learned.saw_interval(rank.rank, interval_s)
                followed.clean = not gap
            if followed.step_time_s is not None and not gap:
                self._learned.saw_step(followed.step_time_s)
            followed.step_time_s = None
            doing = what_it_does(
                rank,
                waits=rank.rank in waiting,
                warm=warm,
                only_collectives=only_collectives,
            )
            followed.use_cpu(rank, self._clock_s, gap=gap)
            followed.note_signs(rank, doing, self._clock_s)
            trains = trains and doing not in _NO_TRAINING
        if not trains:
            for followed in self._ranks.values():
                followed.clean = False

    def _begin_anew(self) -> None:
        """Of a rank that a person has stopped, or that is not heard, no wait counts."""
        for followed in self._ranks.values():
            followed.begin_anew(self._clock_s)
        self._before = None

    def _learn_pauses(self, judgement: Judgement) -> None:
        before, self._before = self._before, judgement
        if before is not None and judgement.idle_s < before.idle_s:
            self._learned.saw_pause(before.decides.doing, before.idle_s)
        if before is None or judgement.silent_s < before.silent_s:  # it goes on
            self._stalled = self._acted = False

    def _learn_stops(
        self, standings: list[Standing], judgement: Judgement, is_paused: bool
    ) -> None:
        """Keep how long this job's own pauses last, by what is done in them."""
        stepless_s = min(standing.stepless_s for standing in standings)
        if stepless_s < self._stepless_s:
            if self._stepless_s >= self._begins_after_s and not self._was_paused:
                for doing in self._done_meanwhile:
                    self._learned.saw_stop(doing, self._stepless_s)
            self._done_meanwhile.clear()
            self._was_paused = False
        self._stepless_s = stepless_s
        self._done_meanwhile.add(judgement.decides.doing)
        self._was_paused = self._was_paused or is_paused

    @property
    def _begins_after_s(self) -> float:
        return begins_after_s(self._learned.usual_step_s)

    # -- what is said ----------------------------------------------------------------------------

    def _quiet(self, standings: list[Standing], judgement: Judgement) -> dict[int, float]:
        """Ranks whose silence is longer than usual, and not explained."""
        found = {}
        culprits = judgement.culprits
        for standing in standings:
            number = standing.rank.rank
            if standing.doing not in UNEXPLAINED:
                continue
            waits = standing.doing == "collective" and culprits.named
            if waits and number not in culprits.ranks:
                continue
            known = self._learned.interval(number) is not None
            if known and standing.silent_s >= self._begins_after_s:
                found[number] = standing.silent_s
        return found

    def _notes(
        self,
        standings: list[Standing],
        judgement: Judgement,
        paused: tuple[int, ...],
        quiet: dict[int, float],
    ) -> dict[int, str]:
        found = dict.fromkeys(paused, "paused by a signal")
        for standing in standings:
            number = standing.rank.rank
            if number in found:
                continue
            interval = self._learned.interval(number)
            if number in quiet and interval is not None:
                found[number] = notes.of_quiet(standing, interval)
            elif note := notes.of_silent(standing, judgement.culprits, paused):
                found[number] = note
        return found

    def _stands(self, standings: list[Standing], why: str | None) -> SeenPause | None:
        """A pause of which no more is known than how long it lasts."""
        if not any(standing.rank.steps for standing in standings):
            return None
        if self._stepless_s < self._begins_after_s:
            return None
        return SeenPause("no_step", self._stepless_s, why)

    def _pause(
        self, standings: list[Standing], judgement: Judgement, *, hung: bool
    ) -> SeenPause | None:
        decides = judgement.decides
        has_stepped = any(standing.rank.steps for standing in standings)
        only_collectives = decides.doing in UNEXPLAINED and is_warm(
            [standing.rank for standing in standings], first_step=True
        )
        found = pause_state(
            Facts(
                stepless_s=self._stepless_s,
                usual_s=self._learned.usual_step_s,
                idle_s=judgement.idle_s,
                longest_s=self._learned.longest_pause_s.get(decides.doing),
                awaited_idle=judgement.culprits.proven and decides.busy is False,
                spent=judgement.used if self.is_on else 0.0,
                stalled_before=self._stalled,
                hung=hung,
                begun=has_stepped or only_collectives,
            )
        )
        self._stalled = self._stalled or found == "stalled"
        if found is None:
            return None
        ranks = awaited(judgement, standings)
        return SeenPause(found, self._stepless_s, reason(judgement, standings), ranks)

    def _verdict(self, judgement: Judgement) -> HangVerdict | None:
        if not self.is_on or not judgement.hangs:
            return None
        if self._auto and not self._acted:
            self._acted = True
            self._learned.acted()
        return judgement.tell()

    # -- over supervisors ------------------------------------------------------------------------

    def remember(self) -> dict[str, Any]:
        """What the watch of a supervisor that is started again has to know; JSON-serialisable."""
        return {
            **self._learned.remember(),
            "ranks": {
                str(number): followed.remember(self._clock_s)
                for number, followed in self._ranks.items()
            },
        }

    def recall(self, memory: dict[str, Any]) -> None:
        """Go on with what `remember` gave; anything malformed is left out."""
        self._learned.recall(memory)
        ranks = memory.get("ranks")
        for number, kept in ranks.items() if isinstance(ranks, dict) else ():
            if number.isdecimal() and isinstance(kept, dict):
                followed = self._ranks[int(number)] = Following(self._clock_s)
                followed.recall(kept, self._clock_s)


def _is_deaf(standings: list[Standing]) -> bool:
    """Whether nothing is heard of ranks that work, so that their progress is not known."""
    return all(
        (standing.rank.unheard_s or 0.0) > DEAF_S and not standing.is_still
        for standing in standings
    )
