"""The paragraph that explains a failure: which rank, what, why, and how many failed after it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.tables import table

from ddptop_runner.base.paths import LAUNCHER
from ddptop_runner.host.oom import OomFinding
from ddptop_runner.judge.causes import culprit
from ddptop_runner.judge.causes.culprit import Culprit, RankEnd
from ddptop_runner.judge.causes.paragraph import LONGEST, Surroundings, XidReport, cause_of
from ddptop_runner.model.diagnose import Held, PythonException, RankExit

BUG = PythonException("ValueError", "bad", "a.py:1 in f")
LOST = PythonException("RuntimeError", "gloo: Connection closed by peer [127.0.0.1]:65", "a.py:2")
WAITED = PythonException("RuntimeError", "Timed out waiting 8000ms for recv", "a.py:2")
HERE = Surroundings()


def end(rank: int = 3, code: int | str = 1, by_us: bool = False, **known: Any) -> RankEnd:
    status = None if code == "unknown" else int(code)
    if isinstance(exception := known.get("exception"), dict):
        known["exception"] = PythonException(**exception)
    if held := known.pop("held", None):
        known["held"] = Held(**held)
    return RankEnd(RankExit(rank, 1000 + rank, status, float(rank), by_us), **known)


def told(*ends: RankEnd, around: Surroundings = HERE):
    blamed = culprit.find(ends)
    assert blamed is not None
    return cause_of(blamed, ends, around, "/e")


def surroundings(
    memory: str | None = None, killed: bool = True, xids: Any = (), **more: Any
) -> Surroundings:
    if memory is not None:
        more["killed_for_memory"] = lambda: OomFinding(killed, memory)
    return Surroundings(xids=[XidReport(one["gpu"], one["xid"]) for one in xids], **more)


CAUSES = table(__file__, "causes")


@pytest.mark.parametrize("case", CAUSES.values(), ids=list(CAUSES))
def test_cause(case):
    ends = [end(**one) for one in case["ends"]]
    cause = told(*ends, around=surroundings(**case.get("around", {})))
    for name in ("kind", "signal", "exit_code", "exception", "place"):
        assert getattr(cause, name) == case.get(name)
    assert cause.evidence == "/e"
    assert cause.summary.startswith(f"Rank {cause.rank} (pid {1000 + (cause.rank or 0)}) ")
    assert cause.summary == case.get("summary", cause.summary)


@pytest.mark.parametrize(("rank", "is_named"), [(0, True), (LAUNCHER, False)])
def test_memory_snapshots_are_only_of_ranks_that_ddptop_starts(rank, is_named):
    oom = PythonException("torch.OutOfMemoryError", "CUDA out of memory.", "a.py:1")
    assert ("--memory-snapshot" in told(end(rank, exception=oom)).summary) is is_named


def test_how_many_failed_and_were_stopped_after_it():
    others = [end(4, -15, True), end(5, 1, exception=LOST), end(6, -15, True)]
    summary = told(end(exception=BUG), *others).summary
    assert summary.endswith(" 1 other rank failed afterward, and 2 were stopped as a result.")
    assert "first" not in told(end(exception=BUG)).summary


@pytest.mark.parametrize("what", ["line", "message", "cause"])
def test_summary_has_a_readable_length(what):
    long = "begin" + "x" * 100_000 + "end"
    exception = None
    if what == "message":
        exception = PythonException("ValueError", long, "a.py:1", because=long)
    elif what == "cause":
        exception = PythonException("ValueError", "b", "a.py:1", because=long)
    summary = told(end(exception=exception, tail=long), end(4, -15, True)).summary
    assert len(summary) <= LONGEST
    assert "begin" in summary and "end" in summary and "[...]" in summary
    assert summary.endswith("1 other rank was stopped as a result.")


def test_without_a_victim_of_its_own_a_missing_rank_is_told_as_well():
    alone = end(exception=None, step=4)
    cause = cause_of(Culprit(alone, "missing"), [alone], HERE, None)
    assert (
        "in which the others were waiting for it. It was last seen after step 4." in cause.summary
    )


ABORTED = "op.preamble.length <= op.nbytes. 1000 vs 4."


@pytest.mark.parametrize(
    ("place", "headline", "sentence"),
    [
        (
            "/w/t.py:7 in g",
            "the ranks entered different collectives: rank 0 at t.py:5, rank 1 at t.py:7",
            " It happened with rank 0 at /w/t.py:5 in f, rank 1 at /w/t.py:7 in g: all ranks must "
            "enter the same collectives in turn.",
        ),
        (
            "/w/t.py:5 in f",
            "rank 0 was killed by SIGABRT",
            " All ranks were at /w/t.py:5 in f, so the sizes of their tensors differ.",
        ),
        (None, "rank 0 was killed by SIGABRT", " It is unknown which rank is at fault."),
    ],
)
def test_ranks_that_enter_different_collectives(place, headline, sentence):
    lost = PythonException("RuntimeError", "Connection closed by peer [127.0.0.1]:65", place)
    first = end(0, -6, tail=ABORTED, crashed_at="/w/t.py:5 in f")
    cause = told(first, end(1, -15, True, exception=lost))
    assert cause.headline == headline
    assert sentence in cause.summary
