"""The hang verdict as a table."""

from __future__ import annotations

import pytest

from ddptop_runner.hangs.types import RankProgress
from ddptop_runner.hangs.verdict import START_FLOOR_S, is_quiet, verdict


def rank(number: int, steps: int | None, quiet_s: float, **changes: bool) -> RankProgress:
    state = {"alive": True, "paused": False, **changes}
    return RankProgress(number, state["alive"], state["paused"], steps, quiet_s)


BEHIND = [rank(0, 40, 61), rank(1, 39, 62), rank(2, 40, 61)]
CASES = {
    # (ranks, seconds allowed) -> ranks to look at first, or None for no verdict
    "one is behind": (BEHIND, 60.0, (1,)),
    "all stand at one step": ([rank(0, 40, 61), rank(1, 40, 61)], 60.0, (0, 1)),
    "not longer than allowed": ([rank(0, 40, 60), rank(1, 39, 60)], 60.0, None),
    "one still steps": ([rank(0, 40, 0.5), rank(1, 39, 600)], 60.0, None),
    "off": (BEHIND, None, None),
    "a paused rank is a person's doing": ([*BEHIND, rank(3, 40, 61, paused=True)], 60.0, None),
    "a paused rank that ended meanwhile is not": (
        [*BEHIND, rank(3, 40, 61, paused=True, alive=False)],
        60.0,
        (1,),
    ),
    "ranks that ended are not waited for": (
        [rank(0, 12, 1, alive=False), rank(1, 9, 61)],
        60.0,
        (1,),
    ),
    "nobody lives": ([rank(0, 12, 99, alive=False)], 60.0, None),
    "no ranks": ([], 60.0, None),
    "no probe, no verdict": ([rank(0, None, 999), rank(1, None, 999)], 60.0, None),
    "one probe is enough to know of progress": ([rank(0, None, 999), rank(1, 3, 1)], 60.0, None),
    "the first step may take minutes": ([rank(0, 0, 299), rank(1, 0, 299)], 60.0, None),
    "but not for ever": ([rank(0, 0, 301), rank(1, 0, 301)], 60.0, (0, 1)),
    "a longer allowance holds for the start too": ([rank(0, 0, 400)], 500.0, None),
    "once one has stepped the start is over": ([rank(0, 0, 61), rank(1, 1, 61)], 60.0, (0,)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_verdict(case):
    ranks, timeout_s, expected = case
    found = verdict(ranks, timeout_s)
    assert (None if found is None else found.ranks) == expected


def test_the_message_names_who_is_behind_and_what_was_allowed():
    found = verdict(BEHIND, 60.0)
    assert found is not None
    assert found.quiet_s == 61
    assert found.message == (
        "no rank took a step for 61 s (allowed: 60 s); rank 1 stopped at step 39, the others at 40"
    )


def test_the_message_of_a_start_that_hangs_says_what_was_allowed():
    found = verdict([rank(0, 0, 301), rank(1, 0, 302)], 20.0)
    assert found is not None
    assert f"allowed: {START_FLOOR_S:g} s); all ranks stand at step 0" in found.message


def test_several_behind():
    found = verdict([rank(0, 1, 99), rank(1, 1, 99), rank(2, 2, 99)], 60.0)
    assert found is not None
    assert "ranks 0, 1 stopped at step 1" in found.message


@pytest.mark.parametrize(
    ("since_s", "step_time_s", "quiet"),
    [
        (9.0, 0.01, False),
        (10.1, 0.01, True),
        (29.0, 3.0, False),
        (31.0, 3.0, True),
        (9999.0, None, False),
    ],
)
def test_quiet_is_measured_in_the_ranks_own_steps(since_s, step_time_s, quiet):
    assert is_quiet(since_s, step_time_s) is quiet
