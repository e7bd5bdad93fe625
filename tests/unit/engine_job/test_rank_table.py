"""What is known of each rank, merged from probe, agent, and /proc."""

from __future__ import annotations

import datetime as dt
import os
from typing import Any

import pytest
from tests.support.builders import put_exit

from ddptop_runner.base import clock
from ddptop_runner.host.tree import RankUsage
from ddptop_runner.job.progress import of_table
from ddptop_runner.job.ranks import OwnRanks
from ddptop_runner.model.diagnose import RankExit
from ddptop_runner.model.probe_message import ProbeMessage
from ddptop_runner.reading.progress.combine import total_steps

PID = os.getpid()


def message(**fields: Any) -> ProbeMessage:
    return ProbeMessage(
        **{"v": 1, "pid": PID, "rank": 0, "attempt": 0, "seq": 1, "t": 0.0} | fields
    )


def stepped(steps: int, at_s: float, **fields: Any) -> ProbeMessage:
    return message(steps=steps, last_step_t=at_s, **fields)


@pytest.fixture
def table() -> OwnRanks:
    """Two ranks of an attempt that began at 100 s; rank 0 is this process."""
    made = OwnRanks(2, 100.0)
    made.started(0, 0, PID)
    return made


HEARD = {
    "by its pid": ({}, 0),
    "by its pid, whatever rank it says": ({"rank": 1}, 0),
    "a child speaks for its rank": ({"pid": 1, "rank": 1}, 1),
    "a process of another attempt is nobody's": ({"pid": 1, "attempt": 1}, None),
    "nor is one without a rank": ({"pid": 1, "rank": None}, None),
    "nor one of a rank that is not ours": ({"pid": 1, "rank": 7}, None),
}


@pytest.mark.parametrize("case", HEARD.values(), ids=list(HEARD))
def test_who_is_heard(table, case):
    fields, rank = case
    record = table.receive(message(**fields), attempt=0)
    assert (None if record is None else record.rank) == rank
    assert [r.rank for r in table if r.has_reported] == ([] if rank is None else [rank])


def test_last_words_of_a_rank_that_ended_count_those_of_an_earlier_attempt_do_not(table):
    put_exit(table[0], RankExit(0, PID, 0, 200.0))
    assert table.receive(stepped(9, 199.0), attempt=0) is table[0]
    assert table[0].steps == 9
    assert table.receive(stepped(12, 199.0, attempt=3), attempt=0) is None
    assert table[0].steps == 9


def test_counters_move_and_what_a_message_leaves_out_stays(table):
    first = {"loss": 2.5, "loss_state": "ok", "loss_step": 3, "loss_source": "probe"}
    table.receive(stepped(3, 110.0, **first, step_time_s=0.1, metrics={"lr": 0.1}), 0)
    table.receive(stepped(4, 111.0, data_wait_s=0.02, metrics={"acc": None}), 0)
    sample = table[0].sample(probe=True)
    assert (sample.step, sample.loss, sample.loss_step) == (4, 2.5, 3)
    assert (sample.step_time_s, sample.data_wait_s) == (0.1, 0.02)
    assert sample.metrics == {"lr": 0.1, "acc": None}
    assert (sample.loss_state, sample.loss_source, sample.state) == ("ok", "probe", "running")


def test_signals_are_only_those_of_the_rank_s_own_process(table):
    """A launcher that is also a rank would be ended by the signal that its process handles."""
    table.receive(message(pid=PID + 1, save_signals=[10]), 0)
    assert table[0].reported.save_signals == []
    table.receive(message(save_signals=[12]), 0)
    table.receive(message(pid=PID + 1, save_signals=[10]), 0)
    assert table[0].reported.save_signals == [12]


def test_smallest_and_largest_loss_are_those_since_the_last_snapshot(table):
    for low, high in ((2.0, 3.0), (1.5, 2.5), (None, None)):
        fields = {"loss": 2.2, "loss_state": "ok", "loss_min": low, "loss_max": high}
        table.receive(message(**fields), 0)
    sample = table[0].sample(probe=True)
    assert (sample.loss_min, sample.loss_max) == (1.5, 3.0)
    table.forget_loss_range()
    sample = table[0].sample(probe=True)
    assert (sample.loss_min, sample.loss_max, sample.loss) == (None, None, 2.2)


def test_speed_is_that_of_the_last_seconds(table):
    record = table[0]
    assert record.steps_per_s is None
    table.receive(stepped(1, 100.0), 0)
    assert record.steps_per_s is None
    table.receive(stepped(11, 101.0), 0)
    assert record.steps_per_s == pytest.approx(10.0)
    for second in range(2, 40):  # slower from now on
        table.receive(stepped(11 + second, 100.0 + second), 0)
    assert record.steps_per_s == pytest.approx(1.0)


def test_the_last_steps_of_a_killed_rank_are_known_from_the_others(table):
    table.started(1, 1, os.getppid())
    for second in (1, 2):
        table.receive(stepped(100 * second, 100.0 + second), 0)
    table.receive(message(pid=os.getppid(), rank=1, steps=202, last_step_t=102.02), 0)
    assert table.steps_at_exit(table[0]) == 202
    table.receive(message(pid=os.getppid(), rank=1, steps=300, last_step_t=103.0), 0)
    assert table.steps_at_exit(table[0]) == 200  # it trained alone


def test_progress_without_a_step_proves_life(table):
    table.receive(stepped(5, 105.0), 0)
    table.receive(stepped(5, 190.0), 0)  # a gradient scaler skipped the steps in between
    table.receive(stepped(5, 150.0), 0)  # another process of the same rank is behind
    assert table[0].since_progress_s(192.0) == pytest.approx(2.0)
    assert table.progress(192.0)[0].since_progress_s == pytest.approx(2.0)
    assert table[0].steps == 5


