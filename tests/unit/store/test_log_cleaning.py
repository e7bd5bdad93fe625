"""Log lines as they should be shown, whatever was written."""

from __future__ import annotations

import random
import re
import tracemalloc

import pytest
from tests.support.tables import table

from ddptop_runner.store.log_clean import MAX_LINE_CHARS, UNSAFE
from ddptop_runner.store.logs import LineCleaner, sanitize

# --- cleaning --------------------------------------------------------------------------------


@pytest.mark.parametrize(("written", "shown"), table(__file__, "lines"))
def test_lines_are_shown_as_expected(written, shown):
    assert sanitize(written) == shown
    assert sanitize(written.encode()) == shown


def test_bytes_that_are_no_text_are_replaced():
    assert sanitize(b"a\xff\xfeb\xe6\xbc") == "a\ufffd\ufffdb\ufffd"
    assert sanitize("lone \udc80 surrogate") == "lone ? surrogate"


HF = (
    " 10%|█         | 10/100 [00:01<00:09,  9.53it/s]\r" + " " * 60 + "\r{'loss': '4.4'}\n"
    "\r 10%|█         | 10/100 [00:01<00:09,  9.53it/s]\r100%|██████████| 100/100\n"
)


KERAS = "".join(
    "\b" * 20 + f"\r\x1b[1m{i}/3\x1b[0m \x1b[32m━\x1b[0m loss: {4 - i}.5" for i in (1, 2, 3)
)


def test_progress_bars_of_training_frameworks_fold_to_their_last_state():
    assert sanitize(HF) == "{'loss': '4.4'}\n100%|██████████| 100/100\n"
    assert sanitize(KERAS + "\n") == "3/3 ━ loss: 1.5\n"


PIECES = [
    *(bytes([code]) for code in range(0x20)),
    *(b"\x1b[", b"\x1b]", b"\x1bP", b"\x1b\\", b"\x1b(", b"\xc2\x9b", b"\xc2\x90", b"\xc2\x9c"),
    *(b"K", b"2K", b"1", b";", b"?", b" ", b"m", b"text", b"\\", b"\x7f", b"\n", b"\r", b"\b"),
    *("é漢█😀\u2028".encode(), b"\xff", b"\xe6", b"\xf0\x9f"),
]


def noise(rng: random.Random, length: int) -> bytes:
    return b"".join(
        rng.choice(PIECES) if rng.random() < 0.9 else bytes([rng.randrange(256)])
        for _ in range(length)
    )


def clean_in_chunks(data: bytes, rng: random.Random) -> list[str]:
    cleaner, lines, position = LineCleaner(), [], 0
    while position < len(data):
        size = rng.choice([1, 1, 2, 3, 7, 50])
        lines += cleaner.feed(data[position : position + size])
        position += size
    return lines + cleaner.finish()


FORBIDDEN = re.compile(f"{UNSAFE}|\n")


@pytest.mark.parametrize("seed", range(300))
def test_any_bytes_in_any_chunks_give_the_same_clean_lines(seed):
    rng = random.Random(seed)
    data = noise(rng, rng.randrange(400))
    whole = LineCleaner()
    lines = whole.feed(data) + whole.finish()
    assert clean_in_chunks(data, rng) == lines
    assert not any(FORBIDDEN.search(line) for line in lines)
    # clean text is not changed again
    text = sanitize(data)
    assert sanitize(text) == text
    # no newline is lost, whatever surrounds it
    assert text.count("\n") == data.count(b"\n")


def test_cleaner_can_start_over():
    cleaner = LineCleaner()
    assert cleaner.feed(b"one\x1b]0;open") == []
    assert cleaner.finish() == ["one"]
    assert cleaner.feed(b"two\n") == ["two"]
    assert cleaner.finish() == []


def test_the_unfinished_line_is_known():
    cleaner = LineCleaner()
    cleaner.feed(b"done\n 10%")
    assert cleaner.partial == " 10%"
    cleaner.feed("\r 20%  é".encode()[:-1])
    assert cleaner.partial == " 20%"
    cleaner.feed("é".encode()[1:])
    assert cleaner.partial == " 20%  é"


def test_endless_line_uses_bounded_memory_and_reports_what_is_missing():
    cleaner = LineCleaner()
    tracemalloc.start()
    for _ in range(100):
        assert cleaner.feed(b"x" * 100_000) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3_000_000
    (line,) = cleaner.feed(b"\n")
    missing = 10_000_000 - MAX_LINE_CHARS
    assert line == "x" * MAX_LINE_CHARS + f" … [{missing} more characters]"
    assert cleaner.feed(b"y" * 40_000 + b"\rshort\n") == ["short"]
