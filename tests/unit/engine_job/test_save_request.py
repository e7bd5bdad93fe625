"""Asking a script to save in a way that can never end it."""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from tests.support.builders import make_snapshot, make_spec, put_job

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import ControlError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.host import procs
from ddptop_runner.job import save_request as request
from ddptop_runner.job.ranks import RankRecord
from ddptop_runner.job.registry import JobView, read_job
from ddptop_runner.jobs import checkpoint as wanted
from ddptop_runner.model.protocol import SaveAsked
from ddptop_runner.model.snapshot import Checkpoint, RankSample
from ddptop_runner.probe import probe
from ddptop_runner.reading.progress.rank_view import NOTHING

CHILD = """
import os, signal, sys, time
got = lambda number, frame: os.write(1, b"got %d\\n" % number)  # print() may be interrupted
{setup}
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""
USR1, USR2 = int(signal.SIGUSR1), int(signal.SIGUSR2)


WHY = {
    "nobody": (
        SaveAsked({}, "FLAG", 0),
        "neither SIGUSR1 nor SIGUSR2, and the flag file was not consumed",
    ),
    "signalled": (SaveAsked({0: "SIGUSR1", 1: "SIGUSR1"}, "FLAG", 0), "SIGUSR1 to ranks 0, 1"),
    "paused": (SaveAsked({}, "FLAG", 0, refused={1: "paused"}), "be sent (rank 1: paused)"),
    "taken": (SaveAsked({}, "/nowhere/flag", 0), "the script has consumed the flag file"),
}


def view(**spec) -> JobView:
    made = make_spec("train", **spec)
    return JobView(RunFolder(Path("/nowhere")), made, make_snapshot(made), NOW)


@pytest.fixture
def child():
    """`child(setup)` starts a process, and returns it once it is set up."""
    started = []

    def start(setup: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD.format(setup=setup)], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def record(process: subprocess.Popen, rank: int = 0, signals: list[int] | None = None):
    return RankRecord(
        rank,
        rank,
        0.0,
        process=procs.identify(process.pid),
        reported=msgspec.structs.replace(
            NOTHING, save_signals=[USR1, USR2] if signals is None else signals
        ),
    )


BOTH = "signal.signal(signal.SIGUSR1, got); signal.signal(signal.SIGUSR2, got)"


@pytest.mark.parametrize(
    ("setup", "told", "sent"),
    [
        (BOTH, [USR1, USR2], "SIGUSR1"),
        (BOTH, [USR2], "SIGUSR2"),
        ("signal.signal(signal.SIGUSR2, got)", [USR1, USR2], "SIGUSR2"),
    ],
    ids=["the first of two", "the one that is handled", "the other handler is gone"],
)
def test_a_rank_gets_the_signal_that_it_handles(tmp_path, child, setup, told, sent):
    process = child(setup)
    asked = request.ask(RunFolder(tmp_path), [record(process, 3, told)])
    assert asked.signalled == {3: sent}
    assert process.stdout.readline() == f"got {int(getattr(signal, sent))}\n"
    assert process.poll() is None


@pytest.mark.parametrize(
    ("setup", "told", "why"),
    [
        ("pass", [], None),
        ("pass", [USR1, USR2], "no longer handled"),
        (BOTH, [], None),
        ("signal.signal(signal.SIGUSR1, signal.SIG_IGN)", [USR1], "no longer handled"),
        (f"{BOTH}; signal.pthread_sigmask(signal.SIG_BLOCK, [10])", [USR1], "SIGUSR1 is blocked"),
    ],
    ids=["none", "none any more", "not the script's own", "ignored", "blocked"],
)
def test_a_rank_that_would_not_handle_it_gets_none_and_lives(tmp_path, child, setup, told, why):
    process = child(setup)
    asked = request.ask(RunFolder(tmp_path), [record(process, 0, told)])
    assert asked.signalled == {}
    assert asked.refused == ({} if why is None else {0: why})
    # that nothing was sent is shown by what is sent later
    process.send_signal(signal.SIGCONT)
    assert procs.state_letter(process.pid) in ("S", "R")
    assert process.poll() is None
    assert request.is_taken(asked.flag_file, asked.flag_stamp) is False


def test_a_script_that_takes_the_flag_file_at_once_is_seen_to(tmp_path, monkeypatch):
    flag = RunFolder(tmp_path).save_flag
    replace = Path.replace

    def replace_and_take(self: Path, target: Path) -> Path:
        found = replace(self, target)
        if target == flag:
            flag.unlink()
        return found

    monkeypatch.setattr(Path, "replace", replace_and_take)
    asked = request.ask(RunFolder(tmp_path), [])
    assert asked.flag_stamp is not None
    assert request.is_taken(asked.flag_file, asked.flag_stamp)
    assert list(tmp_path.iterdir()) == []


def test_each_request_is_answered_once_by_each_process(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    monkeypatch.setattr(probe, "_last_request", None)
    monkeypatch.delenv("DDPTOP_CHECKPOINT_FILE", raising=False)
    assert probe.checkpoint_requested() is False
    monkeypatch.setenv("DDPTOP_CHECKPOINT_FILE", str(folder.save_flag))
    assert probe.checkpoint_requested() is False
    first = request.ask(folder, [])
    assert not request.is_taken(first.flag_file, first.flag_stamp)
    # until the file system's clock advances, new files have the same time
    assert 0.5e9 < time.time_ns() - first.flag_stamp < 60e9
    assert [probe.checkpoint_requested() for _ in range(3)] == [True, False, False]
    assert folder.save_flag.exists()
    assert request.is_taken(first.flag_file, first.flag_stamp)
    second = request.ask(folder, [])
    assert [probe.checkpoint_requested() for _ in range(2)] == [True, False]
    folder.save_flag.unlink()
    assert request.is_taken(second.flag_file, second.flag_stamp)
    request.withdraw(folder)


# --- waiting ---------------------------------------------------------------------------------

NOW = utc_now()


def at(seconds: float) -> dt.datetime:
    return NOW + dt.timedelta(seconds=seconds)


def saved(ended: float, took: float | None = 1.0) -> Checkpoint:
    return Checkpoint(path="/run/a.pt", at=at(ended), took_s=took)


CASES = {
    "none": ({}, 60, False),
    "an old one": ({"checkpoint": saved(-5)}, 60, False),
    "one that was begun before": ({"checkpoint": saved(0.5)}, 60, False),
    "one that was begun after": ({"checkpoint": saved(3)}, 60, True),
    "one just written": ({"checkpoint": saved(3)}, 3.5, False),
    "just written, at the job's end": ({"checkpoint": saved(3), "ended_at": at(3.2)}, 3.5, True),
    "how long it took is not known": ({"checkpoint": saved(3, None)}, 60, True),
    "other ranks still save": (
        {
            "checkpoint": saved(3),
            "ranks": [RankSample(rank=1, local_rank=1, host="h", phase="checkpoint")],
        },
        60,
        False,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_answers_if_it_was_begun_later_and_is_whole(name):
    changes, now, answers = CASES[name]
    snapshot = make_snapshot(make_spec(), **changes)
    assert (wanted.answered(snapshot, NOW, at(now)) is not None) is answers


@pytest.mark.parametrize("way", ["nothing", "the flag file", "a signal"])
def test_a_save_on_the_scripts_own_schedule_is_not_the_requested_one(ddptop_home, tmp_path, way):
    """Only a script that handles a signal or sees the flag file responds to a request."""
    flag = tmp_path / "flag"
    flag.touch()
    stamp = flag.stat().st_mtime_ns
    if way == "the flag file":
        os.utime(flag, ns=(0, 0))
    last = Checkpoint(path="/run/a.pt", at=utc_now() - dt.timedelta(seconds=60), step=120)
    guardian = procs.identify(os.getpid())
    folder = put_job("train", {"state": "running", "guardian": guardian, "checkpoint": last})
    signalled = {0: "SIGUSR1"} if way == "a signal" else {}
    asked = SaveAsked(signalled, str(flag), stamp, last.at - dt.timedelta(seconds=1))
    answer = wanted.wait(read_job(folder), asked, 0.0)
    assert answer.responded is (way != "nothing")
    assert ("the script's own schedule" in answer.in_words()) is (way == "nothing")


@pytest.mark.parametrize("name", WHY)
def test_that_none_came_is_told_with_what_was_asked(tmp_path, name):
    asked, words = WHY[name]
    flag = tmp_path / "flag"
    flag.touch()
    os.utime(flag, ns=(0, 0))
    if asked.flag_file == "FLAG":
        asked = msgspec.structs.replace(asked, flag_file=str(flag))
    message, hint = wanted.why_none(view(), asked, 60.0)
    assert message.startswith("no checkpoint from train was detected within 60 s: ")
    assert words in message
    assert hint
    message, _ = wanted.why_none(view(probe=False), asked, 60.0)
    assert "without the probe" in message


def test_where_nothing_can_be_asked_that_is_said(tmp_path):
    with pytest.raises(ControlError, match=r"cannot create .*save-now"):
        request.ask(RunFolder(tmp_path / "gone"), [])
