"""Where real processes write their output, and reading it there."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.foreign.toys import PRINTER, lines_in, printer, running

from ddptop_runner.foreign.output import (
    LISTED_BYTES,
    Finder,
    Output,
    Pane,
    Source,
    appends,
    neighbors_of,
    open_log,
    sink_of,
)
from ddptop_runner.host import procs, tree

SLEEP = (sys.executable, "-c", "import time; time.sleep(1000)")


def find(pid: int, fd: int = 1, launchers: tuple[int, ...] = ()) -> Output:
    finder = Finder(lambda: neighbors_of([*launchers, pid]), dict, launchers)
    return finder.find(pid, fd)


def read(output: Output) -> bytes:
    assert output.file is not None
    with open_log(output.file) as log:
        return log.read(1 << 20)


def test_a_file(tmp_path: Path, wait_until) -> None:
    path = tmp_path / "train.log"
    with path.open("wb") as file, running(*printer(), stdout=file) as process:
        wait_until(lambda: lines_in(path) > 2)
        output = find(process.pid)
        assert output.words == f"file {path}"
        assert read(output).startswith(b"step 0/1000 loss 2.5000\n")
        assert output.file is not None
        assert not appends(output.file)
        assert find(process.pid, 2).words != output.words


def test_a_file_that_is_appended_to_may_hold_an_earlier_run(tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab") as file, running(*SLEEP, stdout=file) as process:
        output = find(process.pid)
        assert output.file is not None
        assert appends(output.file)


def test_a_file_that_was_deleted_is_still_read(tmp_path: Path, wait_until) -> None:
    path = tmp_path / "train.log"
    with path.open("wb") as file, running(*printer(), stdout=file) as process:
        wait_until(lambda: lines_in(path) > 2)
        path.unlink()
        output = find(process.pid)
        assert output.words == f"file {path} (deleted)"
        assert b"step 1/1000" in read(output)


def test_a_file_that_was_renamed_is_read_on(tmp_path: Path, wait_until) -> None:
    path = tmp_path / "train.log"
    with path.open("wb") as file, running(*printer(), stdout=file) as process:
        wait_until(lambda: lines_in(path) > 2)
        output = find(process.pid)
        path.rename(tmp_path / "train.log.1")
        path.write_bytes(b"another file\n")
        assert b"step 1/1000" in read(output)


def test_a_pipe_to_tee_is_read_in_the_file_of_tee(tmp_path: Path, wait_until) -> None:
    path = tmp_path / "out.log"
    with (
        running(*printer(), stdout=subprocess.PIPE) as process,
        running("tee", str(path), stdin=process.stdout) as tee,
    ):
        wait_until(lambda: lines_in(path) > 2)
        output = find(process.pid)
        assert output.words == f"a pipe to pid {tee.pid} (tee), which writes to {path}"
        assert b"step 1/1000" in read(output)


def test_the_reader_is_found_when_the_writer_has_a_session_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with (
        running(*printer(), stdout=subprocess.PIPE, start_new_session=True) as process,
        running("tee", str(path), stdin=process.stdout) as tee,
    ):
        assert tee.pid in neighbors_of([process.pid])


def test_a_pipe_through_a_filter_is_followed_to_its_file(tmp_path: Path, wait_until) -> None:
    path = tmp_path / "out.log"
    with (
        path.open("wb") as file,
        running(*printer(), stdout=subprocess.PIPE) as process,
        running("grep", "--line-buffered", "loss", stdin=process.stdout, stdout=file) as grep,
    ):
        wait_until(lambda: lines_in(path) > 2)
        output = find(process.pid)
        assert output.words == f"file {path} via a pipe to pid {grep.pid} (grep)"
        assert b"step 1/1000" in read(output)


def test_a_pipe_to_a_program_that_may_keep_it_cannot_be_read(tmp_path: Path) -> None:
    with (
        (tmp_path / "its-own.txt").open("wb") as file,  # says nothing of what it reads
        running(*SLEEP, stdout=subprocess.PIPE) as process,
        running(*SLEEP, stdin=process.stdout, stdout=file) as reader,
    ):
        assert process.stdout is not None
        process.stdout.close()
        output = find(process.pid, launchers=(os.getpid(),))
        name = Path(sys.executable).name
        assert output.words == f"a pipe to pid {reader.pid} ({name}): not readable"
        assert output.key is None
        # a launcher hands on what its ranks write
        assert find(process.pid, launchers=(reader.pid,)).key is not None


def test_a_pipe_without_a_reader() -> None:
    reader, writer = os.pipe()
    with running(*SLEEP, stdout=writer) as process:
        os.close(reader)
        os.close(writer)
        output = find(process.pid)
        assert output.words == "a pipe whose reader is not visible: not readable"


def test_dev_null() -> None:
    with running(*SLEEP, stdout=subprocess.DEVNULL) as process:
        output = find(process.pid)
        assert output.words == "/dev/null: discarded"
        assert output.key is None


def test_a_terminal_is_read_through_tmux_or_not_at_all() -> None:
    master, slave = pty.openpty()
    try:
        with running(*SLEEP, stdout=slave) as process:
            tty = os.ttyname(slave)
            other = Finder(list, dict)
            words = f"terminal {tty} outside tmux: not readable"
            assert other.find(process.pid).words == words
            pane = Pane("/tmp/socket", "%3", "work:1.0", tty)
            shown = Finder(list, lambda: {tty: pane}).find(process.pid)
            assert shown.words == "tmux pane work:1.0 (captured)"
            assert shown.pane == pane
            # the process that created the terminal is named, and trusted only if it passes on what
            # it reads
            made = find(process.pid)
            assert made.words.startswith(f"terminal {tty} from pid {os.getpid()} (")
            assert made.words.endswith("): not readable")
    finally:
        os.close(master)
        os.close(slave)


FORWARDS = """
import os, pty, sys
own = open(sys.argv[1], "wb")  # a file of its own business
pid, master = pty.fork()
if pid == 0:
    os.execv(sys.executable, [sys.executable, "-u", "-c", sys.argv[2]])
