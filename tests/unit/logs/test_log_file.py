"""Pages of log files: every line once, from either side, however it was written."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ddptop.logs import file as log_file
from ddptop.logs.file import FileLog
from ddptop.logs.messages import LogRow, Page
from ddptop.logs.search import pattern_of

from ddptop_runner.store.disk import BLOCK_BYTES, punch

Open = Callable[..., FileLog]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads of a few bytes, so that few bytes have many edges."""
    monkeypatch.setattr(log_file, "PAGE_ROWS", 3)
    monkeypatch.setattr(log_file, "SCAN_BYTES", 300)
    monkeypatch.setattr(log_file, "FAR_BYTES", 2000)
    monkeypatch.setattr(log_file, "CONTEXT_BYTES", 100)


def forwards(log: FileLog, least: str = "") -> list[LogRow]:
    page = log.around(log.first, least)
    while page.after_bytes:
        page = log.extended(page, 1, least)
    return [*page.rows, *([page.partial] if page.partial else [])]


def backwards(log: FileLog, least: str = "") -> list[LogRow]:
    page = log.around(None, least)
    while page.before_bytes:
        page = log.extended(page, -1, least)
    return [*page.rows, *([page.partial] if page.partial else [])]


def found(log: FileLog, text: str, row: LogRow | None, step: int, least: str = "") -> list[LogRow]:
    return [one for _, rows in log.matches(pattern_of(text), row, step, least) for one in rows]


@pytest.fixture
def opened() -> Iterator[Callable[..., FileLog]]:
    """The log at a path, with this content if given; closed at the end."""
    logs: list[FileLog] = []

    def make(path: Path, data: bytes | None = None) -> FileLog:
        if data is not None:
            path.write_bytes(data)
        logs.append(FileLog(path, chunk_bytes=160))
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
        texts = data.decode().split("\n")
        wanted = texts if texts[-1] else texts[:-1]
        assert [row.text for row in forwards(log)] == wanted
        assert [row.text for row in backwards(log)] == wanted
        for position in [chance.randrange(len(data) + 1) for _ in range(9)]:
            page = log.around(position)
            rows = [*page.rows, *([page.partial] if page.partial else [])]
            assert position in (0, len(data)) or any(r.at <= position < r.to for r in rows)
        log.close()


@pytest.mark.usefixtures("small")
def test_a_note_stands_for_a_dropped_head(tmp_path: Path, opened: Open) -> None:
    path = tmp_path / "rank-0.log"
    log = opened(path, b"".join(b"line %d\n" % n for n in range(2000)))
    with path.open("rb+") as file:
        punch(file.fileno(), 0, 2 * BLOCK_BYTES)
    assert 2 * BLOCK_BYTES < log.first < 2 * BLOCK_BYTES + 20
    note, *rows = backwards(log)
    assert note.is_note and note.text.startswith("──── 8 KiB of earlier output dropped")
    assert [note, *rows] == forwards(log)
    assert [row.text for row in rows] == [f"line {n}" for n in range(2000 - len(rows), 2000)]
    assert log.around(100).rows[0] == note
    assert found(log, "line 19..$", None, 1)[0].text == "line 1900"
    assert found(log, "line 3$", None, -1) == []


def test_a_line_without_an_end_takes_little_memory(tmp_path: Path, opened: Open) -> None:
    path = tmp_path / "one.log"
    with path.open("wb") as file:
        file.write(b"begin\n")
        for _ in range(20):
            file.write(b"x" * (1 << 20))
        file.write(b" tail\nend\n")
    log = opened(path)
    tracemalloc.start()
    page = log.around(None)
    middle = log.around(9 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60 << 20
    assert page.rows[-1].text == "end"
    rows = (*page.rows, *middle.rows)
    assert rows and max(len(row.text) for row in rows) < 33_000
    assert page.rows[-2].text.endswith("more characters]")


def test_of_a_bar_only_its_last_state_is_shown(tmp_path: Path, opened: Open) -> None:
    bar = b"".join(b"\r %d%%|####      | " % (n % 100) for n in range(20_000))
    log = opened(tmp_path / "bar.log", b"start\n" + bar + b"\r100%|##########|\nend\n")
    assert [row.text for row in forwards(log)] == ["start", "100%|##########|", "end"]
    assert [row.text for row in backwards(log)] == ["start", "100%|##########|", "end"]


def test_an_unfinished_line_stands_apart_until_it_has_ended(tmp_path: Path, opened: Open) -> None:
    path = tmp_path / "x.log"
    log = opened(path, b"one\ntwo")
    page = log.around(None)
    assert page.partial is not None and page.partial.text == "two" and page.high == 4
    assert [row.text for row in page.rows] == ["one"]
    assert log.refreshed(page) is None
    with path.open("ab") as file:
        file.write(b" and more\nthree\n")
    grown = log.refreshed(page)
    assert grown is not None and grown.after_bytes == 16
    page = log.extended(grown, 1)
    assert [row.text for row in page.rows] == ["one", "two and more", "three"]
    assert page.partial is None and page.high == log.end


def test_a_page_is_bounded(tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "MAX_ROWS", 600)
    log = opened(tmp_path / "x.log", b"".join(b"line %d\n" % n for n in range(5000)))
    page = log.around(None)
    for step, edge in ((-1, 0), (1, -1)):
        while page.before_bytes if step < 0 else page.after_bytes:
            page = log.extended(page, step)
            assert len(page.rows) <= 600
        numbers = [int(row.text.split()[1]) for row in page.rows]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert numbers[edge] == (0 if step < 0 else 4999)


@pytest.mark.usefixtures("small")
def test_a_filter_keeps_tracebacks_whole_wherever_a_page_begins(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "CONTEXT_BYTES", 4096)
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
    assert found(log, "x.py", None, 1, "error")[0].inside


def test_search_goes_both_ways(tmp_path: Path, opened: Open) -> None:
    lines = [b"step %d loss \x1b[32m%d\x1b[0m\n" % (n, n * 7) for n in range(20_000)]
    log = opened(tmp_path / "x.log", b"".join(lines))
    (one,) = found(log, "step 10000 loss 70000", None, 1)
    assert one.text.endswith("70000")
    assert found(log, "step 10000 loss 70000", None, -1) == [one]
    assert found(log, "step 10000 loss", one, 1) == found(log, "step 10000 loss", one, -1) == []
    many = found(log, "step 1000", None, 1)
    assert len(many) == 11 and found(log, "step 1000", None, -1) == many[::-1]
    assert sum(size for size, _ in log.matches(pattern_of("no such"), None, -1)) == log.end


def test_a_log_that_is_cut_short_or_gone_does_no_harm(tmp_path: Path, opened: Open) -> None:
    path = tmp_path / "x.log"
    log = opened(path, b"line\n" * 1000)
    page = log.around(None)
    assert len(page.rows) > 9
    os.truncate(path, 10)
    cut = log.refreshed(page)
    assert isinstance(cut, Page) and [row.text for row in cut.rows] == ["line", "line"]
    log.extended(page, 1)
    path.unlink()
    log.around(0)
    log.close()
    with pytest.raises(FileNotFoundError):
        FileLog(path)
