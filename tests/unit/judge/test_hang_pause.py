"""Running, no step, stalled, hung, as one table, and the text about a pause."""

from __future__ import annotations

import pytest
from tests.support.hang_ranks import Life, rank, standing

from ddptop_runner.judge.hangs.verdict import Limits, judge, pause_state, reason
from ddptop_runner.judge.hangs.watch import HangWatch

STATES = {
    # (stepless_s, usual_s, other facts) -> state
    "steps come": (0.3, 0.1, {}, None),
    "a short pause": (14.9, 0.1, {}, None),
    "longer than usual": (15.0, 0.1, {}, "no_step"),
    "slow steps": (59.0, 20.0, {}, None),
    "slow steps, three of them": (60.0, 20.0, {}, "no_step"),
    "before a usual step is known": (16.0, None, {}, "no_step"),
    "a start has no pauses": (900.0, None, {"begun": False}, None),
    "a start that is nearly over its time": (
        9.0,
        None,
        {"begun": False, "stalled": True},
        "stalled",
    ),
    "a short time that was asked for": (5.0, 0.1, {"stalled": True}, "stalled"),
    "the verdict": (200.0, 0.1, {"hung": True, "stalled": True}, "hung"),
}


@pytest.mark.parametrize("case", STATES.values(), ids=list(STATES))
def test_state(case):
    stepless_s, usual_s, facts, expected = case
    assert pause_state(stepless_s, usual_s, **{"stalled": False, **facts}) == expected


ENTERED = {"doing": "collective", "at": (9, 8)}
PLACE = "/home/me/train.py:79 in step"

REASONS = {
    "rank 0 is saving or loading a checkpoint": [
        standing(0, doing="checkpoint"),
        standing(1, **ENTERED),
    ],
    "rank 0 is evaluating": [
        *(standing(0, doing="evaluation"), standing(1), standing(2, **ENTERED))
    ][::2],
    "all ranks are evaluating": [standing(0, doing="evaluation"), standing(1, doing="evaluation")],
    "rank 0 is compiling": [standing(0, doing="compile")],
    "ranks 0, 2 are waiting for data": [
        standing(0, doing="data"),
        standing(1, **ENTERED),
        standing(2, doing="data"),
    ],
    "waiting for rank 1, last seen at train.py:79": [
        standing(0, **ENTERED),
        standing(1, at=(8, 8), stands_at=PLACE),
        standing(2, **ENTERED),
    ],
    "rank 0 is waiting for rank 1": [standing(0, **ENTERED), standing(1, at=(8, 8))],
    "last seen at train.py:79": [standing(0, stands_at=PLACE), standing(1, stands_at=PLACE)],
    None: [standing(0), standing(1)],
}


@pytest.mark.parametrize("words", REASONS)
def test_what_is_known_of_it(words):
    ranks = REASONS[words]
    assert reason(judge(ranks, [], Limits(None, {})), ranks) == words


# -- whole pauses of healthy jobs ------------------------------------------------------------------


def alone(fields):
    """Rank 0 is busy for a while; rank 1 waits in a collective."""

    def ranks(steps, stood_s):
        at = 3 * steps
        zero = rank(0, steps, stood_s, at=(at, at), phase_s=stood_s, **fields(stood_s))
        return [zero, rank(1, steps, stood_s, at=(at + 1, at), phase="steps", cpu_s=5.0)]

    return ranks


HEALTHY = {
    # what rank 0 does for 40 s, three times, with or without signs of activity
    "evaluation": lambda s: {"phase": "evaluation", "batches": int(s), "cpu_s": s},
    "an evaluation that shows nothing": lambda s: {"phase": "evaluation", "cpu_s": 5.0},
    "checkpoint": lambda s: {"phase": "checkpoint", "written_bytes": int(s) * 10**6, "cpu_s": 5.0},
    "a checkpoint on a slow disk": lambda s: {"phase": "checkpoint", "cpu_s": 5.0},
    "what no phase has a name for": lambda s: {"phase": "steps", "cpu_s": s},
    "waiting for a server": lambda s: {"phase": "steps", "cpu_s": 5.0},
    "data": lambda s: {"phase": "data", "cpu_s": 5.0},
}


@pytest.mark.parametrize("timeout_s", [None, 60.0])
@pytest.mark.parametrize("name", HEALTHY)
def test_pause_of_40_s_on_one_rank_is_shown_without_a_warning(name, timeout_s):
    life, ranks = Life(HangWatch(timeout_s, auto=True)), alone(HEALTHY[name])
    step = life.train(20, (0, 1))
    for _ in range(3):
        states = []
        for second in range(1, 41):
            looked = life.look(ranks(step, float(second)))
            states.append(None if looked.pause is None else looked.pause.state)
            assert looked.suspicion is None and looked.verdict is None
        assert states == [None] * 14 + ["no_step"] * 26
        # the time to a verdict is shown for what has no explanation
        unexplained = name in ("what no phase has a name for", "waiting for a server")
        assert (looked.pause.left_s is not None) is unexplained
        for _ in range(20):
            step += 10
            looked = life.look(rank(n, step, 0.0, at=(3 * step, 3 * step)) for n in range(2))
            assert looked.pause is None


def test_rank_paused_by_a_user_is_reported_and_not_learned_from():
    life = Life(HangWatch(None, auto=True))
    step = life.train(20, (0, 1))
    for second in range(1, 400):
        looked = life.look(
            [rank(0, step, second, paused=True), rank(1, step, second, phase="collective")]
        )
    assert (looked.pause.state, looked.pause.reason) == ("no_step", "rank 0 is paused")
    assert looked.suspicion is None
    life.look(rank(n, step + 10, 0.0) for n in range(2))
    assert not life.watch.remember().longest_idle_s
