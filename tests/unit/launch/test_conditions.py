"""What `--after`, `--after-any`, and `--at` mean."""

from __future__ import annotations

import datetime as dt

import pytest
from tests.support.builders import put_job

from ddptop_runner.base.errors import DdptopError
from ddptop_runner.launch.conditions import parse_at, with_conditions
from ddptop_runner.launch.gpus.choice import DeviceChoice
from ddptop_runner.launch.request import LaunchRequest

NOON = dt.datetime(2026, 11, 28, 12, 0).astimezone()


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("22:00", "2026-11-28T22:00"),
        ("9:05", "2026-11-29T09:05"),
        ("12:00", "2026-11-29T12:00"),
        ("2026-11-30T08:00", "2026-11-30T08:00"),
        ("2026-11-30 08:00:30", "2026-11-30T08:00:30"),
    ],
)
def test_a_time_is_the_next_local_one(text, moment):
    assert parse_at(text, NOON) == dt.datetime.fromisoformat(moment).astimezone()


def test_a_time_may_have_an_offset():
    assert parse_at("2027-01-01T00:00Z", NOON) == dt.datetime(2027, 1, 1, tzinfo=dt.timezone.utc)


def refused(**given: object) -> str:
    with pytest.raises(DdptopError) as refusal:
        with_conditions(DeviceChoice(None), LaunchRequest("script", "train.py", **given))
    return str(refusal.value)


@pytest.mark.parametrize("text", ["25:00", "22", "", "soon", "22:00:00:00", "9999-99-99", "22:60"])
def test_what_is_no_time_is_refused(text):
    assert "not a time of day; use HH:MM" in refused(at=text)


@pytest.mark.parametrize("text", ["2020-01-01T00:00", "9999-01-01T00:00"])
def test_a_time_out_of_reach_is_refused(text):
    assert f"--at {text} is not a time between now and 2200" in refused(at=text)


def test_predecessors_exist_and_have_not_failed(ddptop_home):
    put_job("good", {"state": "finished"}, job_id="good@1")
    put_job("bad", {"state": "failed"}, job_id="bad@1")
    assert "no job named 'x'" in refused(after=("good", "x"))
    assert "--after: bad did not finish (failed)" in refused(after=("bad",))
    request = LaunchRequest("script", "a", after=("good",), after_any=("bad",))
    found = with_conditions(DeviceChoice(None), request)
    assert [(one.job_id, one.any_end) for one in found.queue.after] == [
        ("good@1", False),
        ("bad@1", True),
    ]


def test_a_sweep_stands_for_all_of_its_jobs(ddptop_home):
    for number in range(6):
        put_job(f"s-n{number}", {"state": "finished"}, job_id=f"s-n{number}@1", group="s")
    request = LaunchRequest("script", "a", after=("s",))
    found = with_conditions(DeviceChoice(None), request)
    assert {one.job for one in found.queue.after} == {f"s-n{number}" for number in range(6)}
    assert found.notes[0].endswith(", and 2 more to end")
