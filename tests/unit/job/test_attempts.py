"""Attempts from events, and events that are combined. Pure functions."""

from __future__ import annotations

import datetime as dt

import msgspec
import pytest
from ddptop.draw.events import fold, folded_row, folded_sections, offset
from ddptop.job.attempts import attempts_of, by_attempt, in_order
from tests.support.rows import row

from ddptop_runner.job.event_log import as_row
from ddptop_runner.model.events import AlertRaised, AlertsCleared, CheckpointSaved, Noticed, to_data
from ddptop_runner.model.snapshot import Alert, Checkpoint, Event

START = dt.datetime(2026, 3, 14, 12, 0, tzinfo=dt.timezone.utc)


def event(seconds: float, kind: str, message: str = "", **more: object) -> Event:
    at, seq = START + dt.timedelta(seconds=seconds), int(seconds * 10) + 1
    return row(at, kind, message or kind, seq=seq, **more)


FIRST = [
    event(0, "launched", attempt=0),
    event(3, "attempt_started", "attempt 0: 2 ranks started", attempt=0),
    event(60, "rank_exited", "rank 1 exited with 1", attempt=0, rank=1, exit_code=1),
    event(61, "failure", "Rank 1 raised.", attempt=0, rank=1, exit_code=1, evidence="/e/0"),
    event(62, "group_restart", "restarting all ranks as attempt 1; progress", attempt=0),
    event(63, "alert", "GPU 2 is lost: going on with 3 ranks"),
]
SECOND = [event(70, "attempt_started", "attempt 1: 2 ranks started", attempt=1)]


def attempts(events: list[Event], state: str = "running", **more: object) -> list[object]:
    ended_at = more.pop("ended_at", None)
    return list(attempts_of(events, state, ended_at, more.get("steps", {})))


def test_an_event_without_an_attempt_belongs_to_the_one_before() -> None:
    assert [len(mine) for mine in by_attempt([*FIRST, *SECOND]).values()] == [6, 1]
    assert list(by_attempt([event(0, "queued"), *FIRST])) == [0]
    assert list(by_attempt([event(0, "queued")])) == [0]


def test_a_checkpoint_is_where_it_was_written_not_where_it_was_recorded() -> None:
    saved = Checkpoint(
        path="/ck/a.pt", at=START + dt.timedelta(seconds=50), attempt=0, rank=0, step=9
    )
    late = as_row(CheckpointSaved(attempt=0, checkpoint=saved))
    late = msgspec.structs.replace(late, ts=START + dt.timedelta(seconds=60.5))
    told = in_order([*FIRST[:3], late, *FIRST[3:]])
    assert [one.type for one in told[:4]] == [
        *("launched", "attempt_started", "checkpoint", "rank_exited")
    ]
    assert told[2].ts == saved.at and told[2].message == "rank 0 saved a.pt at step 9 of attempt 0"
    early = msgspec.structs.replace(late, ts=START + dt.timedelta(seconds=49))
    assert in_order([early]) == [early], "the clock of the file's host is ahead"


def test_what_failed_what_was_done_and_what_lives() -> None:
    second, first = attempts([*FIRST, *SECOND], steps={0: 42, 1: 7})
    assert (second.number, second.ending, second.ended_at, second.steps) == (1, "lives", None, 7)
    assert (first.number, first.ending, first.steps) == (0, "failed", 42)
    assert first.ran_s(START) == 58.0
    assert second.ran_s(START + dt.timedelta(seconds=100)) == 30.0
    assert first.aftermath == (
        "restarting all ranks as attempt 1; progress",
        "GPU 2 is lost: going on with 3 ranks",
    )
    assert (first.cause.kind, first.cause.rank, first.cause.evidence) == ("exit_code", 1, "/e/0")


@pytest.mark.parametrize(
    ("more", "state", "ending"),
    [
        ([event(80, "finished", attempt=1)], "finished", "finished"),
        ([event(80, "stopping", attempt=1), event(81, "stopped", attempt=1)], "stopped", "stopped"),
        ([event(80, "hang", "It hung.", attempt=1)], "restarting", "failed"),
        ([], "lost", "lost"),
        ([], "stopped", "stopped"),
        ([event(80, "group_restart", attempt=1)], "restarting", "again"),
    ],
)
def test_how_the_last_attempt_ended(more: list[Event], state: str, ending: str) -> None:
    at = START + dt.timedelta(seconds=90)
    last = attempts([*FIRST, *SECOND, *more], state, ended_at=at)[0]
    assert last.ending == ending
    assert last.ended_at is not None
    assert (last.cause is not None) == (ending == "failed")


def test_an_attempt_that_another_follows_without_a_word() -> None:
    events = [SECOND[0], event(75, "alert", attempt=1), event(90, "attempt_started", attempt=2)]
    assert attempts(events)[1].ending == "unknown"
    # one requested by a user says so, as does one that was stopped before a later launch
    asked = [*SECOND, event(80, "group_restart", attempt=1), event(90, "launched", attempt=2)]
    assert attempts(asked)[1].ending == "again"
    stopped = [*SECOND, event(80, "stopped", attempt=1), event(90, "launched", attempt=2)]
    assert [one.ending for one in attempts(stopped)] == ["lives", "stopped"]


