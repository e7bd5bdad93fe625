"""`ddptop logs`: the output of a rank, for pipes and for terminals."""

from __future__ import annotations

import datetime as dt
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ddptop.commands import logs

from ddptop_runner.base.errors import DdptopError, UsageError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.model.spec import JobSpec, write_spec

WRITTEN = b"\x1b[2Jhello \xff\n 10%\r 20%\r\nlast"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "runs" / "job")


def write(folder: RunFolder, attempt: int, rank: int, data: bytes) -> None:
    path = folder.log_file(attempt, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)


def put_spec(folder: RunFolder, nproc: int) -> None:
    folder.path.mkdir(parents=True, exist_ok=True)
    spec = JobSpec(
        job="job",
        job_id="job@1",
        host="node",
        created_at=dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc),
        kind="script",
        target="train.py",
        python="python",
        cwd="/",
        nproc=nproc,
    )
    write_spec(folder, spec)


def show(
    folder: RunFolder,
    rank=0,
    follow: bool = False,
    lines: int = 100,
    attempt: int | None = None,
    is_over: Callable[[], bool] = lambda: True,
) -> int:
    return logs.run(folder, rank, follow, lines, attempt, is_over)


# --- to a pipe or file: bytes ----------------------------------------------------------------


@pytest.mark.parametrize("follow", [False, True])
def test_a_pipe_gets_what_was_written(folder, capfdbinary, follow):
    write(folder, 0, 0, b"old\n" + WRITTEN)
    assert show(folder, follow=follow, lines=3) == 0
    assert capfdbinary.readouterr() == (WRITTEN.replace(b" 10%\r", b""), b"")  # a bar's last state


@pytest.mark.parametrize("follow", [False, True])
def test_a_pipe_gets_lines_of_all_ranks_with_their_rank(folder, capfdbinary, follow):
    write(folder, 0, 0, b"old\na\n\xff")
    write(folder, 0, 10, b"b\r\n\nno end")
    assert show(folder, "all", follow=follow, lines=2) == 0
    out = capfdbinary.readouterr().out
    lines = [b"[rank 0] a", b"[rank 0] \xff", b"[rank 10] ", b"[rank 10] no end"]
    if follow:  # lines arrive as they are completed
        assert sorted(out.split(b"\n")) == sorted([*lines, b""])
    else:
        assert out.split(b"\n") == [*lines, b""]


def test_the_latest_attempt_is_shown_and_the_others_named(folder, capfdbinary):
    for attempt in range(3):
        write(folder, attempt, 0, b"attempt %d\n" % attempt)
    show(folder)
    assert capfdbinary.readouterr() == (
        b"attempt 2\n",
        b"ddptop: showing attempt 2; --attempt N shows an earlier one (0-1)\n",
    )
    show(folder, attempt=1)
    assert capfdbinary.readouterr() == (b"attempt 1\n", b"")


def test_following_continues_across_attempts_and_names_them(folder, capfdbinary):
    write(folder, 0, 0, b"zero\n")
    asked = []

    def is_over() -> bool:
        asked.append(True)
        if len(asked) == 3:
            write(folder, 0, 0, b"end of zero\n")
            write(folder, 1, 0, b"one\n")
        return len(asked) > 3

    assert show(folder, follow=True, is_over=is_over) == 0
    assert capfdbinary.readouterr() == (b"zero\nend of zero\none\n", b"ddptop: attempt 1\n")


def test_a_log_that_is_removed_meanwhile_is_left_out(folder, capfdbinary, monkeypatch):
    write(folder, 0, 0, b"a\n")
    monkeypatch.setattr(logs.logs, "ranks", lambda *_: [0, 7])
    assert show(folder, "all") == 0
    assert capfdbinary.readouterr().out == b"[rank 0] a\n"


def test_a_line_without_end_of_one_of_several_ranks_is_cut(folder, capfdbinary, monkeypatch):
    monkeypatch.setattr(logs, "MAX_RAW_LINE_BYTES", 1000)
    write(folder, 0, 0, b"x" * 5000)
    show(folder, "all", follow=True)
    out = capfdbinary.readouterr().out
    assert out.count(b"x") == 5000 and out.startswith(b"[rank 0] x")


# --- to a terminal: clean lines --------------------------------------------------------------


FOLLOW = """
import sys
from pathlib import Path
from ddptop.commands import logs
from ddptop_runner.base.paths import RunFolder
folder = RunFolder(Path(sys.argv[1]))
rank = sys.argv[2] if sys.argv[2] == "all" else int(sys.argv[2])
over = folder.path / "over"
logs.run(folder, rank, sys.argv[3] == "follow", 100, None, over.exists)
"""


class Terminal:
    """Runs `logs` on a pseudo-terminal of 80 columns."""

    def __init__(self, folder: RunFolder, *arguments: str, encoding: str = "utf-8") -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", FOLLOW, str(folder.path), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "COLUMNS": "80", "LINES": "24", "PYTHONIOENCODING": encoding},
        )
        os.close(slave)
        self.seen = b""

    def read_until(self, text: bytes | None, timeout_s: float = 60) -> bytes:
        """The output until `text`, or until the process closes the terminal."""
        deadline = time.monotonic() + timeout_s
        while text is None or text not in self.seen:
            assert time.monotonic() < deadline, f"no {text!r} in {self.seen!r}"
            if not select.select([self.master], [], [], 0.1)[0]:
                continue
            try:
                data = os.read(self.master, 65536)
            except OSError:  # EIO: the other side is closed
                data = b""
            if not data:
                assert text is None, f"no {text!r} in {self.seen!r}"
                break
            self.seen += data
        return self.seen

    def close(self) -> int:
        os.close(self.master)
        return self.process.wait(20)


