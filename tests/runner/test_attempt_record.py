"""Which ends of ranks count as ordered, and which as their own."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from ddptop_runner.job.attempt_record import AttemptRecord
from tests.runner.emitted import EmittedLog

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.model import events as ev
from ddptop_runner.model.spec import JobSpec


@pytest.mark.parametrize(
    ("failed_before", "expected"), [(frozenset(), "stopped"), (frozenset({1}), "failed")]
)
def test_a_rank_the_agent_found_dead_failed_by_itself_however_late_its_end_is_reported(
    tmp_path, failed_before, expected
):
    spec = Mock(spec=JobSpec, nproc=2, probe=True, is_command=False, max_restarts=0)
    log = EmittedLog()
    record = AttemptRecord(Mock(spec=RunFolder), spec, log, Mock())
    log.emit(ev.RanksEnding(attempt=0, at_s=10.0, failed=sorted(failed_before)))
    record.rank_exited({"attempt": 0, "rank": 1, "pid": 7, "returncode": 1, "at_boottime_s": 10.5})
    assert record.table[1].state(11.0, probe=True) == expected


def test_a_first_step_is_told_however_late_it_comes(tmp_path):
    spec = Mock(spec=JobSpec, nproc=2, probe=True, is_command=False, max_restarts=0)
    log = EmittedLog()
    record = AttemptRecord(Mock(spec=RunFolder), spec, log, Mock())
    log.emit(ev.RunningAssumed(attempt=0))  # as of a script that takes no optimizer steps
    record.table[0].steps = 1
    record.table.hear = Mock(return_value=record.table[0])
    for _ in range(2):
        record.heard(Mock(saved=None))
    assert [event.type for event in log.events] == ["training"]
    assert record.job.first_step_after_s is not None