def test_a_failure_that_is_final_ends_when_the_ranks_did() -> None:
    events = [*FIRST[:4], event(75, "failed", "failed in attempt 0: no restarts", attempt=0)]
    (only,) = attempts(events, "failed", ended_at=START)
    assert only.ended_at == FIRST[3].ts
    assert only.aftermath == ("failed in attempt 0: no restarts",)


def test_an_attempt_that_did_not_fail_has_the_alerts_that_were_active_at_its_end() -> None:
    def cleared(*, with_job: bool) -> Event:
        over = AlertsCleared(attempt=0, messages={"starved": "slow data"}, with_job=with_job)
        return as_row(over)

    events = [*FIRST[:2], cleared(with_job=False), cleared(with_job=True)]
    (only,) = attempts([*events, event(90, "finished", attempt=0)], "finished")
    assert only.aftermath == ("still active when the job ended: slow data",)
    (failed,) = attempts([*events, *FIRST[3:4], event(90, "failed", attempt=0)], "failed")
    assert failed.aftermath == ("failed",)


def test_no_event_is_no_attempt() -> None:
    assert attempts([]) == []


# --- folded ----------------------------------------------------------------------------------


def test_ranks_that_start_together_are_one_line() -> None:
    events = [
        event(i / 10, "rank_started", f"rank {i} started (pid {9 + i})", rank=i) for i in range(8)
    ]
    (line,) = fold(events)
    assert line.message == "ranks 0-7 started"
    assert line.ranks == list(range(8))
    assert len(folded_sections(line, START)) == 8


def test_ranks_that_end_alike_are_one_line_and_the_first_one_another() -> None:
    events = [event(0, "rank_exited", "rank 2 exited with 1", rank=2, exit_code=1)]
    events += [
        event(
            1 + r / 10, "rank_exited", f"rank {r} was killed by SIGTERM", rank=r, signal="SIGTERM"
        )
        for r in (0, 1, 3)
    ]
    first, others = fold(events)
    assert first.message == "rank 2 exited with 1"
    assert others.message == "ranks 0-1,3 were killed by SIGTERM"


def raised(seconds: float, id_: str, message: str) -> Event:
    alert = Alert(id=id_, severity="warning", message=message, since=START)
    data = to_data(AlertRaised(attempt=0, alert=alert))
    return event(seconds, "alert", message, attempt=0, data=data)


def test_repeated_events_are_one_line() -> None:
    events = [
        raised(0, "throttled", "GPU 1 is slowed for 12 s"),
        event(5, "training", attempt=0),
        raised(60, "throttled", "GPU 1 is slowed for 72 s"),
        raised(61, "quiet", "GPU 2 fell silent"),
        event(62, "failure", "It failed.", attempt=0),
        event(63, "failure", "It failed.", attempt=0),
    ]
    lines = fold(events)
    assert [len(one.events) for one in lines] == [2, 1, 1, 2]
    assert lines[0].message == "GPU 1 is slowed for 72 s  (2 times in 1m 00s)"
    # failures differ by their numbers, and attempts by everything
    assert len(fold([event(0, "failure", "at step 1"), event(1, "failure", "at step 2")])) == 2
    assert len(fold([event(0, "alert", attempt=0), event(1, "alert", attempt=1)])) == 2


def test_notices_are_folded_by_their_words() -> None:
    rows = [
        as_row(Noticed(attempt=0, text=text)) for text in ("a log was cut", "no room", "no room")
    ]
    assert [len(one.events) for one in fold(rows)] == [1, 2]


def test_checkpoints_that_follow_each_other_are_one_line() -> None:
    saved = [event(60 * i, "checkpoint", f"saved at step {i}", rank=0) for i in range(5)]
    lines = fold([*saved[:3], event(150, "alert", "x"), *saved[3:]])
    assert [len(one.events) for one in lines] == [3, 1, 2]
    assert lines[0].message == "3 checkpoints in 2m 00s; last: saved at step 2"


def test_a_thousand_events_are_folded_and_none_is_lost() -> None:
    kinds = ["alert", "checkpoint", "rank_exited", "training", "group_restart"]
    events = [event(i, kinds[i * 7 % 5], f"rank {i % 9} {i % 40}", rank=i % 9) for i in range(1000)]
    lines = fold(events)
    assert sum(len(one.events) for one in lines) == 1000
    assert len({one.key for one in lines}) == len(lines)


def test_row_shows_time_since_the_start_of_the_attempt() -> None:
    (line,) = fold([FIRST[3]])
    row = folded_row(line, START + dt.timedelta(seconds=3))
    assert row["offset"][0] == "+58s"
    assert row["mark"] == ("✗", "bad")
    assert offset(START, START + dt.timedelta(seconds=90)) == "-1m 30s"
    assert offset(START, START + dt.timedelta(seconds=0.4)) == "+0s"
    assert offset(START, None) == "n/a"
    heading, text = folded_sections(line, START)[0]
    assert "+1m 01s" in heading
    assert "rank 1, exit 1" in text
    assert "/e/0" in text
