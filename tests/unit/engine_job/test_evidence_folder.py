"""The evidence for a cause: as complete as possible, and never overwritten."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from tests.support.builders import put_job

from ddptop_runner.host import procs
from ddptop_runner.job import evidence
from ddptop_runner.model.snapshot import Cause, RankStacks
from ddptop_runner.store import evidence_folder
from ddptop_runner.store.evidence_folder import Scene

pytestmark = pytest.mark.usefixtures("ddptop_home")


@pytest.fixture
def folder():
    made = put_job()
    log = made.log_file(2, 0)
    log.parent.mkdir(parents=True)
    log.write_text("step 1\n")
    made.log_file(2, 1).write_text("step 2\n")
    log.with_name("rank-0.error.json").write_text('{"cut')
    return made


def scene(folder, pid: int) -> Scene:
    for name in evidence_folder.WRITTEN_BY_RANKS:
        written = evidence_folder.written_by(folder, 2, 0, name)
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(f"a rank's {name}")
    return Scene(
        stacks=[
            RankStacks(rank=0, pid=pid, text="File a.py\n"),
            RankStacks(rank=1, note="no probe answered"),
        ],
        snapshot=b'{"state":"running"}',
        ranks={0: pid, 1: None},
        devices=b'{"gpus":[]}',
    )


async def test_all_that_is_known_and_how_to_read_it(folder):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        kept = await evidence_folder.keep(folder, 2, "failure", scene(folder, child.pid))
    finally:
        child.kill()
        child.wait()
    assert kept == folder.evidence_dir / "attempt-2-failure"
    assert evidence_folder.latest(folder, 2, "failure") == kept
    texts = {path.name: path.read_text() for path in kept.iterdir()}
    process = texts.pop("proc-rank-0.txt")
    assert "import time; time.sleep(60)" in process
    for part in ("--- status ---\nName:", "--- wchan ---", "--- io ---\nrchar", "--- limits ---"):
        assert part in process
    assert "--- stack ---" in process
    assert texts == {
        "snapshot.json": '{"state":"running"}',
        "stacks-rank-0.txt": "File a.py\n",
        "stacks-rank-1.txt": "no stacks: no probe answered\n",
        "tail-rank-0.txt": "step 1\n",
        "tail-rank-1.txt": "step 2\n",
        "error-rank-0.json": '{"cut',
        "devices.json": '{"gpus":[]}',
        "flight-rank-0.json": "a rank's flight.json",
        "memory-rank-0.json": "a rank's memory.json",
        "memory-rank-0.pickle": "a rank's memory.pickle",
    }
    evidence_folder.summarize(Cause(kind="hang", summary="It hung.", evidence=str(kept)))
    summary = (kept / "summary.txt").read_text()
    assert summary.startswith("It hung.\n")
    for path in kept.iterdir():
        pattern = path.name.replace("rank-0", "rank-*").replace("rank-1", "rank-*")
        assert pattern in summary or path.name == "summary.txt"


async def test_a_second_failure_of_an_attempt_leaves_the_first_as_it_is(folder):
    first = await evidence_folder.keep(folder, 2, "failure", Scene(snapshot=b"1"))
    second = await evidence_folder.keep(folder, 2, "failure", Scene(snapshot=b"2"))
    other = await evidence_folder.keep(folder, 2, "hang", Scene(snapshot=b"3"))
    names = [path.name for path in (first, second, other)]
    assert names == ["attempt-2-failure", "attempt-2-failure-2", "attempt-2-hang"]
    assert [(path / "snapshot.json").read_bytes() for path in (first, second)] == [b"1", b"2"]
    assert evidence_folder.latest(folder, 2, "failure") == second
    assert evidence_folder.latest(folder, 1, "failure") is None


async def test_a_full_disk_costs_files_and_nothing_else(folder, monkeypatch):
    def full(path, data):
        if path.name != "snapshot.json":
            path.open("wb").close()
            raise OSError(28, "No space left on device")
        with path.open("wb") as file:
            return file.write(data)

    monkeypatch.setattr(evidence_folder.Path, "write_bytes", full)
    kept = await evidence_folder.keep(folder, 2, "failure", scene(folder, os.getpid()))
    names = sorted(path.name for path in kept.iterdir())
    copied = ["error-rank-0.json", "flight-rank-0.json", "memory-rank-0.json"]
    assert names == [*copied, "memory-rank-0.pickle", "snapshot.json"]
    evidence_folder.summarize(Cause(kind="hang", summary="It hung.", evidence=str(kept)))


async def test_a_disk_that_hangs_does_not_hold_up_the_restart(folder, monkeypatch):
    hangs = threading.Event()
    monkeypatch.setattr(evidence_folder, "KEEP_TIMEOUT_S", 0.05)
    monkeypatch.setattr(evidence_folder, "write", lambda *_: hangs.wait(60))
    began_s = time.monotonic()
    try:
        await evidence_folder.keep(folder, 2, "failure", Scene())
        assert time.monotonic() - began_s < 30
    finally:
        hangs.set()


async def test_flight_records_are_asked_for_and_waited_for_no_longer_than_needed(folder):
    def rank(number, **fields):
        fields = {"alive": True, "collectives": {"0": [5, 4]}, "leaving": False, **fields}
        reported = SimpleNamespace(collectives=fields.pop("collectives"))
        return SimpleNamespace(rank=number, reported=reported, **fields)

    record = evidence_folder.written_by(folder, 2, 0, "flight.json")
    asked = record.with_name("attempt-2-records-asked")
    others = [rank(1, alive=False), rank(2, collectives={}), rank(3, leaving=True)]
    await evidence.ask_for_records(folder, 2, others)
    assert not asked.exists(), "none of them could write one"

    async def answer():
        while not asked.exists():
            await asyncio.sleep(0)
        record.write_text("{}")

    loop = asyncio.get_running_loop()
    before_s = loop.time()
    await asyncio.gather(evidence.ask_for_records(folder, 2, [rank(0), *others]), answer())
    assert loop.time() - before_s < evidence.RECORDS_TIMEOUT_S
    before_s = loop.time()
    await evidence.ask_for_records(folder, 2, [rank(0), rank(7)])
    assert loop.time() - before_s >= evidence.RECORDS_TIMEOUT_S, "rank 7 does not answer"

    survivor = rank(8)

    async def end():
        survivor.leaving = True

    before_s = loop.time()
    await asyncio.gather(evidence.ask_for_records(folder, 2, [survivor]), end())
    assert loop.time() - before_s < evidence.RECORDS_TIMEOUT_S, "it ended before it could answer"


DUMPS = """
import faulthandler, pathlib, signal, sys, time
number, how, path = signal.SIGRTMIN + 9, sys.argv[1], pathlib.Path(sys.argv[2])
file = path.open("a", buffering=1)

