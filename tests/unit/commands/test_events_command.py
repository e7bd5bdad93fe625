"""`ddptop events`: text for people, and one event per line for scripts."""

from __future__ import annotations

import datetime as dt
import json
import time
from pathlib import Path

import pytest
from ddptop.commands import story
from tests.support.fake_home import change, two_cpu_ranks

from ddptop_runner.base.errors import DamagedFileError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.model.snapshot import Event
from ddptop_runner.store.history import HistoryWriter
from ddptop_runner.store.history_reader import HistoryReader


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "runs" / "job")


def make_events(folder: RunFolder, told: list[Event]) -> list[Event]:
    folder.path.mkdir(parents=True, exist_ok=True)
    writer = HistoryWriter(folder.history_db)
    stored = [writer.event(event) for event in told]
    writer.close(final=True)
    return stored


@pytest.fixture
def in_paris(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "Europe/Paris")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def told(second: int, message: str, **more: object) -> Event:
    began = dt.datetime(2026, 3, 1, 22, 59, 58, tzinfo=dt.timezone.utc)
    return Event(ts=began + dt.timedelta(seconds=second), message=message, **more)


TOLD = [
    told(0, "launched train.py", type="launched"),
    told(
        3, "rank 10 died:\n\x1b[2Jout of memory", type="rank_exited", attempt=1, rank=10, pid=5,
        signal="SIGKILL", evidence="evidence/attempt-1-failure",
    ),
    told(4, "failed", type="failed", attempt=1, exit_code=1),
]  # fmt: skip


def test_the_story_is_told_in_local_time_with_the_day_when_it_changes(folder, capsys, in_paris):
    make_events(folder, TOLD)
    assert story.run_events(folder, False) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Sun 2026-03-01",
        "  23:59:58                       launched train.py",
        "Mon 2026-03-02",
        "  00:00:01  attempt 1   rank 10  rank 10 died: out of memory"
        "  (see evidence/attempt-1-failure)",
        "  00:00:02  attempt 1            failed",
    ]


def test_events_as_json_have_every_key_one_event_per_line(folder, capsys):
    make_events(folder, TOLD)
    assert story.run_events(folder, True) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["seq"] for one in printed] == [1, 2, 3]
    assert all(set(one) == set(Event.__struct_fields__) for one in printed)
    second = printed[1]
    assert (second["ts"], second["exit_code"]) == ("2026-03-01T23:00:01Z", None)
    assert second["message"] == TOLD[1].message


def test_a_job_without_a_history_has_no_events(folder, capsys):
    for json_output in (False, True):
        assert story.run_events(folder, json_output) == 0
    assert capsys.readouterr().out == ""


def test_followed_events_are_printed_once_until_the_job_ends(
    ddptop_home, capsys, in_paris, monkeypatch
):
    folder = two_cpu_ranks(ddptop_home)
    change(folder, state="running")
    monkeypatch.setattr(story, "FOLLOW_S", 0.0)
    before = HistoryReader(folder.history_db).events()
    views = iter([True, True, True, False])

    class View:
        is_live = property(lambda _: next(views))

    def read_job(_):
        if len(looks) == 1:
            writer = HistoryWriter(folder.history_db)
            writer.event(TOLD[2])
            writer.close(final=True)
        looks.append(None)
        return View()

    looks: list[None] = []
    monkeypatch.setattr(story, "read_job", read_job)
    assert story.run_events(folder, True, follow=True) == 0
    printed = [json.loads(line)["seq"] for line in capsys.readouterr().out.splitlines()]
    assert printed == [*(event.seq for event in before), before[-1].seq + 1]


def test_a_damaged_history_is_an_error_and_no_output(folder, capsys):
    folder.path.mkdir(parents=True)
    (folder.path / "history.db").write_bytes(b"garbage" * 1000)
    with pytest.raises(DamagedFileError, match=r"history\.db is not a valid history"):
        story.run_events(folder, True)
    assert capsys.readouterr().out == ""
