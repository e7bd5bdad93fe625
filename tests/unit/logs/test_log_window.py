"""Windows of log files, by byte: every line once, from either side, however it was written."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ddptop.logs import window as log_window
from ddptop.logs.messages import LogRow
from ddptop.logs.search import pattern_of
from ddptop.logs.window import PIECE_BYTES, FileLog, Part, Searched, pieces

from ddptop_runner.store.disk import BLOCK_BYTES, punch

Open = Callable[..., FileLog]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads of a few bytes, so that few bytes have many block edges."""
    monkeypatch.setattr(log_window, "PIECE_BYTES", 64)
    monkeypatch.setattr(log_window, "CHUNK_BYTES", 160)
    monkeypatch.setattr(log_window, "SCAN_BYTES", 300)
    monkeypatch.setattr(log_window, "MOST_BYTES", 2000)
    monkeypatch.setattr(log_window, "CONTEXT_BYTES", 100)


def forwards(log: FileLog, want: int = 3, least: str = "") -> Iterator[LogRow]:
    at = log.bounds()[0]
    while True:
        page = log.page_on(at, want, least)
        yield from page.rows
        if page.high == at:
            if page.partial is not None:
                yield page.partial
            return
        at = page.high


def backwards(log: FileLog, want: int = 3, least: str = "") -> list[LogRow]:
    first, at = log.bounds()
    rows: list[LogRow] = []
    while at > first:
        page = log.page_back(at, want, least)
        assert page.low < at
        late = [page.partial] if page.partial is not None and not rows else []
        rows = [*page.rows, *late, *rows]
        at = page.low
    return rows


def last(told: Iterator[Searched]) -> Searched:
    *_, one = told
    assert one.is_over
    return one


@pytest.fixture
def opened() -> Iterator[Callable[..., FileLog]]:
    """The log at a path, with this content if given; closed at the end."""
    logs: list[FileLog] = []

    def make(path: Path, data: bytes | None = None) -> FileLog:
        if data is not None:
            path.write_bytes(data)
        logs.append(FileLog(path))
        return logs[-1]

    yield make
    for log in logs:
        log.close()


@pytest.mark.usefixtures("small")
def test_every_line_comes_once_from_either_side(tmp_path: Path, opened: Open) -> None:
    chance = random.Random(5)
    for _ in range(60):
        data = b"".join(
            bytes(
                chance.choice(b"abc ") for _ in range(chance.choice([0, 5, 63, 64, 65, 130, 500]))
            )
            + b"\n" * (chance.random() < 0.9)
            for _ in range(chance.randrange(40))
        )
        log = opened(tmp_path / "x.log", data)
        wanted = [(at, to) for at, to, _ in pieces(Part(0, data), starts=True)]
        assert [(row.at, row.to) for row in forwards(log)] == wanted
        assert [(row.at, row.to) for row in backwards(log)] == wanted
        for position in [chance.randrange(len(data) + 1) for _ in range(9)]:
            start = max((at for at, _ in wanted if at <= position), default=0)
            if position == len(data) and data.endswith(b"\n"):
                start = position
            assert log.snap(position) == start
        log.close()


@pytest.mark.usefixtures("small")
def test_a_note_stands_for_a_dropped_head(tmp_path: Path, opened: Open) -> None:
    path = tmp_path / "rank-0.log"
    log = opened(path, b"".join(b"line %d\n" % n for n in range(2000)))
    with path.open("rb+") as file:
        punch(file.fileno(), 0, 2 * BLOCK_BYTES)
    first = log.bounds()[0]
    assert 2 * BLOCK_BYTES < first < 2 * BLOCK_BYTES + 20
    note, *rows = backwards(log)
    assert note.is_note and note.text.startswith("──── 8 KiB of earlier output dropped")
    assert rows == list(forwards(log))
    kept = len(rows)
    assert [row.text for row in rows] == [f"line {n}" for n in range(2000 - kept, 2000)]
    assert log.snap(100) == first
    assert log.page_back(first, 10).rows == (note,)
    found = last(log.search(pattern_of("line 19..$"), 0, 1)).found
    assert found is not None and found.text == "line 1900"
    assert last(log.search(pattern_of("line 3$"), log.bounds()[1], -1)).found is None