while True:
    data = os.read(master, 1000)
    os.write(1, data)
"""


def test_a_terminal_that_the_launcher_made_leads_to_its_own_output(
    tmp_path: Path, wait_until
) -> None:
    path = tmp_path / "out.log"
    argv = (sys.executable, "-c", FORWARDS, os.fspath(tmp_path / "own"), PRINTER)
    with path.open("wb") as file, running(*argv, stdout=file) as launcher:
        wait_until(lambda: lines_in(path) > 2)
        (rank,) = tree.children_of(launcher.pid)
        try:
            output = find(rank, launchers=(launcher.pid,))
            assert output.words.startswith(f"file {path} via terminal /dev/pts/")
            assert b"step 1/1000" in read(output)
        finally:
            os.kill(rank, signal.SIGKILL)


def test_closed_or_unowned_descriptors() -> None:
    with running(*SLEEP) as process:
        assert sink_of(process.pid, 77).kind == "closed"
    assert sink_of(process.pid, 1).kind == "closed"
    assert find(process.pid).key is None


def test_a_file_that_is_cut_short_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb", buffering=0) as file:
        source = Source(Output("", file=sink_of(os.getpid(), file.fileno())), is_followed=True)
        for text in (b"step 1 loss 2.5, and more\n", b"step 2 loss 1.5\n"):
            os.truncate(path, 0)
            file.seek(0)
            file.write(text)
            readings, _, size = source.read(1000)
            assert size == len(text)
        assert [one.loss for one in readings] == [1.5]
        assert list(source.lines)[-1] == "step 2 loss 1.5"
        source.close()


def test_only_the_end_of_a_large_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb", buffering=0) as file:
        file.write(b"step 1 loss 9.5\n" * 100_000 + b"step 2 loss 1.5\n")
        source = Source(Output("", file=sink_of(os.getpid(), file.fileno())), is_followed=False)
        readings, fresh, size = source.read(1 << 20)
        assert (readings[-1].loss, fresh, size) == (1.5, False, LISTED_BYTES)
        assert not source.lines, "nobody reads them"
        source.close()


def test_a_pid_used_again_is_not_read(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with first.open("wb") as file:
        sink = sink_of(os.getpid(), file.fileno())
        with second.open("wb") as other:
            os.dup2(other.fileno(), file.fileno())
            with pytest.raises(OSError, match="another file"):
                open_log(sink)


def test_what_was_put_in_a_files_place_is_not_even_opened(
    tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    """A writer that waits for a reader of a named pipe would continue."""
    os.mkfifo(tmp_path / "pipe")
    with (
        (tmp_path / "file").open("wb") as file,
        running("/bin/sh", "-c", f"echo >{tmp_path}/pipe") as writer,
    ):
        sink = sink_of(os.getpid(), file.fileno())
        place = os.open(tmp_path / "pipe", os.O_PATH)
        os.dup2(place, file.fileno())
        os.close(place)
        wait_until(lambda: procs.state_letter(writer.pid) == "S", what="the writer to wait")
        with pytest.raises(OSError, match="another file"):
            open_log(sink)
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(0.5)


def test_a_named_pipe_is_never_opened(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    fd = os.open(path, os.O_RDWR)
    try:
        started = time.monotonic()
        sink = sink_of(os.getpid(), fd)
        assert sink.kind == "pipe"
        assert find(os.getpid(), fd).key is None
        assert time.monotonic() - started < 20
    finally:
        os.close(fd)
