"""Why a queued job waits, from the records of all jobs."""

from __future__ import annotations

import datetime as dt
import os

import pytest
from msgspec.structs import replace
from tests.support.builders import put_job

from ddptop_runner.host import procs
from ddptop_runner.launch.gpus.usage import DeviceUse, jobs_here
from ddptop_runner.launch.gpus.waiting import waiting_in_words, why_waiting
from ddptop_runner.model.snapshot import WaitedFor, WaitReason
from ddptop_runner.model.spec import Device, Predecessor, Waiting, read_spec

ZERO, ONE = Device(index=0, uuid="GPU-0"), Device(index=1, uuid="GPU-1")
NOW = dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc)
LATER = NOW + dt.timedelta(hours=1)


def live(state: str = "running") -> dict[str, object]:
    here = {"boot_id": procs.boot_id(), "pid_ns": procs.pid_namespace()}
    return {"guardian": procs.identify(os.getpid()), **here, "state": state}


def queue(*devices: Device, minute: int = 0, **fields: object) -> Waiting:
    since = NOW + dt.timedelta(minutes=minute)
    return Waiting(candidates=list(devices), count=1, since=since, **fields)


def reason_of(**waits: object) -> WaitReason | None:
    name = f"mine-{len(jobs_here())}"
    mine = read_spec(put_job(name, live("queued"), queue=queue(ZERO, minute=5, **waits)))
    return why_waiting(mine, [one for one in jobs_here() if "mine" not in one.job], NOW)


def test_who_waits_longer_for_one_of_the_same_devices_comes_first(ddptop_home):
    put_job("b", live("queued"), queue=queue(ZERO, minute=2))
    put_job("a", live("queued"), queue=queue(ZERO, ONE, minute=1))
    put_job("moved", live("queued"), queue=queue(ZERO, minute=9, place=NOW))
    put_job("later", live("queued"), queue=queue(ZERO, minute=9))
    put_job("other", live("queued"), queue=queue(ONE, minute=0))
    put_job("has-them", live(), queue=queue(ZERO, over_at=NOW), devices=[ZERO])
    put_job("stopped", live("stopped"), queue=queue(ZERO, minute=0))
    put_job("holds-no-place", live("queued"), queue=queue(ZERO, not_before=LATER))
    reason = reason_of()
    assert reason.kind == "turn"
    assert [one.job for one in reason.jobs] == ["moved", "a", "b"]
    assert why_waiting(read_spec(put_job("none", live())), jobs_here(), NOW) is None


@pytest.mark.parametrize(
    ("state", "after", "after_any"),
    [
        ("running", "after", "after"),
        ("restarting", "after", "after"),
        ("queued", "after", "after"),
        ("finished", None, None),
        ("failed", "never", None),
        ("stopped", "never", None),
    ],
)
def test_a_job_waits_for_its_predecessor(ddptop_home, state, after, after_any):
    put_job("first", live(state), job_id="first@1", queue=queue(ONE) if state == "queued" else None)
    for any_end, kind in ((False, after), (True, after_any)):
        before = Predecessor(job="first", job_id="first@1", any_end=any_end)
        reason = reason_of(after=[before])
        assert (reason and reason.kind) == kind
        if reason is not None:
            assert reason.jobs == [WaitedFor(job="first", state=state)]


def test_a_removed_predecessor_did_not_finish(ddptop_home):
    before = [Predecessor(job="gone", job_id="gone@1")]
    assert reason_of(after=before).kind == "never"
    assert reason_of(after=[replace(before[0], any_end=True)]) is None


def test_a_job_waits_for_its_time(ddptop_home):
    assert reason_of(not_before=LATER) == WaitReason(kind="time", until=LATER)
    assert reason_of(not_before=NOW) is None


QUEUE = Waiting(candidates=[ZERO, ONE], count=2, since=NOW)
BUSY = DeviceUse(ZERO, ("somebody uses it",))
FREE = [DeviceUse(ZERO), DeviceUse(ONE)]
A, B = WaitedFor(job="a"), WaitedFor(job="b", user="bob")
TURN = WaitReason(kind="turn", jobs=[A, B])


@pytest.mark.parametrize(
    ("reason", "uses", "note", "words"),
    [
        (WaitReason(kind="gpus"), [], None, "waiting for GPUs 0, 1"),
        (
            WaitReason(kind="gpus"),
            [BUSY, FREE[1]],
            None,
            "waiting for GPUs 0, 1; GPU 0: somebody uses it",
        ),
        (None, FREE, None, "waiting for GPUs 0, 1; free; the job will start if they stay free"),
        (TURN, FREE, None, "waiting for GPUs 0, 1; behind jobs a, bob's b, queued earlier"),
        (None, [], "the driver is gone", "waiting for GPUs 0, 1; the driver is gone"),
        (WaitReason(kind="after", jobs=[A]), [BUSY], None, "waiting for job a to end"),
        (
            WaitReason(kind="never", jobs=[WaitedFor(job="a", state="stopped")]),
            [],
            None,
            "not started: job a was stopped",
        ),
        (
            WaitReason(kind="never", jobs=[WaitedFor(job="a")]),
            [],
            None,
            "not started: job a was removed",
        ),
    ],
)
def test_what_is_waited_for_in_words(reason, uses, note, words):
    assert waiting_in_words(QUEUE, reason, uses, note) == words


@pytest.mark.parametrize(
    ("states", "parallel", "kind"),
    [
        ({"s-1": "running", "s-2": "running"}, 2, "group"),
        ({"s-1": "running", "s-2": "starting"}, 3, None),
        ({"s-1": "running", "s-2": "failed"}, 2, None),
        ({"s-1": "running", "s-2": "queued"}, 2, "group"),  # it is its turn first
        ({"s-1": "running", "s-9": "queued"}, 2, None),
        ({"s-1": "running", "t-1": "running"}, 2, None),  # of another sweep
        ({"s-1": "running", "s-2": "running"}, None, None),
    ],
)
def test_at_most_so_many_jobs_of_a_sweep_run_at_once(ddptop_home, states, parallel, kind):
    for name, state in states.items():
        waits = Waiting(since=NOW + dt.timedelta(minutes=int(name[-1])))
        over = None if state == "queued" else replace(waits, over_at=NOW)
        put_job(name, live(state), group=name[0], parallel=parallel, queue=over or waits)
    waits = Waiting(since=NOW + dt.timedelta(minutes=5))
    mine = read_spec(put_job("s-5", live("queued"), group="s", parallel=parallel, queue=waits))
    reason = why_waiting(mine, jobs_here(), NOW)
    assert (reason and reason.kind) == kind
    running = [name for name, state in states.items() if state == "running"]
    if reason is not None:
        assert {one.job for one in reason.jobs} == set(running)
        assert waiting_in_words(waits, reason).startswith(
            "waiting for a job of its sweep to end: s-"
        )
