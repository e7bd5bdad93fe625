"""The notifier of a job, with a receiver of the test's own."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import msgspec
import pytest
from ddptop.export import message
from ddptop.export.incidents import Incidents, Notice
from ddptop.export.notifier import Notifier
from ddptop.export.send import AGAIN, NEVER, SENT, Parcel
from ddptop.export.settings import NotifyTable, Settings
from ddptop.sources.history import JobHistory
from ddptop.sources.hooks import hook_events
from ddptop.sources.past import read_story
from tests.support.fake_home import failed_job
from tests.support.own_views import read

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.store.history_reader import HistoryReader

URL = "https://hooks.example.org/secret"


@pytest.fixture
def folder(ddptop_home: Path) -> RunFolder:
    """A failed job that somebody wants to hear of."""
    folder = failed_job(ddptop_home)
    os.close(os.open(folder.notify_file, os.O_CREAT, 0o600))
    folder.notify_file.write_text(f"{URL}\n")
    return folder


class Receiver:
    def __init__(self, status: int = SENT) -> None:
        self.status = status
        self.got: list[Parcel] = []

    def __call__(self, parcel: Parcel) -> int:
        self.got.append(parcel)
        return self.status

    def kinds(self, url: str = URL) -> list[str]:
        return [
            notice["kind"] for one in self.got if one.url == url for notice in one.data["notices"]
        ]


def look(folder: RunFolder, receiver: Receiver, settings: Settings, after_s: float = 1.0) -> bool:
    """One look of a notifier that has just been started, so long after the last event."""
    ended = HistoryReader(folder.history_db).events()[-1].ts.timestamp()
    return Notifier(folder.path, settings, receiver).look(folder.path, ended + after_s)


def test_a_failed_job_is_reported_once_with_what_to_do(folder: RunFolder) -> None:
    receiver = Receiver()
    assert look(folder, receiver, Settings()), "nothing is left to send"
    assert look(folder, receiver, Settings()), "a second notifier knows what was sent"
    (parcel,) = receiver.got
    assert receiver.kinds()[-1] == "failed"
    assert parcel.title.startswith(f"{folder.job} failed on ")
    assert "next step: " in parcel.body
    assert f"ddptop attach {folder.job}" in parcel.body
    assert parcel.data["report"].startswith(f"# {folder.job}: ✗ failed\n")
    assert "<svg" in parcel.page


def test_a_report_that_cannot_be_written_keeps_no_message(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddptop.export.report.read_report", None)
    receiver = Receiver()
    assert look(folder, receiver, Settings())
    assert [(one.data["report"], one.page) for one in receiver.got] == [(None, "")]


def test_kinds_that_are_off_are_not_sent(folder: RunFolder) -> None:
    receiver = Receiver()
    assert look(folder, receiver, Settings(notify=NotifyTable(off=("failed",))))
    assert receiver.got == []


def test_quiet_hours_hold_it_back(folder: RunFolder) -> None:
    receiver = Receiver()
    ended = HistoryReader(folder.history_db).events()[-1].ts.astimezone()
    hour = f"{ended:%H:%M}-{ended + dt.timedelta(hours=1):%H:%M}"
    settings = Settings(notify=NotifyTable(quiet_hours=hour))
    assert not look(folder, receiver, settings)
    assert receiver.got == []
    assert look(folder, receiver, settings, 3700)
    assert receiver.kinds()[-1] == "failed"


def test_a_hook_runs_for_its_kind_only(folder: RunFolder) -> None:
    file = folder.path / "got"
    hooks = {
        "on_failed": f"cat > {file}; printf '%0900d\\033[31mno space'; echo bad >&2; exit 3",
        "on_finished": f"rm {file}",
    }
    for _ in range(2):
        look(folder, Receiver(), Settings(hooks=hooks))
    (notice,) = msgspec.json.decode(file.read_bytes())["notices"]
    assert notice["kind"] == "failed"
    job = read(folder)
    last = read_story(job, JobHistory(folder.history_db)).attempts[0]
    (entry,) = (event.message for event in last.events if event.type == "hook")
    assert entry in last.aftermath
    assert entry.startswith("hook on_failed exited with status 3: 000")
    assert entry.endswith("00no spacebad") and len(entry) < 600


def test_hooks_run_at_the_start_of_an_incident_and_the_latest_are_kept(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddptop.export.notifier.MOST_HOOKS", 1)
    at = read(folder).created_at
    notices = [
        Notice(kind="finding", at=at, text="slow"),
        Notice(kind="disk", at=at, text="full"),
        Notice(kind="finding", at=at, text="over", is_over=True),
    ]
    monkeypatch.setattr(Incidents, "fold", lambda *_: notices)
    hooks = {"on_finding": "echo first", "on_disk": "echo second"}
    look(folder, Receiver(), Settings(hooks=hooks))
    assert [one.message.split()[1] for one in hook_events(folder.path)] == ["on_disk"]


def test_a_hook_has_a_time_limit(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddptop.export.notifier.HOOK_TIMEOUT_S", 0.2)
    look(folder, Receiver(), Settings(hooks={"on_failed": "sleep 100"}))
    (entry,) = hook_events(folder.path)
    assert entry.message == "hook on_failed was killed after 0 s"


def test_what_cannot_be_sent_now_waits_and_what_never_can_does_not(folder: RunFolder) -> None:
    receiver = Receiver(AGAIN)
    assert not look(folder, receiver, Settings())
    assert not look(folder, receiver, Settings(), 6)
    assert len(receiver.got) == 1, "there is a pause between attempts"
    receiver.status = NEVER
    assert look(folder, receiver, Settings(), 12)
    assert len(receiver.got) == 2


@pytest.mark.parametrize(("losses", "has_curve"), [([2.0, None, 1.0], True), ([2.0, None], False)])
def test_a_message_has_a_curve_of_at_least_two_losses(
    folder: RunFolder, losses: list[float | None], has_curve: bool
) -> None:
    notice = Notice(kind="finding", at=dt.datetime.now(dt.timezone.utc), text="slow")
    text = message.body(read(folder), [notice], (), losses)
    assert ("loss of the last hours: " in text) is has_curve
