"""Which process of a launched command is which rank."""

from __future__ import annotations

import pytest

from ddptop_runner.job.command_ranks import KnownRank, Newcomer, Seating, seat


def known(rank: int, pid: int, **fields: object) -> KnownRank:
    return KnownRank(**{"rank": rank, "pid": pid, "alive": True, "stepped": True} | fields)  # type: ignore[arg-type]


RANK_0 = known(0, 10)
UNNUMBERED = known(0, 10, numbered=True, start_ticks=100)

CASES = {
    "the first of its rank is that rank": (Newcomer(10, 1), [RANK_0], Seating(1, takes=True)),
    "one that was known speaks for itself": (Newcomer(10, 0), [RANK_0], Seating(0)),
    "also when it has forgotten its rank": (Newcomer(10, None), [RANK_0], Seating(0)),
    "one that learns another rank moves": (Newcomer(10, 3), [RANK_0], Seating(3, takes=True)),
    "a new process of a dead rank replaces it": (
        Newcomer(20, 0),
        [known(0, 10, alive=False)],
        Seating(0, takes=True),
    ),
    "a stranger does not replace a living one": (Newcomer(20, 0), [RANK_0], None),
    "a child of a rank that steps is nobody": (Newcomer(11, 0), [RANK_0], None),
    "a child speaks for a rank that never stepped": (
        Newcomer(11, 0),
        [known(0, 10, stepped=False)],
        Seating(0),
    ),
    "a parent takes the rank that its child had": (
        Newcomer(10, 0),
        [known(0, 11)],
        Seating(0, takes=True),
    ),
    "rank -1 is no rank": (Newcomer(20, -1), [], Seating(0, takes=True, numbered=True)),
    "the only one that knows no rank is rank 0": (
        Newcomer(20, None),
        [],
        Seating(0, takes=True, numbered=True),
    ),
    "one that knows no rank is nobody beside those that do": (Newcomer(20, None), [RANK_0], None),
    "but it is one once they are gone": (
        Newcomer(20, None),
        [known(0, 10, alive=False)],
        Seating(0, takes=True, numbered=True),
    ),
    "a child that knows no rank speaks for its parent": (
        Newcomer(11, None),
        [known(4, 10, stepped=False)],
        Seating(4),
    ),
    "a second one comes after the first": (
        Newcomer(20, None, start_ticks=200),
        [UNNUMBERED],
        Seating(1, takes=True, numbered=True),
    ),
    "or before it, where it was started earlier": (
        Newcomer(20, None, start_ticks=50),
        [UNNUMBERED],
        Seating(0, takes=True, numbered=True, moved=((10, 1),)),
    ),
    "a younger one takes the number of one that ended": (
        Newcomer(30, None, start_ticks=300),
        [known(0, 10, alive=False, numbered=True), known(1, 20, numbered=True, start_ticks=200)],
        Seating(0, takes=True, numbered=True),
    ),
    "one that knows its rank takes it from one that was only numbered": (
        Newcomer(20, 0),
        [UNNUMBERED],
        Seating(0, takes=True),
    ),
    "one that was numbered learns the same rank": (Newcomer(10, 0), [UNNUMBERED], Seating(0)),
}
PARENTS = {11: 10, 12: 11}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_who_is_who(case):
    new, known, expected = case
    assert seat(new, known, lambda pid, ancestor: PARENTS.get(pid) == ancestor) == expected