def test_a_line_without_an_end_takes_no_memory(tmp_path: Path, opened: Open) -> None:
    path = tmp_path / "one.log"
    with path.open("wb") as file:
        file.write(b"begin\n")
        for _ in range(20):
            file.write(b"x" * (1 << 20))
        file.write(b" tail\nend\n")
    log = opened(path)
    tracemalloc.start()
    page = log.page_back(log.bounds()[1], 100)
    middle = log.page_on(log.snap(9 << 20), 100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 << 20
    assert page.rows[-1].text == "end" and page.rows[-2].text.endswith(" tail")
    assert max(len(row.text) for row in (*page.rows, *middle.rows)) <= 2 * PIECE_BYTES
    assert middle.rows[0].at % PIECE_BYTES == 0
    found = last(log.search(pattern_of("x tail"), log.bounds()[1], -1)).found
    assert found is not None and found.to == log.bounds()[1] - 4


def test_of_a_bar_only_its_last_state_is_shown(tmp_path: Path, opened: Open) -> None:
    bar = b"".join(b"\r %d%%|####      | " % (n % 100) for n in range(20_000))
    log = opened(tmp_path / "bar.log", b"start\n" + bar + b"\r100%|##########|\nend\n")
    assert [row.text for row in forwards(log)] == ["start", "100%|##########|", "end"]
    assert [row.text for row in backwards(log)] == ["start", "100%|##########|", "end"]


def test_an_unfinished_line_stands_apart_until_it_has_ended(tmp_path: Path, opened: Open) -> None:
    path = tmp_path / "x.log"
    log = opened(path, b"one\ntwo")
    page = log.page_back(7, 10)
    assert page.partial is not None and page.partial.text == "two" and page.high == 4
    assert [row.text for row in page.rows] == ["one"]
    with path.open("ab") as file:
        file.write(b" and more\nthree\n")
    page = log.page_on(page.high, 10)
    assert [row.text for row in page.rows] == ["two and more", "three"]
    assert page.partial is None and page.high == log.bounds()[1]


def test_a_filter_keeps_tracebacks_whole_wherever_a_page_begins(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_window, "PIECE_BYTES", 512)
    monkeypatch.setattr(log_window, "CHUNK_BYTES", 2048)
    monkeypatch.setattr(log_window, "CONTEXT_BYTES", 4096)
    block = (
        b"step 1\n" * 300
        + b"Traceback (most recent call last):\n"
        + b'  File "x.py", line 1, in f\n    g()\n' * 60
        + b"ValueError: no\n"
        + b"W0314 12:00:00.1 1 x.py:1] slow\n"
    )
    log = opened(tmp_path / "x.log", block * 4 + b"ERROR: unfinished")
    errors = [row.text for row in forwards(log, least="error")]
    assert len(errors) == 4 * 122 + 1
    assert errors == [row.text for row in backwards(log, least="error")]
    both = [row.level for row in forwards(log, least="warn")]
    assert both.count("warn") == 4 and both.count("error") == 4 * 122 + 1
    found = last(log.search(pattern_of("x.py"), 0, 1, "error")).found
    assert found is not None and found.inside


def test_search_goes_both_ways_and_says_how_far_it_is(tmp_path: Path, opened: Open) -> None:
    lines = [b"step %d loss \x1b[32m%d\x1b[0m\n" % (n, n * 7) for n in range(20_000)]
    log = opened(tmp_path / "x.log", b"".join(lines))
    end = log.bounds()[1]
    pattern = pattern_of("step 10000 loss 70000")
    told = list(log.search(pattern, 0, 1))
    assert len(told) > 1 and [one.at for one in told] == sorted(one.at for one in told)
    assert told[-1].found is not None and "70000" in told[-1].found.text
    back = last(log.search(pattern, end, -1)).found
    assert back == told[-1].found
    assert last(log.search(pattern, back.to, 1)).found is None
    assert last(log.search(pattern, back.at, -1)).found is None
    both = pattern_of("step 1000 ")
    assert last(log.search(both, end, -1)).found == last(log.search(both, 0, 1)).found


def test_a_log_that_is_cut_short_or_gone_does_no_harm(tmp_path: Path, opened: Open) -> None:
    path = tmp_path / "x.log"
    log = opened(path, b"line\n" * 1000)
    assert len(log.page_back(5000, 10).rows) > 9
    os.truncate(path, 10)
    page = log.page_back(log.bounds()[1], 10)
    assert all(row.text == "line" for row in page.rows)
    path.unlink()
    log.page_on(0, 10)
    log.close()
    with pytest.raises(FileNotFoundError):
        FileLog(path)
