"""Which rank is to blame if a launcher ends its other ranks, and all write to one log."""

from __future__ import annotations

from ddptop_runner.judge.causes import culprit
from ddptop_runner.judge.causes.culprit import (
    RankEnd,
    by_themselves,
    ended_well,
    exception_in_log,
    exception_in_words,
)
from ddptop_runner.model.diagnose import PythonException, RankExit

TORCHRUN = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/w/train.py", line 18, in main
[rank1]: ValueError: bad sample
Traceback (most recent call last):
  File "/v/bin/torchrun", line 7, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
"""
ACCELERATE = """\
Traceback (most recent call last):
  File "/w/train.py", line 18, in main
    raise ValueError("bad sample")
ValueError: bad sample
Traceback (most recent call last):
  File "/v/bin/accelerate", line 7, in <module>
    sys.exit(main())
subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.
"""
BAD_SAMPLE = PythonException("ValueError", "bad sample", "/w/train.py:18 in main")


def end(rank: int, returncode: int | None, at_s: float, **fields: object) -> RankEnd:
    return RankEnd(RankExit(rank, 10 + rank, returncode, at_s), **fields)  # type: ignore[arg-type]


def blamed(*ends: RankEnd, launcher_ended_s: float | None = 9.0) -> tuple[int, str] | None:
    found = culprit.find(by_themselves(ends, launcher_ended_s))
    return None if found is None else (found.end.rank, found.how)


def test_the_first_to_fail_not_those_whom_the_launcher_ended():
    assert blamed(end(0, -15, 5.2), end(1, 1, 5.0, exception=BAD_SAMPLE)) == (1, "failed")
    assert blamed(end(0, -9, 5.2), end(1, -11, 5.0)) == (1, "failed")


def test_one_that_raised_and_was_ended_while_it_went_down():
    lost = PythonException("RuntimeError", "Connection closed by peer [127.0.0.1]:1", None)
    ends = [end(0, 1, 5.0, exception=lost), end(1, -15, 5.2, exception=BAD_SAMPLE)]
    assert blamed(*ends) == (1, "raised")


def test_rank_killed_by_a_user_is_the_cause():
    assert blamed(end(0, -9, 5.0), end(1, -15, 5.2)) == (0, "failed")


def test_what_ended_after_the_launcher_is_not_to_blame():
    ends = by_themselves([end(0, 1, 9.5), end(1, -2, 9.6)], 9.0)
    assert not any(one.failed for one in ends)


def test_unreaped_exit_is_no_failure_if_the_probe_reported_the_end():
    assert ended_well(end(0, None, 5.0, leaving=True))
    assert not ended_well(end(0, None, 5.0))
    assert not ended_well(end(0, None, 5.0, leaving=True, exception=BAD_SAMPLE))


def test_an_exception_by_a_probes_last_words():
    assert exception_in_words("ValueError: bad: sample", "train.py:18 in main") == PythonException(
        "ValueError", "bad: sample", "train.py:18 in main"
    )
    assert exception_in_words("KeyboardInterrupt", None) == PythonException(
        "KeyboardInterrupt", "", None
    )
    assert exception_in_words(None, None) is None


def test_a_launchers_own_exception_is_passed_over():
    for log in (TORCHRUN, ACCELERATE):
        found = exception_in_log(log)
        assert found is not None
        assert (found.type, found.message) == ("ValueError", "bad sample")
    alone = exception_in_log(TORCHRUN.split("\n", 3)[3])
    assert alone is not None
    assert alone.short_type == "ChildFailedError"
    assert exception_in_log("all is well\n") is None
