"""Rank logs: cleaned, read from the end, followed."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.store import logs
from ddptop_runner.store.logs import (
    LINE_BYTES,
    LogFile,
    LogFollower,
    LogLine,
    last_lines,
    log_end,
    separator,
    shortened,
)

# --- reading from the end --------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_the_tail_starts_where_counting_from_the_end_says(tmp_path, monkeypatch, seed):
    rng = random.Random(seed)
    monkeypatch.setattr(logs, "BLOCK_BYTES", rng.choice([1, 2, 7, 64, 1 << 18]))
    data = b"".join(rng.choice([b"\n", b"a", b"bc"]) for _ in range(rng.randrange(60)))
    path = tmp_path / "log"
    path.write_bytes(data)
    lines = data.splitlines(keepends=True)
    for count in (0, 1, 2, 5, 100):
        expected = b"".join(lines[len(lines) - count :]) if count < len(lines) else data
        with LogFile(path) as log:
            assert data[log.tail_offset(count) :] == expected
        assert (
            last_lines(path, count)
            == [line.decode().strip("\n") for line in lines][max(0, len(lines) - count) :]
        )


def test_the_end_of_a_huge_log_is_read_without_the_rest(tmp_path):
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(1 << 30)  # sparse
        file.seek(0, 2)
        file.write(b"\n" + b"".join(b"line %d\n" % i for i in range(1000)))
    tracemalloc.start()
    assert last_lines(path, 3) == ["line 997", "line 998", "line 999"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4_000_000


def test_the_progress_bar_of_days_is_read_from_its_last_redraws(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "MAX_TAIL_BYTES", 10_000)
    monkeypatch.setattr(logs, "BLOCK_BYTES", 512)
    path = tmp_path / "rank-0.log"
    path.write_text("start\n" + "".join(f"\r{i:6} █ steps" for i in range(10_000)))
    assert last_lines(path, 1) == ["  9999 █ steps"]
    assert last_lines(path, 50) == ["start", "  9999 █ steps"]
    path.write_text("█" * 100_000 + "\nlast\n")
    assert last_lines(path, 1) == ["last"]


# --- following -------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "job")


def write(folder: RunFolder, attempt: int, rank: int, data: str | bytes) -> None:
    path = folder.log_file(attempt, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data.encode() if isinstance(data, str) else data)


def texts(lines: list[LogLine]) -> list[str]:
    return [line.prefixed() for line in lines]


def test_attempts_and_ranks_are_found_in_order_of_number(folder):
    assert logs.attempts(folder) == []
    for attempt, rank in ((0, 0), (10, 2), (2, 11), (2, 9)):
        write(folder, attempt, rank, "x")
    (folder.logs_dir / "attempt-x").mkdir()
    (folder.logs_dir / "attempt-2" / "rank-3.log.gz").touch()
    (folder.logs_dir / "attempt-2" / "rank-٣.log").touch()
    assert logs.attempts(folder) == [0, 2, 10]
    assert logs.ranks(folder, 2) == [9, 11]
    assert logs.ranks(folder, 7) == []


def test_following_starts_with_the_tail_and_continues(folder):
    write(folder, 0, 0, "1\n2\n3\n")
    follower = LogFollower(folder, [0], tail=2)
    batches = follower.batches(0)
    assert texts(next(batches)) == ["[rank 0] 2", "[rank 0] 3"]
    assert next(batches) == []
    write(folder, 0, 0, "4\n5 and")
    assert texts(next(batches)) == ["[rank 0] 4"]
    assert follower.partial() == {0: "5 and"}
    write(folder, 0, 0, " more\n")
    assert texts(next(batches)) == ["[rank 0] 5 and more"]
    assert follower.partial() == {}
    batches.close()


def test_following_waits_for_the_first_log_and_takes_ranks_as_they_come(folder):
    follower = LogFollower(folder)
    batches = follower.batches(0)
    assert next(batches) == []
    write(folder, 0, 1, "one\n")
    assert texts(next(batches)) == ["[rank 1] one"]
    write(folder, 0, 1, "two\n")
    write(folder, 0, 0, "from the start\n")
    assert sorted(texts(next(batches))) == ["[rank 0] from the start", "[rank 1] two"]
    batches.close()


def test_no_line_is_lost_when_the_next_attempt_begins(folder):
    write(folder, 0, 0, "a\n")
    follower = LogFollower(folder, [0])
    batches = follower.batches(0)
    next(batches)
    write(folder, 0, 0, "last words, no newline")
    write(folder, 1, 0, "b\n")
    write(folder, 2, 0, "c\n")
    lines = next(batches) + next(batches) + next(batches)
    assert [line.text for line in lines] == [
        *("last words, no newline", separator(1), "b", separator(2), "c")
    ]
    write(folder, 1, 0, "late, of a leftover process\n")
    write(folder, 2, 0, "d\n")
    assert [line.text for line in next(batches)] == ["d"]
    batches.close()


def test_an_attempt_with_more_than_one_read_takes_is_read_to_its_end(folder, monkeypatch):
    monkeypatch.setattr(logs, "BLOCK_BYTES", 10)
    write(folder, 0, 0, "a\n")
    slept: list[float] = []
    monkeypatch.setattr(logs, "time", SimpleNamespace(sleep=slept.append))
    batches = LogFollower(folder, tail=1).batches(0.5)
    next(batches)
    write(folder, 0, 0, "0123456\n" * 20)
    write(folder, 1, 0, "next\n" * 2)
    lines = [line for _ in range(20) for line in next(batches)]
    assert texts(lines) == ["[rank 0] 0123456"] * 20 + [separator(1), *["[rank 0] next"] * 2]
    assert len(slept) < 10, "not while there is more to read"
    batches.close()


def test_an_attempt_without_output_does_not_end_it_when_the_job_is_over(folder):
    write(folder, 0, 0, "a\n")
    batches = LogFollower(folder, is_over=lambda: True).batches(0)
    next(batches)
    write(folder, 1, 0, "")
    write(folder, 2, 0, "c\n")
    assert texts([line for batch in batches for line in batch])[-1] == "[rank 0] c"


def test_following_one_attempt_ends_with_it(folder):
    write(folder, 0, 0, "a\n")
    batches = LogFollower(folder, attempt=0).batches(0)
    next(batches)
    write(folder, 0, 0, "b\n")
    write(folder, 1, 0, "c\n")
    rest = list(itertools.islice(batches, 5))
    assert [texts(batch) for batch in rest] == [["[rank 0] b"], [], []]


def test_following_ends_when_the_job_is_over_and_everything_was_read(folder):
    write(folder, 0, 0, "a\n")
    asked = []

    def is_over() -> bool:
        """The job writes its last lines right before it is over."""
        asked.append(True)
        if len(asked) == 3:
            write(folder, 0, 0, "last\nwords")
            write(folder, 1, 1, "of another attempt\n")
        return len(asked) >= 3

    follower = LogFollower(folder, is_over=is_over)
    lines = [line for batch in follower.batches(poll_s=0.001) for line in batch]
    assert texts(lines) == [
        "[rank 0] a",
        "[rank 0] last",
        "[rank 0] words",
        separator(1),
        "[rank 1] of another attempt",
    ]


def test_a_log_that_was_cut_short_is_read_from_its_new_start(folder):
    write(folder, 0, 0, "a long line before\n")
    follower = LogFollower(folder, [0])
    batches = follower.batches(0)
    next(batches)
    folder.log_file(0, 0).write_text("new\n")
    assert texts(next(batches)) == ["[rank 0] new"]
    batches.close()


TRACEBACK = "Traceback (most recent call last):\nValueError: bad\n"


def test_no_log(tmp_path):
    assert log_end(tmp_path / "none.log") == ""


def test_a_megabyte_without_a_lines_end_hides_nothing(tmp_path):
    log = tmp_path / "rank-0.log"
    bar = "".join(f"\r{percent % 100}%|####| {percent}/40000" for percent in range(40_000))
    assert len(bar) > 800_000
    log.write_text("step 1\n" + TRACEBACK + bar + "\n" + "y" * 1_000_000)
    text = log_end(log)
    lines = text.splitlines()
    assert lines[:3] == ["step 1", "Traceback (most recent call last):", "ValueError: bad"]
    assert lines[3] == "99%|####| 39999/40000"
    assert "[...]" in lines[4] and len(lines[4]) < LINE_BYTES + 10


def test_of_a_long_log_the_end(tmp_path):
    log = tmp_path / "rank-0.log"
    log.write_text("".join(f"step {step}\n" for step in range(1_000_000)))
    text = log_end(log)
    assert text.endswith("step 999999\n")
    assert 200_000 < len(text) < 300_000


def test_only_whole_lines_are_kept():
    assert shortened(b"one\ntwo\nthree\n", 12) == b"two\nthree\n"
    assert shortened(b"", 100) == b""
