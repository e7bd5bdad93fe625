"""`ddptop replay`: which moment the user's time refers to, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from ddptop.commands import watch
from ddptop.commands.replay import moment, run, span_of
from tests.support.builders import make_snapshot, make_spec
from tests.support.fake_foreign import foreign_job

from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.base.errors import DdptopError, UsageError
from ddptop_runner.base.paths import RunFolder, run_folder
from ddptop_runner.job.registry import read_job
from ddptop_runner.model.snapshot import RankSample, encode
from ddptop_runner.model.spec import write_spec
from ddptop_runner.store.history import HistoryWriter

NOON = 1_773_489_600.0
"""2026-03-14 12:00:00 UTC."""


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12:30", 1800),
        ("12:30:05", 1805),
        ("2026-03-14T13:00", 3600),
        ("2026-03-14 13:00:30", 3630),
        ("2026-03-14T13:00:00Z", 3600),
        ("+90m", 5400),
        ("+1h5s", 3605),
        ("-10m", 6600),
        ("-30", 7170),
        (" 12:00 ", 0),
    ],
)
def test_a_moment_is_given_in_many_ways(text, expected):
    assert moment(text, NOON, NOON + 7200) - NOON == expected


def test_a_time_of_day_is_of_the_last_day_that_has_it():
    first, last = NOON - 86400, NOON + 3600
    assert moment("12:30", first, last) == NOON + 1800
    assert moment("23:00", first, last) == NOON - 13 * 3600


@pytest.mark.parametrize(
    "text", ["", "noon", "25:00", "12:60", "12:30:61", "+", "-x", "2026-13-01", "++5m"]
)
def test_what_is_no_time_is_refused_with_the_forms(text):
    with pytest.raises(UsageError, match="is not a valid time") as refused:
        moment(text, NOON, NOON + 7200)
    assert "14:05" in str(refused.value.hint)


ENDLESS = pytest.param(f"+{'9' * 5000}m", id="endless")


@pytest.mark.parametrize("text", ["11:00", "15:00", "+3h", "-3h", ENDLESS, "2026-03-15T12:00"])
def test_a_moment_outside_of_the_history_is_refused_with_its_span(text):
    with pytest.raises(UsageError, match="outside the history") as refused:
        moment(text, NOON, NOON + 7200)
    assert "from 2026-03-14 12:00:00 to 2026-03-14 14:00:00" in str(refused.value.hint)


# --- the command -----------------------------------------------------------------------------


def put(name: str, *, recorded: bool) -> RunFolder:
    """An ended job, with or without a history."""
    folder = run_folder(name)
    folder.nodes_dir.mkdir(parents=True)
    spec = make_spec(name, created_at=utc_from_unix(NOON))
    write_spec(folder, spec)
    ended = make_snapshot(spec, state="finished", ended_at=utc_from_unix(NOON + 60))
    folder.node_file(spec.host).write_bytes(encode(ended))
    if recorded:
        writer = HistoryWriter(folder.history_db)
        for second in range(60):
            writer.add(NOON + second, 0, [RankSample(rank=0, local_rank=0, host="h")], [])
        writer.close(final=True)
    return folder


def test_what_cannot_be_replayed_is_one_line(bad_input: Callable[..., str], monkeypatch) -> None:
    put("cats", recorded=True)
    put("bare", recorded=False)
    assert bad_input(2, "replay", "cats") == (
        "ddptop: replay needs a terminal; use ddptop events cats --json in scripts"
    )
    assert "is outside the history" in bad_input(2, "replay", "cats", "--at", "13:00")
    assert "is not a valid time" in bad_input(2, "replay", "cats", "--at", "never")
    assert bad_input(1, "replay", "bare") == (
        "ddptop: bare has no history; run ddptop logs bare to show its output"
    )
    assert bad_input(3, "replay", "nobody") == (
        "ddptop: no job named 'nobody'; list jobs with `ddptop ls --all`"
    )
    assert "--readonly" in bad_input(2, "--readonly", "replay", "cats")


def test_the_span_is_that_of_samples_and_events(ddptop_home) -> None:
    assert span_of(read_job(put("cats", recorded=True))) == (NOON, NOON + 59)


def test_of_a_foreign_job_nothing_is_recorded(ddptop_home, monkeypatch) -> None:
    stranger = foreign_job("torchrun", 1, pid=77)
    monkeypatch.setattr(watch, "find", lambda target: stranger)
    with pytest.raises(DdptopError, match="ddptop did not start it") as refused:
        run("torchrun:77", None)
    assert refused.value.hint == "run ddptop watch torchrun:77 to see it live"
