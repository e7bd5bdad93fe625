"""Files of a job found below its folder and followed as they grow."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.reading.test_trace_series import STREAM

from ddptop_runner.reading.event_files import (
    MAX_DEPTH,
    EventFile,
    EventFiles,
    find_files,
)
from ddptop_runner.reading.text.parser import Reading

EVENTS = "events.out.tfevents.1795264528.host-3.example.4711.0"


def touch(path: Path, at_s: float = 1000.0, data: bytes = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (at_s, at_s))
    return path


def test_files_of_a_job_and_no_others(tmp_path: Path) -> None:
    wanted = [
        touch(tmp_path / EVENTS, 2000),
        touch(tmp_path / "runs" / "Nov21" / EVENTS, 2001),
        touch(tmp_path / "my-model" / "runs" / "x" / EVENTS, 2002),
        touch(tmp_path / "lightning_logs" / "version_3" / EVENTS.partition(".host")[0], 2003),
    ]
    touch(tmp_path / "runs" / "older" / EVENTS, 900)
    touch(tmp_path / "runs" / "events.txt", 2000)
    touch(tmp_path / "runs" / "events.out.tfevents.tmp", 2000)
    touch(tmp_path / ".hidden" / EVENTS, 2000)
    touch(tmp_path / "a" / "b" / "c" / "d" / "e" / EVENTS, 2000)
    outside = tmp_path.with_name(f"{tmp_path.name}-outside")
    touch(outside / EVENTS, 2000)
    (tmp_path / "link").symlink_to(outside)
    (tmp_path / "runs" / f"{EVENTS}1").symlink_to(outside / EVENTS)
    os.mkfifo(tmp_path / "runs" / f"{EVENTS}2")
    found = find_files(str(tmp_path), 1000.0)
    assert [file.path for file in found] == [str(path) for path in reversed(wanted)]
    assert MAX_DEPTH == 4


def test_a_search_is_bounded(tmp_path: Path) -> None:
    for number in range(20):
        touch(tmp_path / "runs" / str(number) / EVENTS, 2000.0 + number)
    found = find_files(str(tmp_path), 1000.0)
    assert [file.written_at_s for file in found] == [2019.0 - n for n in range(16)]
    assert find_files(str(tmp_path), 1000.0, search_s=-1.0) == []
    assert find_files(str(tmp_path / "missing"), 0.0) == []


class Traces(EventFiles):
    """Files that are read when asked for."""

    def new(self) -> list[tuple[EventFile, Reading]]:
        self.read()
        return self.taken()

    def steps(self) -> list[int | None]:
        return [reading.step for _, reading in self.new()]


@pytest.fixture
def traces(tmp_path: Path) -> Iterator[Traces]:
    traces = Traces(str(tmp_path), 0.0)
    yield traces
    for tail in traces._tails.values():
        tail.close()


def test_a_growing_event_file(tmp_path: Path, traces: Traces) -> None:
    path = touch(tmp_path / "runs" / EVENTS, time.time(), STREAM[0] + STREAM[1][:20])
    traces.find()
    assert traces.steps() == [0]
    assert traces.new() == []
    with path.open("ab") as file:
        file.write(STREAM[1][20:] + b"".join(STREAM[2:]))
    traces.find()
    assert traces.steps() == list(range(1, 20))
    assert [(tail.file.pid, tail.file.host) for tail in traces._tails.values()] == [
        (4711, "host-3.example")
    ]
    path.unlink()
    assert traces.new() == []


def test_events_of_an_earlier_run_are_not_reported(tmp_path: Path, traces: Traces) -> None:
    touch(tmp_path / EVENTS, 2e9, b"".join(STREAM))  # each claims to have been written at 1e9
    traces._since_s = 1.5e9
    traces.find()
    assert len(traces._tails) == 1
    assert traces.new() == []


def test_folder_tells_training_and_validation_apart(tmp_path: Path, traces: Traces) -> None:
    for folder in ("train", "validation"):
        touch(tmp_path / "logs" / folder / EVENTS, 2000.0, b"".join(STREAM))
    traces.find()
    kinds = {(Path(file.path).parent.name, reading.kind) for file, reading in traces.new()}
    assert kinds == {("train", "train"), ("validation", "val")}