def in_two_parts(*_):  # as the C handler runs: its signal is blocked meanwhile
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    file.write("half\\n")
    time.sleep(1.5)
    file.write("whole\\n")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})

if how == "slowly":
    signal.signal(number, in_two_parts)
elif how == "dies":
    signal.signal(number, lambda *_: sys.exit())
else:
    faulthandler.register(number, file=file)
if how == "in a thread":
    import threading
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
print(flush=True)
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize(
    ("how", "end", "least_s", "most_s"),
    [
        ("at once", " in <module>\n", 0.0, 1.0),
        ("slowly", "whole\n", 1.5, 20.0),
        ("dies", None, 0.0, 20.0),
        # the main thread's signal mask does not show when another thread has written everything
        ("in a thread", " in <module>\n", 1.0, 20.0),
    ],
)
async def test_stacks_are_waited_for_until_they_are_complete(
    folder, monkeypatch, how, end, least_s, most_s
):
    monkeypatch.setattr(evidence, "SETTLE_S", 1.0)
    monkeypatch.setattr(evidence, "STACKS_TIMEOUT_S", 20.0)
    path = evidence.stacks_file(folder, 2, 0)
    path.parent.mkdir(parents=True)
    child = subprocess.Popen(
        [sys.executable, "-c", DUMPS, how, str(path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None and child.stdout.readline()
        reported = SimpleNamespace(stack_signal=signal.SIGRTMIN + 9, phase="steps")
        process = procs.identify(child.pid)
        fields = {"rank": 0, "alive": True, "exit": None, "usage": None}
        rank = SimpleNamespace(pid=child.pid, process=process, reported=reported, **fields)
        began_s = time.monotonic()
        (stacks,) = await evidence.collect_stacks(folder, 2, [rank])
        took_s = time.monotonic() - began_s
    finally:
        child.kill()
        child.communicate()
    assert stacks.text is None if end is None else stacks.text.endswith(end)
    assert least_s <= took_s < most_s
