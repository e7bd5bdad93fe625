"""`ddptop queue`: its rows, its JSON, and bad input."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys

import pytest
from ddptop.commands import queue as command
from ddptop.job.queue import QueueRow, queue_rows
from ddptop.job.record import own_job
from tests.support.builders import put_job
from tests.support.programs import captured

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import UsageError
from ddptop_runner.host import procs
from ddptop_runner.job.registry import all_jobs
from ddptop_runner.jobs import commands
from ddptop_runner.launch.gpus.shared import Entry, UserQueue
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.snapshot import Alert, Progress, WaitedFor, WaitReason
from ddptop_runner.model.spec import Device, Predecessor, Waiting

NOW = utc_now()
GPU = [Device(index=index, uuid=f"GPU-{index}") for index in range(4)]
MINUTE = dt.timedelta(minutes=1)


def live(state: str, **fields: object) -> dict[str, object]:
    here = {"boot_id": procs.boot_id(), "pid_ns": procs.pid_namespace()}
    return {"guardian": procs.identify(os.getpid()), **here, "state": state, **fields}


def put_running(name: str, *gpus: int, minutes: float | None) -> None:
    eta_s = None if minutes is None else 60 * minutes
    progress = None if minutes is None else Progress(source="api", eta_s=eta_s)
    devices = [GPU[index] for index in gpus]
    put_job(name, live("running", progress=progress), devices=devices, job_id=f"{name}@1")


def put_waiting(name: str, count: int, minute: int, busy: list[int] | None = None, **more: object):
    reason = more.pop("reason", WaitReason(kind="gpus"))
    alert = Alert(
        id="queued", severity="info", message=f"{name} waits", since=NOW, gpus=busy or [],
        waits_for=reason,
    )  # fmt: skip
    since = NOW - MINUTE * (60 - minute)
    queue = Waiting(candidates=GPU if count else [], count=count, since=since, **more)
    put_job(name, live("queued", alerts=[alert]), queue=queue, job_id=f"{name}@1")


def rows(*others: UserQueue) -> dict[str, QueueRow]:
    found = queue_rows([own_job(view) for view in all_jobs()], others, utc_now())
    return {row.job: row for row in found}


def minutes_to(moment: dt.datetime | None) -> float | None:
    return None if moment is None else round((moment - utc_now()) / MINUTE, -1)


def test_starts_are_estimated_from_what_runs(ddptop_home):
    put_running("short", 0, minutes=10)
    put_running("long", 1, 2, minutes=30)
    put_waiting("one", 1, minute=1, busy=[0, 1, 2, 3])
    put_waiting("two", 2, minute=2, busy=[0, 1, 2, 3])
    put_waiting("three", 2, minute=3, busy=[0, 1, 2, 3])
    found = rows()
    assert list(found) == ["short", "long", "one", "two", "three"]
    assert found["long"].gpus == [1, 2]
    starts = {name: minutes_to(found[name].start_at) for name in ("one", "two", "three")}
    assert starts == {"one": 10, "two": 30, "three": None}  # for how long they run is unknown
    assert minutes_to(found["long"].end_at) == 30


def test_a_job_starts_after_its_predecessor_and_not_before_its_time(ddptop_home):
    put_running("first", 0, minutes=10)
    put_running("unknown", 1, minutes=None)
    for name, wants in {
        "next": {"after": [Predecessor(job="first", job_id="first@1")]},
        "never-said": {"after": [Predecessor(job="unknown", job_id="unknown@1")]},
        "late": {"not_before": utc_now() + 90 * MINUTE},
    }.items():
        put_waiting(name, 0, minute=1, **wants)
    starts = {name: minutes_to(row.start_at) for name, row in rows().items()}
    assert starts | {"first": 0, "unknown": 0} == {
        "first": 0, "unknown": 0, "next": 10, "never-said": None, "late": 90,
    }  # fmt: skip


def test_what_others_may_take_is_free_at_no_known_time(ddptop_home):
    put_waiting("waits", 1, minute=1)
    devices = [gpu.uuid for gpu in GPU]
    bob = Entry(job="train", job_id="train@1", devices=devices, since=NOW - MINUTE)
    assert minutes_to(rows()["waits"].start_at) == 0
    assert rows(UserQueue(uid=4321, has=[bob]))["waits"].start_at is None


def test_a_job_of_unknown_start_may_take_any_gpu(ddptop_home):
    put_running("known", 0, minutes=10)
    put_running("unknown", 1, minutes=None)
    for minute, name in enumerate(("unknown", "known")):
        after = [Predecessor(job=name, job_id=f"{name}@1")]
        put_waiting(f"after-{name}", 1, minute=minute, after=after)
    assert [rows()[f"after-{name}"].start_at for name in ("unknown", "known")] == [None, None]


def test_other_users_have_rows(ddptop_home):
    put_running("mine", 0, minutes=10)
    ahead = [WaitedFor(job="theirs", user="bob"), WaitedFor(job="own")]
    put_waiting("waits", 1, minute=1, reason=WaitReason(kind="turn", jobs=ahead))
    entry = {"devices": ["GPU-0"], "since": NOW - MINUTE}
    bob = UserQueue(
        uid=4321,
        has=[Entry(job="train", job_id="train@1", **entry)],
        waits=[Entry(job="theirs", job_id="theirs@1", count=1, **entry)],
    )
    found = rows(bob)
    assert list(found) == ["mine", "train", "waits", "theirs"]
    assert found["waits"].waits_for.jobs == ahead
    assert (found["train"].user, found["train"].state, found["train"].gpus) == ("4321", None, None)
    assert (found["theirs"].state, found["theirs"].why) == ("queued", None)


def test_json_has_every_key(ddptop_home, capsys):
    put_waiting("waits", 2, minute=1)
    assert command.show(as_json=True) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"schema", "jobs", "note"}
    (row,) = report["jobs"]
    assert set(row) == set(QueueRow.__struct_fields__)
    assert (row["gpus_wanted"], row["why"], row["waits_for"]["kind"]) == (2, "waits waits", "gpus")


@pytest.mark.parametrize(
    ("where", "order"),
    [
        ({}, "c a b d"),
        ({"last": True}, "a b d c"),
        ({"before": "b"}, "a c b d"),
        ({"before": "d"}, "a b c d"),
        ({"before": "a"}, "c a b d"),
    ],
)
def test_a_job_is_moved_among_ones_own(ddptop_home, monkeypatch, where, order):
    for minute, name in enumerate("abcd"):
        put_waiting(name, 1, minute=minute)
    asked = []
    monkeypatch.setattr(commands, "_request", lambda *arguments: asked.append(arguments))
    command.move("c", **where)
    ((view, message, _),) = asked
    assert isinstance(message, pt.MoveInQueue)
    places = {one.job: one.spec.place[0] for one in all_jobs()} | {view.job: message.place}
    assert sorted(places, key=places.get) == order.split()


def test_only_what_waits_is_moved(ddptop_home):
    put_running("runs", 0, minutes=1)
    put_waiting("waits", 1, minute=1)
    for job, before in (("runs", None), ("waits", "runs"), ("waits", "waits")):
        with pytest.raises(UsageError):
            command.move(job, before=before)


def test_what_left_the_queue_is_named(ddptop_home):
    queue = Waiting(candidates=GPU, count=1, since=NOW)
    put_job("a", {"state": "queued", "boot_id": "before"}, queue=queue)
    put_job("b", {"state": "running", "boot_id": "before"})
    answer = captured(sys.executable, "-m", "ddptop", "ls")
    assert "no longer queued: a; to queue them again, run ddptop queue restore" in answer.stderr


def test_a_job_of_a_sweep_starts_when_one_of_those_that_may_run_ends(ddptop_home):
    sweep = {"group": "s", "parallel": 2}
    for name, minutes in (("s-1", 10.0), ("s-2", 30.0)):
        progress = Progress(source="api", eta_s=60 * minutes)
        put_job(name, live("running", progress=progress), **sweep, job_id=f"{name}@1")
    for number in (3, 4, 5):
        waits = Waiting(since=NOW + MINUTE * number)
        put_job(f"s-{number}", live("queued"), **sweep, queue=waits, job_id=f"s-{number}@1")
    found = rows()
    starts = [minutes_to(found[f"s-{number}"].start_at) for number in (3, 4, 5)]
    assert starts == [10, 30, None]
