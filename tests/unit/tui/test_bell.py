"""What rings the terminal's bell."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from ddptop.export.settings import NotifyTable
from ddptop.job.record import Job
from ddptop.tui.bell import Bell
from msgspec.structs import replace
from tests.support.fake_home import two_cpu_ranks
from tests.support.own_views import read

from ddptop_runner.model.snapshot import Alert, Cause

CAUSE = Cause(
    kind="exception", headline="rank 1: ValueError\x1b]0;x\x07\nbad", summary="It failed."
)
HANG = replace(CAUSE, kind="hang")


@pytest.fixture
def job(ddptop_home: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.delenv("TMUX", raising=False)
    return read(two_cpu_ranks(ddptop_home))


def alert(job: Job, id_: str, since_s: float, severity: str = "warning") -> Alert:
    since = job.read_at - dt.timedelta(seconds=since_s)
    return Alert(id=id_, severity=severity, message=f"an {id_}", since=since)  # type: ignore[arg-type]


def changed(job: Job, **fields: Any) -> Job:
    own = {name: fields.pop(name) for name in ("state", "in_slurm_queue") if name in fields}
    return replace(job, snapshot=replace(job.snapshot, **fields), **own)


def rings(job: Job, later: Job, table: NotifyTable | None = None) -> list[str]:
    bell = Bell(table or NotifyTable())
    assert bell.rings([job]) == [], "what was before is no news"
    found = bell.rings([later])
    assert bell.rings([later]) == [], "once"
    return found


def test_each_kind_rings_once(job: Job) -> None:
    for fields, words in (
        ({"state": "failed", "cause": CAUSE}, "failed on "),
        ({"state": "finished"}, "finished on "),
        ({"state": "lost"}, "is lost on "),
        ({"state": "queued", "in_slurm_queue": True}, "was preempted on "),
        ({"attempt": 7, "previous_cause": CAUSE}, "restarted on "),
        ({"attempt": 7, "previous_cause": HANG}, "hangs on "),
        ({"alerts": [alert(job, "disk-full", 0)]}, "has no disk space on "),
        ({"alerts": [alert(job, "straggler", 700)]}, "needs attention on "),
    ):
        (written,) = rings(job, changed(job, **fields))
        assert written.startswith(f"\x07\x1b]9;{job.name} {words}"), fields
        assert written.endswith("\x07") and written[4:-1].isprintable()


def test_what_is_no_news_does_not_ring(job: Job) -> None:
    for fields in (
        {"state": "stopped"},
        {"attempt": 7},
        {"alerts": [alert(job, "straggler", 30), alert(job, "queued", 700, "info")]},
    ):
        assert rings(job, changed(job, **fields)) == [], fields
    ended = changed(job, state="finished")
    assert rings(ended, ended) == []
    assert rings(job, ended, NotifyTable(off=("finished",))) == []
    assert rings(job, ended, NotifyTable(bell=False)) == []


def test_each_incident_rings_once_and_the_next_one_again(job: Job) -> None:
    full, later = alert(job, "disk-full", 5), alert(job, "disk-full", 0)
    for first, second in (
        ({"alerts": [full]}, {"alerts": [later]}),
        ({"attempt": 7, "previous_cause": CAUSE}, {"attempt": 8, "previous_cause": CAUSE}),
        ({"state": "failed", "attempt": 7}, {"state": "failed", "attempt": 8}),
    ):
        bell = Bell(NotifyTable())
        looks = (job, changed(job, **first), job, changed(job, **first), changed(job, **second))
        assert [len(bell.rings([one])) for one in looks] == [0, 1, 0, 0, 1], first
    ended = changed(job, state="stopped", attempt=7, previous_cause=CAUSE, alerts=[full])
    assert rings(job, ended) == [], "what an ended job had is no news"


def test_tmux_passes_it_on(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMUX", "/tmp/tmux-0/default,1,0")
    (written,) = rings(job, changed(job, state="finished"))
    assert written.startswith("\x07\x1bPtmux;\x1b\x1b]9;") and written.endswith("\x07\x1b\\")