def test_a_terminal_gets_clean_lines(folder):
    write(folder, 0, 0, b"old\n" + WRITTEN)
    terminal = Terminal(folder, "0", "once")
    shown = terminal.read_until(None).decode()
    assert terminal.close() == 0
    assert shown == "old\r\nhello \ufffd\r\n 20%\r\nlast\r\n"


def test_a_terminal_of_another_encoding_is_no_reason_to_fail(folder):
    write(folder, 0, 0, "█ done\n".encode())
    terminal = Terminal(folder, "0", "once", encoding="ascii")
    assert terminal.read_until(None) == b"? done\r\n"
    assert terminal.close() == 0


def test_following_on_a_terminal_shows_the_progress_bar_as_it_is_now(folder):
    write(folder, 0, 0, b"\x1b[2Jstart\n 1%")
    terminal = Terminal(folder, "0", "follow")
    assert terminal.read_until(b" 1%") == b"start\r\n 1%"
    write(folder, 0, 0, b"\r 2% " + b"long" * 100)
    terminal.read_until(b" 2% ")
    write(folder, 0, 0, b"\rdone\n")
    write(folder, 1, 0, b"again\n")
    (folder.path / "over").touch()
    shown = terminal.read_until(None)
    assert terminal.close() == 0
    first, second, rest = shown.split(b"\r\x1b[K")
    assert first == b"start\r\n 1%"
    assert second == (b" 2% " + b"long" * 100)[:78] + "…".encode()
    assert rest.decode() == "done\r\n──── attempt 1 ────\r\nagain\r\n"


def test_following_all_ranks_on_a_terminal_names_them(folder):
    write(folder, 0, 0, b"a\n")
    terminal = Terminal(folder, "all", "follow")
    terminal.read_until(b"[rank 0] a\r\n")
    write(folder, 0, 1, b"b\n 5%")
    terminal.read_until(b"[rank 1] b\r\n")
    (folder.path / "over").touch()
    assert terminal.read_until(None).endswith(b"[rank 1]  5%\r\n")
    assert terminal.close() == 0


def test_following_ends_when_the_terminal_is_gone(folder):
    write(folder, 0, 0, b"a\n")
    terminal = Terminal(folder, "0", "follow")
    terminal.read_until(b"a\r\n")
    assert terminal.close() != 0


# --- a reader that leaves --------------------------------------------------------------------


def test_a_closed_pipe_ends_it_quietly(ddptop_home, ddptop_cli):
    folder = RunFolder(ddptop_home / "runs" / "job")
    put_spec(folder, 1)
    write(folder, 0, 0, b"line\n" * 100_000)
    process = subprocess.Popen(
        [sys.executable, "-m", "ddptop", "logs", "job", "-n", "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(5) == b"line\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait(20)


def test_following_ends_when_the_pipe_is_closed_although_nothing_comes(folder):
    write(folder, 0, 0, b"a\n")
    with subprocess.Popen(
        [sys.executable, "-c", FOLLOW, str(folder.path), "0", "follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "a\n"
        process.stdout.close()
        assert "BrokenPipeError" in process.stderr.read()  # the entry point suppresses it
    assert process.returncode != 0


# --- what there is no log of -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"rank": 9}, UsageError, "job has no rank 9; ranks: 0-3"),
        ({"attempt": 7}, UsageError, "job has no log for attempt 7; attempts: 0, 2"),
        ({"rank": 3}, DdptopError, "rank 3 of job has no log for attempt 2; ranks with one: 0-1"),
        ({"rank": 9, "follow": True, "is_over": lambda: False}, UsageError, "ranks: 0-3"),
        ({"rank": 3, "follow": True}, DdptopError, "rank 3 of job has no log for attempt 2"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(folder, arguments, error, words):
    put_spec(folder, 4)
    for attempt, rank in ((0, 0), (2, 0), (2, 1)):
        write(folder, attempt, rank, b"x\n")
    with pytest.raises(error) as caught:
        show(folder, **arguments)
    assert words in str(caught.value)
    assert type(caught.value) is error


def test_without_a_spec_the_ranks_are_those_with_a_log(folder):
    write(folder, 0, 0, b"x\n")
    write(folder, 0, 5, b"x\n")
    with pytest.raises(UsageError, match="ranks: 0, 5"):
        show(folder, 3)


def test_missing_log_is_reported(folder):
    for rank in (0, "all"):
        with pytest.raises(DdptopError, match="job has no log yet; use -f to wait for one"):
            logs.run(folder, rank, False, 10, None, lambda: False)
        with pytest.raises(DdptopError, match=r"job has no log$"):
            show(folder, rank)


@pytest.mark.parametrize("rank", [1, "all"])
def test_following_waits_for_the_first_log(folder, capfdbinary, rank):
    put_spec(folder, 2)
    asked = []

    def is_over() -> bool:
        asked.append(True)
        if len(asked) == 3:
            write(folder, 0, 1, b"here\n")
        return len(asked) > 3

    assert show(folder, rank, follow=True, is_over=is_over) == 0
    assert capfdbinary.readouterr().out.endswith(b"here\n")
