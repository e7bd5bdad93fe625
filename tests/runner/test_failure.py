"""From the exits and logs of an attempt to its cause in words."""

from __future__ import annotations

import pytest
from tests.runner.builders import put_job

from ddptop_runner import failure
from ddptop_runner.diagnose import RankExit
from ddptop_runner.oom import OomWatch
from ddptop_runner.rank_table import RankTable

pytestmark = pytest.mark.usefixtures("ddptop_home")


class Ended(RankTable):
    """A table that knows one end."""

    def exits(self) -> list[RankExit]:
        return [RankExit(rank=0, pid=7, returncode=1, at_boottime_s=1.0)]


def test_a_cause_holds_nothing_that_steers_a_terminal():
    folder = put_job()
    log = folder.log_file(0, 0)
    log.parent.mkdir(parents=True)
    log.write_bytes(
        b"Traceback (most recent call last):\n"
        b'  File "train.py", line 3, in <module>\n'
        b"ValueError: a \x1b[31mred\x1b[0m \x1b]0;title\x07word\n"
    )
    _, cause = failure.judge(folder, 0, Ended(1, 0.0), 1.0, oom=OomWatch())
    assert "ValueError: a red word" in cause.summary
    assert "\x1b" not in cause.summary
