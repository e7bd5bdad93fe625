"""The end of a log, whatever a progress bar wrote to it."""

from __future__ import annotations

from ddptop_runner.store.logs import LINE_BYTES, log_end, shortened

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
