"""An attempt as text. Pure functions."""

from __future__ import annotations

import datetime as dt

import msgspec
import pytest
from ddptop.draw.story import (
    attempt_row,
    headline,
    how_it_ended,
    what_now,
    why_lines,
    work_lost,
)
from ddptop.job.attempts import Attempt
from ddptop.job.series import Tail
from ddptop.job.status import failure_name
from ddptop.style import plain, width
from msgspec.structs import replace

from ddptop_runner.base.paths import LAUNCHER
from ddptop_runner.model.snapshot import Cause, Event

START = dt.datetime(2026, 3, 14, 12, 0, tzinfo=dt.timezone.utc)
NOW = START + dt.timedelta(seconds=700)
RAISED = Cause(
    kind="exception",
    rank=2,
    exit_code=1,
    exception="ValueError",
    place="/home/ada/data.py:81 in collate",
    headline="rank 2: ValueError: label 1003 at data.py:81",
    summary="Rank 2 was the first to fail. ValueError: label 1003.",
    evidence="/runs/x/evidence/attempt-1-failure",
    work_lost_steps=57,
    work_lost_s=43.0,
)
FAILED = Attempt(
    number=1,
    started_at=START,
    ended_at=START + dt.timedelta(seconds=300),
    ending="failed",
    cause=RAISED,
    steps=457,
    aftermath=("restarting all ranks as attempt 2 (restart 1 of 3); progress",),
)
LIVES = Attempt(number=0, started_at=START, ended_at=None, ending="lives", steps=1200)
TAIL = Tail(1, 2, ("step 456 loss 3.0", "  ^^^^", "ValueError: label 1003"))


def cause(kind: str, **more: object) -> Cause:
    return Cause(kind=kind, summary="It failed.", **more)


def text(attempt: Attempt, state: str = "running", rows: int = 20, **more: object) -> str:
    tail, is_last = more.get("tail"), bool(more.get("is_last", False))
    lines = why_lines(attempt, state, tail, NOW, 80, rows, is_last=is_last)
    assert all(width(line) == 80 for line in lines)
    assert len(lines) <= rows
    return "\n".join(plain(line).rstrip() for line in lines)


@pytest.mark.parametrize(
    ("told", "name"),
    [
        (RAISED, "ValueError"),
        (cause("signal", signal="SIGKILL"), "SIGKILL"),
        (cause("exit_code", exit_code=3), "exit 3"),
        (cause("cuda_oom", exception="OutOfMemoryError"), "out of GPU memory"),
        (cause("hang"), "hung"),
        (cause("unknown"), "failed"),
    ],
)
def test_a_failure_in_few_words(told: Cause, name: str) -> None:
    assert failure_name(told) == name


def test_how_each_attempt_ended() -> None:
    assert how_it_ended(FAILED, "running") == ("✗ ValueError at data.py:81", "bad")
    assert how_it_ended(LIVES, "running") == ("● running", "ok")
    assert how_it_ended(replace(LIVES, ending="stopped"), "stopped")[0] == "■ stopped"
    assert how_it_ended(replace(FAILED, cause=None), "failed")[0] == "✗ failed"


def test_row_shows_na_for_unknown_values() -> None:
    row = attempt_row(FAILED, "running", NOW)
    assert (row["first"][0], row["lost"][0], row["ran"][0]) == ("2", "57 steps, 43s", "5m 00s")
    row = attempt_row(replace(FAILED, cause=cause("hang"), steps=None), "running", NOW)
    assert (row["first"][0], row["lost"][0], row["steps"][0]) == ("n/a", "n/a", "n/a")
    row = attempt_row(LIVES, "running", NOW)
    assert (row["first"][0], row["lost"][0], row["ran"][0]) == ("", "", "11m 40s")
    assert work_lost(cause("hang", work_lost_steps=1)) == "1 step"


def test_the_whole_job_in_one_sentence() -> None:
    assert headline([], "running") == "no events yet"
    assert headline([LIVES], "running") == "1 attempt, no failures; the job is running"
    done = headline([LIVES], "finished", "the loss was NaN at the end")
    assert done == "1 attempt, no failures; the job finished, but the loss was NaN at the end"
    killed = replace(FAILED, number=0, cause=cause("signal", signal="SIGKILL"))
    again = replace(FAILED, number=2)
    told = headline([again, FAILED, killed], "failed")
    assert told == "3 attempts, 3 failures (SIGKILL, ValueError 2 times); the job failed"


