"""Which rank is to blame: the order of exits, victims, ranks that exit early, and missing ranks."""

from __future__ import annotations

import pytest

from ddptop_runner.judge.causes.culprit import RankEnd, find
from ddptop_runner.model.diagnose import PythonException, RankExit

BUG = PythonException("ValueError", "bad", "a.py:1")
LOST = PythonException("RuntimeError", "gloo: Connection closed by peer [127.0.0.1]:65", "a.py:2")
WAITED = PythonException("RuntimeError", "Timed out waiting 8000ms for recv operation", "a.py:2")
HTTP = PythonException("ConnectionResetError", "[Errno 104] Connection reset by peer", "a.py:3")
WATCHDOG = "[Rank 0] Some NCCL operations have failed or timed out.\n"


def end(
    rank: int,
    code: int | None,
    at_s: float,
    exception: PythonException | None = None,
    *,
    by_us: bool = False,
    tail: str = "",
    step: int | None = None,
    entered: int | None = None,
    paused: bool = False,
    leaving: bool = False,
) -> RankEnd:
    exit_ = RankExit(rank, 1000 + rank, code, at_s, by_us)
    return RankEnd(*(exit_, exception, tail, step), entered=entered, paused=paused, leaving=leaving)


CASES = {
    "nobody failed": ([end(0, 0, 1), end(1, 0, 2)], None),
    "no exit at all": ([], None),
    "the earliest": ([end(0, 1, 2, BUG), end(1, -9, 1)], (1, "failed", None)),
    "the earliest by a millisecond": (
        [end(0, 1, 1.002, BUG), end(1, 1, 1.001, BUG), end(2, 1, 1.003, BUG)],
        (1, "failed", None),
    ),
    "not the victim that died before": (
        [end(0, 1, 1, LOST), end(1, 1, 2, BUG)],
        (1, "failed", None),
    ),
    "not those that were ended": ([end(0, -15, 1, by_us=True), end(1, 3, 2)], (1, "failed", None)),
    "an unknown status counts as failed": ([end(0, 0, 1), end(1, None, 2)], (1, "failed", None)),
    "one that was killed, whatever its log says": (
        [end(0, -9, 1, tail="gloo Connection closed by peer\n"), end(1, 1, 2, BUG)],
        (0, "failed", None),
    ),
    "a shell's word for a kill": ([end(0, 137, 1), end(1, 1, 2, LOST)], (0, "failed", None)),
    "NCCL's watchdog is no cause": (
        [end(0, -6, 1, tail=WATCHDOG), end(1, 1, 2, BUG)],
        (1, "failed", None),
    ),
    "what the log said long before is no sign": (
        [end(0, 1, 1, tail=WATCHDOG + "step\n" * 100), end(1, 1, 2, BUG)],
        (0, "failed", None),
    ),
    "SIGTERM from outside is a cause, whatever its log says": (
        [end(0, -15, 1, tail=WATCHDOG), end(1, 1, 2, BUG)],
        (0, "failed", None),
    ),
    "aborted while going down after an exception": (
        [end(0, -6, 1, LOST), end(1, -6, 2, BUG)],
        (1, "failed", None),
    ),
    "a rank that had raised, and was ended while going down": (
        [end(0, 1, 1, LOST), end(1, -15, 2, BUG, by_us=True)],
        (1, "raised", 0),
    ),
    "an exception that was handled is none, by its exit status": (
        [end(0, 3, 1, LOST), end(1, 1, 2, LOST)],
        (0, "failed", None),
    ),
    "left with 0": ([end(1, 0, 1), end(0, 1, 2, LOST)], (1, "left", 0)),
    "left with 0, and was slow to go": ([end(0, 1, 1, LOST), end(1, 0, 1.2)], (1, "left", 0)),
    "about to leave when it was ended": (
        [end(0, 1, 1, LOST), end(1, -15, 2, by_us=True, leaving=True)],
        (1, "left", 0),
    ),
    "the first of those that left": (
        [end(2, 0, 1.5), end(1, 0, 1), end(0, 1, 2, LOST)],
        (1, "left", 0),
    ),
    "one that left explains no error of another's own": (
        [end(1, 0, 1), end(0, 1, 2, BUG)],
        (0, "failed", None),
    ),
    "ended by us with 0 is not leaving": (
        [end(0, 1, 1, LOST), end(1, 0, 2, by_us=True)],
        (0, "victim", None),
    ),
    "the only one that did not come": (
        [end(0, 1, 1, WAITED), end(1, -15, 2, by_us=True)],
        (1, "missing", 0),
    ),
    "the one that entered fewer collectives": (
        [
            end(0, 1, 1, WAITED, entered=7),
            end(1, -15, 2, by_us=True, entered=7),
            end(2, -15, 2, by_us=True, entered=6),
        ],
        (2, "missing", 0),
    ),
    "the one that took fewer steps": (
        [
            end(0, 1, 1, WAITED),
            end(1, -15, 2, by_us=True, step=4),
            end(2, -15, 2, by_us=True, step=5),
        ],
        (1, "missing", 0),
    ),
    "the one that is paused": (
        [
            end(0, 1, 1, WAITED),
            end(1, -9, 2, by_us=True, step=5, paused=True),
            end(2, -15, 2, by_us=True, step=5),
        ],
        (1, "missing", 0),
    ),
    "nothing tells which did not come": (
        [
            end(0, 1, 1, WAITED),
            end(1, -15, 2, by_us=True, step=5),
            end(2, -15, 2, by_us=True, step=5),
        ],
        (0, "victim", None),
    ),
    "of victims alone the earliest": (
        [end(1, 1, 2, LOST), end(0, 1, 1, LOST)],
        (0, "victim", None),
    ),
    "a connection to elsewhere that broke": (
        [end(0, 1, 1, LOST), end(1, 1, 2, HTTP)],
        (1, "failed", None),
    ),
    "a bug before a broken connection": (
        [end(0, 1, 1, HTTP), end(1, 1, 2, BUG)],
        (1, "failed", None),
    ),
    "all were ended by us": (
        [end(0, -15, 2, by_us=True), end(1, -15, 1, by_us=True)],
        (1, "failed", None),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_whom_to_blame(case):
    ends, expected = case
    for order in (ends, ends[::-1]):
        found = find(order)
        told = None
        if found is not None:
            victim = None if found.victim is None else found.victim.rank
            told = (found.end.rank, found.how, victim)
        assert told == expected