def progress_of(table, now_s):
    steps = {record.rank: record.reported.global_step or record.steps for record in table}
    return of_table(table, {}, now_s, steps)


def eta_s(table, now_s):
    progress = progress_of(table, now_s)
    return None if progress is None else progress.eta_s


def test_a_quiet_rank_has_no_speed_and_no_end_in_sight(table):
    for step in (1, 101):
        table.receive(stepped(step, 100.0 + step / 100, step_time_s=0.01, total_steps=1000), 0)
    assert table[0].steps_per_s == pytest.approx(100.0)
    assert eta_s(table, 102.0) == pytest.approx(8.0, abs=0.02)  # its last step was at 101
    table[0].quiet = True
    assert table[0].state(probe=True) == "quiet"
    assert table[0].sample(probe=True).steps_per_s == 0.0
    assert eta_s(table, 120.0) is None


def test_the_slowest_rank_decides_when_it_ends(table):
    table.started(1, 1, os.getppid())
    for rank, speed, pid in ((0, 10, PID), (1, 5, os.getppid())):
        for second in (1, 2):
            fields = {"rank": rank, "pid": pid, "total_steps": 100}
            table.receive(stepped(second * speed, 100.0 + second, **fields), 0)
    assert eta_s(table, 102.0) == pytest.approx((100 - 10) / 5)
    assert total_steps(progress_of(table, 102.0)) == 100
    assert table.most_steps() == 20


def usage(letter: str) -> RankUsage:
    return RankUsage(50.0, 2**30, letter, (PID, PID + 1))


STATES = {
    "started, no step yet": ({}, True, "starting"),
    "heard, no step yet": ({"has_reported": True, "steps": 0}, True, "starting"),
    "takes no steps, but many collectives": (
        {"has_reported": True, "steps": 0, "reported": message(collectives={"0": [21, 20]})},
        *(True, "running"),
    ),
    "stepping": ({"steps": 4, "last_step_boottime_s": 199.0}, True, "running"),
    "without a probe nobody knows better": ({}, False, "running"),
    "quiet": (
        {"steps": 4, "quiet": True},
        True,
        "quiet",
    ),
    "slow is not quiet": (
        {"steps": 4, "last_step_boottime_s": 180.0, "reported": message(step_time_s=5.0)},
        True,
        "running",
    ),
    "paused": ({"steps": 4, "usage": usage("T")}, True, "paused"),
    "traced": ({"steps": 4, "usage": usage("t")}, True, "paused"),
    "asleep is not paused": (
        {"steps": 4, "last_step_boottime_s": 199.0, "usage": usage("S")},
        True,
        "running",
    ),
}


@pytest.mark.parametrize("case", STATES.values(), ids=list(STATES))
def test_state(table, case):
    fields, probe, state = case
    for name, value in fields.items():
        setattr(table[0], name, value)
    assert table[0].state(probe) == state
    assert table[0].sample(probe).state == state


def test_progress_is_unknown_without_a_probe_and_zero_before_the_first_step(table):
    table.started(1, 1, os.getppid())
    table.receive(message(), 0)  # its probe reports, but has seen no step yet
    table[1].usage = usage("T")
    zero, one = table.progress(160.0)
    assert (zero.steps, zero.alive, zero.paused, zero.since_progress_s) == (0, True, False, 60.0)
    assert (one.steps, one.alive, one.paused, one.since_progress_s) == (None, True, True, 60.0)
    table.receive(stepped(7, 150.0), 0)
    assert (table.progress(160.0)[0].steps, table.progress(160.0)[0].since_progress_s) == (7, 10.0)


def test_the_last_progress_is_told_in_wall_clock_time(table):
    table.receive(stepped(1, clock.boottime_s() - 5.0), 0)
    at = table[0].sample(probe=True).last_progress_at
    assert at is not None
    age_s = (clock.utc_now() - at).total_seconds()
    assert 4.5 < age_s < 8.0
    assert at.utcoffset() == dt.timedelta(0)


def test_restored_rank_continues_from_its_last_snapshot(table):
    now_s = clock.boottime_s()
    fields = {"loss": 2.5, "loss_state": "ok", "loss_step": 7, "loss_source": "api"}
    table.receive(stepped(8, now_s - 3.0, **fields, metrics={"lr": 0.1}, step_time_s=0.2), 0)
    written = table[0].sample(probe=True)
    later = OwnRanks(2, now_s - 0.5)
    later.restore(written, PID)
    again = later[0].sample(probe=True)
    for field in ("pid", "step", "loss", "loss_state", "loss_step", "loss_source", "metrics"):
        assert getattr(again, field) == getattr(written, field), field
    assert again.has_probe is True
    assert later.of_pid(PID) is later[0]
    assert later[0].last_step_boottime_s == pytest.approx(now_s - 3.0, abs=1.0)


def test_rank_ends_after_its_probes_last_message(table):
    now_s = clock.boottime_s()
    table[0].receive(
        stepped(7, now_s - 9.0, t=now_s - 9.0, phase="evaluation", phase_t=now_s - 9.0)
    )
    assert table[0].progress(now_s).phase == "evaluation"
    last = stepped(7, now_s - 9.0, t=now_s - 4.0, seq=2, final=True, phase="steps", phase_t=90.0)
    table[0].receive(last)
    seen, sample = table[0].progress(now_s), table[0].sample(probe=True)
    assert (seen.phase, seen.phase_s) == ("end", pytest.approx(4.0))
    assert sample.phase == "end" and sample.phase_since is not None
    # a child's last message is not the rank's
    table[0].receive(stepped(8, now_s, t=now_s, seq=3, phase="steps", phase_t=90.0))
    assert table[0].progress(now_s).phase == "steps"