def test_why_it_failed_what_was_done_and_its_last_words() -> None:
    told = text(FAILED, tail=TAIL)
    assert "✗ ValueError at data.py:81 on rank 2   after 5m 00s, 457 steps" in told
    assert "Rank 2 was the first to fail. ValueError: label 1003." in told
    assert "restarting all ranks as attempt 2 (restart 1 of 3); progress" in told
    assert "evidence  attempt-1-failure   press enter to open" in told
    assert "last lines from rank 2" in told
    assert "│ ValueError: label 1003" in told
    assert "^^^^" not in told
    assert "next step" not in told


def test_what_to_do_about_the_last_attempt() -> None:
    told = text(FAILED, "failed", is_last=True)
    assert "next step fix data.py:81, then press R to relaunch" in told
    assert what_now(None, "running", is_last=True) == ""
    assert "press R to relaunch" in what_now(None, "lost", is_last=True)
    # a remedy is also shown while the job continues
    hung = replace(FAILED, cause=cause("hang"))
    assert "remedy    stacks and flight records" in text(hung, "running")
    killed = replace(FAILED, cause=cause("signal", signal="SIGKILL", rank=0))
    assert "OOM daemon" in what_now(killed.cause, "failed", is_last=True)
    wrong = replace(FAILED, cause=cause("exit_code", exit_code=2))
    refused = what_now(wrong.cause, "failed", is_last=True)
    assert "launch with different arguments" in refused and "press R" not in refused


def test_the_last_words_of_a_command_and_of_another_attempt() -> None:
    assert "last lines from the command" in text(FAILED, tail=Tail(1, LAUNCHER, ("x",)))
    assert "printed nothing" in text(FAILED, tail=Tail(1, 2, ("",)))
    assert "last lines" not in text(FAILED, tail=Tail(0, 2, ("old",)))


@pytest.mark.parametrize(
    ("ending", "events", "told"),
    [
        ("lives", ["first step after 9 s"], "No failures. Last event: first"),
        ("finished", ["finished"], "Every rank exited with status 0."),
        ("lost", ["first step after 9 s"], "without leaving an exit status"),
        ("stopped", ["stopping", "stop asked by ada"], "Stop asked by ada."),
    ],
)
def test_attempts_that_did_not_fail_read_well(ending: str, events: list[str], told: str) -> None:
    kinds = ["stopping" if ending == "stopped" else "training"] * len(events)
    happened = tuple(
        Event(ts=START, type=kind, message=message)
        for kind, message in zip(kinds, events, strict=True)
    )
    state = "running" if ending == "lives" else ending
    assert told in text(replace(LIVES, ending=ending, events=happened), state)


def test_what_was_wrong_until_the_end_did_not_follow_it() -> None:
    alert = "still active when the job ended: slow data"
    finished = replace(LIVES, ending="finished", aftermath=(alert,))
    assert f"also      {alert}" in text(finished, "finished")
    assert "then      restarting all ranks" in text(FAILED)


def test_with_little_room_what_the_exception_said_comes_first() -> None:
    summary = (
        "Rank 2 (pid 4022) was the first to fail: exit status 1, at step 457. ValueError: no x."
    )
    headline = "rank 2: ValueError: no x"
    cause = msgspec.structs.replace(RAISED, summary=summary, headline=headline)
    long = replace(FAILED, cause=cause)
    assert "Rank 2 (pid 4022) was the first to fail" in text(long, rows=3)
    told = text(long, rows=2)
    assert "▌ rank 2: ValueError: no x" in told
    assert "the first to fail" not in told


def test_with_little_room_the_remedy_stays_and_the_evidence_goes() -> None:
    summary = f"The job hung: {'word ' * 60}use drop_last."
    hung = msgspec.structs.replace(cause("hang", evidence="/x/e"), summary=summary)
    told = text(replace(FAILED, cause=hung), "failed", rows=8, is_last=True)
    assert "use drop_last." in told and "press R to relaunch" in told
    assert "evidence  e" not in told and "then" not in told


def test_a_long_cause_is_whole_where_there_is_room() -> None:
    summary = "The job hung: " + "word " * 120 + "barrier."
    long = replace(FAILED, cause=msgspec.structs.replace(cause("hang"), summary=summary))
    assert "barrier." in text(long, rows=40)
    assert "…" in text(long)
