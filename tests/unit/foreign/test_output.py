"""Where real processes write their output, and reading it there."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time

import pytest
from tests.support.foreign_toys import job_of, lines_in, printer, running

from ddptop_runner.foreign import output
from ddptop_runner.foreign.output import Finder, Output, Pane, Source, open_log
from ddptop_runner.host import procs

SLEEP = (sys.executable, "-c", "import time; time.sleep(1000)")


def find(pid: int, fd: int = 1) -> Output:
    return Finder(job_of(pid), captures=True).find(pid, fd)


def read(output: Output) -> bytes:
    with open_log(output) as log:
        return log.read(1 << 20)


def test_a_file(tmp_path, wait_until):
    path = tmp_path / "train.log"
    with path.open("wb") as file, running(*printer(), stdout=file) as process:
        wait_until(lambda: lines_in(path) > 2)
        found = find(process.pid)
        assert found.words == f"file {path}"
        assert read(found).startswith(b"step 0/1000 loss 2.5000\n")
        assert not found.is_appended
        assert find(process.pid, 2).words != found.words


def test_a_file_that_was_deleted_is_still_read(tmp_path, wait_until):
    path = tmp_path / "train.log"
    with path.open("wb") as file, running(*printer(), stdout=file) as process:
        wait_until(lambda: lines_in(path) > 2)
        path.unlink()
        found = find(process.pid)
        assert found.words == f"file {path} (deleted)"
        assert b"step 1/1000" in read(found)


def test_a_pipe_to_tee_is_read_in_the_file_of_tee(tmp_path, wait_until):
    path = tmp_path / "out.log"
    with (
        running(*printer(), stdout=subprocess.PIPE) as process,
        running("tee", str(path), stdin=process.stdout),
    ):
        wait_until(lambda: lines_in(path) > 2)
        found = find(process.pid)
        assert found.words == f"file {path}"
        assert b"step 1/1000" in read(found)


def test_a_pipe_to_another_program_cannot_be_read(tmp_path):
    with (
        (tmp_path / "its-own.txt").open("wb") as file,
        running(*SLEEP, stdout=subprocess.PIPE) as process,
        running(*SLEEP, stdin=process.stdout, stdout=file),
        running("tee", str(tmp_path / "another"), stdin=subprocess.PIPE) as tee,
    ):
        assert find(process.pid).key is None
        assert tee.stdin is not None
        tee.stdin.close()


def test_pipes_that_lead_to_each_other_are_not_followed(tmp_path, wait_until):
    circle, path = tmp_path / "circle", tmp_path / "out.log"
    os.mkfifo(circle)
    with (
        running(*SLEEP, stdout=subprocess.PIPE) as process,
        running("tee", str(circle), stdin=process.stdout) as first,
        circle.open("rb") as reader,
        running("tee", str(circle), str(path), stdin=reader) as second,
    ):
        wait_until(lambda: {"3", "4"} <= set(os.listdir(f"/proc/{second.pid}/fd")))
        wait_until(lambda: "3" in os.listdir(f"/proc/{first.pid}/fd"))
        assert find(process.pid).key is None
        assert find(first.pid, 3).words == f"file {path}"


def test_a_terminal_is_read_through_tmux_or_not_at_all(monkeypatch):
    master, slave = pty.openpty()
    try:
        with running(*SLEEP, stdout=slave) as process:
            tty = os.ttyname(slave)
            words = f"terminal {tty} outside tmux: not readable"
            assert find(process.pid).words == words
            pane = Pane("/tmp/socket", "%3", "work:1.0")
            monkeypatch.setattr(output, "panes_of", lambda _: {tty: pane})
            shown = find(process.pid)
            assert shown.words == "tmux pane work:1.0 (captured)"
            assert shown.pane == pane
            here = os.stat
            with monkeypatch.context() as at:
                at.setattr(os, "stat", lambda path: here("/dev/null" if path == tty else path))
                others = find(process.pid)
            assert others.words == words, "a container's own terminal of that name"
    finally:
        os.close(master)
        os.close(slave)


def test_closed_or_unowned_descriptors():
    with running(*SLEEP) as process:
        found = find(process.pid, 77)
        assert (found.words, found.key) == (f"closed by pid {process.pid}", None)


def test_a_file_that_is_cut_short_is_read_from_its_start(tmp_path):
    path = tmp_path / "log"
    with path.open("wb", buffering=0) as file:
        source = Source(find(os.getpid(), file.fileno()))
        for text in (b"step 1 loss 2.5, and more\n", b"step 2 loss 1.5\n"):
            os.truncate(path, 0)
            file.seek(0)
            file.write(text)
            readings, _, size = source.read(1000)
            assert size == len(text)
        assert [one.loss for one in readings] == [1.5]
        assert list(source.lines)[-1] == "step 2 loss 1.5"
        source.close()


def test_a_pid_used_again_is_not_read(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    with first.open("wb") as file:
        found = find(os.getpid(), file.fileno())
        with second.open("wb") as other:
            os.dup2(other.fileno(), file.fileno())
            with pytest.raises(OSError, match="another file"):
                open_log(found)


def test_what_was_put_in_a_files_place_is_not_even_opened(tmp_path, wait_until):
    """A writer that waits for a reader of a named pipe would continue."""
    os.mkfifo(tmp_path / "pipe")
    with (
        (tmp_path / "file").open("wb") as file,
        running("/bin/sh", "-c", f"echo >{tmp_path}/pipe") as writer,
    ):
        found = find(os.getpid(), file.fileno())
        place = os.open(tmp_path / "pipe", os.O_PATH)
        os.dup2(place, file.fileno())
        os.close(place)
        wait_until(lambda: procs.state_letter(writer.pid) == "S", what="the writer to wait")
        with pytest.raises(OSError, match="another file"):
            open_log(found)
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(0.5)


def test_a_named_pipe_is_never_opened(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    fd = os.open(path, os.O_RDWR)
    try:
        started = time.monotonic()
        assert find(os.getpid(), fd).key is None
        assert time.monotonic() - started < 20
    finally:
        os.close(fd)
