"""Text from tmux panes, which are not disturbed."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.foreign_toys import job_of, printer, running
from tests.support.programs import captured
from tests.support.tables import table

from ddptop_runner.base import programs
from ddptop_runner.foreign import output as panes
from ddptop_runner.foreign.output import (
    Pane,
    PaneReader,
    capture,
    is_own_server,
    list_panes,
    shared,
)
from ddptop_runner.host import procs

BEFORE = ["a", "b", "c", "bar 1"]


def new_lines(before: list[str], after: list[str]) -> list[str]:
    return after[shared(before, after)[0] :]


@pytest.mark.parametrize(("after", "new"), table(__file__, "captures"))
def test_the_difference_between_two_captures(after, new):
    assert new_lines(BEFORE, after) == new


def reader() -> PaneReader:
    return PaneReader(Pane("/none", "%0", "none:0.0"))


def test_the_last_line_is_handed_out_when_it_is_followed_or_rests():
    one = reader()
    assert one.add(["a", "b"]) == ["a"]
    assert one.last == "b"
    assert one.add(["a", "b", "c"]) == ["b"]
    assert one.add(["a", "b", "c"]) == ["c"]  # no change
    assert one.add(["a", "b", "c"]) == []
    assert one.add(["a", "b", "c", "d"]) == []  # c was returned
    assert one.add(["a", "b", "c", "e"]) == []  # d became e
    assert one.last == "e"
    assert one.add(["b", "c", "e", "f", "g"]) == ["e", "f"]


# -- a real tmux -----------------------------------------------------------------------------------


class Server:
    """The test's own tmux server."""

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)

    def run(self, *command: str) -> str:
        return captured(
            *["tmux", "-u", "-S", self.path, "-f", "/dev/null"],
            *command,
            timeout=60,
            check=True,
            env={**os.environ, "TMUX": ""},
        ).stdout

    def start(self, command: str) -> Pane:
        self.run("new-session", "-d", "-s", "work", "-x", "60", "-y", "10", command)
        (found,) = list_panes(self.path).values()
        return found

    def state(self) -> str:
        """Everything about a pane that reading it could change."""
        return self.run(
            "list-panes",
            "-a",
            "-F",
            "#{pane_id} #{pane_width}x#{pane_height} #{pane_in_mode} #{pane_pipe} #{pane_dead}"
            " #{window_layout} #{session_attached} #{session_last_attached} #{window_activity_flag}"
            " #{pane_pid} #{scroll_position} #{client_name} #{buffer_size}",
        )


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(panes, "TIMEOUT_S", 60.0)  # it responds, however busy the machine is
    with tempfile.TemporaryDirectory(prefix="ddptop-", dir="/tmp") as folder:
        path = Path(folder, "socket")
        yield Server(path)
        kill = ["tmux", "-S", os.fspath(path), "kill-server"]
        subprocess.run(kill, capture_output=True, check=False)


@pytest.mark.tmux
def test_a_pane_is_read_and_left_as_it_was(server, tmp_path, wait_until):
    script = tmp_path / "toy.py"
    script.write_text(
        "import sys, time\n"
        "print('wide ' + 'é━' * 40)\n"
        "for i in range(40): print(f'step {i} loss {2 - i / 100:.2f}')\n"
        "print('bar 40%', end='', flush=True)\n"
        "sys.stdin.readline()\n"
        "print('\\rbar 50%', end='', flush=True)\n"
        "time.sleep(1000)\n"
    )
    pipe = tmp_path / "piped"
    pane = server.start(shlex.join([printer()[0], os.fspath(script)]))
    server.run("pipe-pane", "-t", pane.id, f"cat > {shlex.quote(os.fspath(pipe))}")
    one = PaneReader(pane)
    wait_until(lambda: (capture(pane) or [""])[-1] == "bar 40%")
    before = server.state()
    lines = one.read()
    assert lines is not None
    assert lines[0] == "wide " + "é━" * 40  # wrapped on the screen
    assert lines[-1] == "step 39 loss 1.61"  # from the history, 10 lines high
    assert [line for line in lines if line.startswith("step")] == [
        f"step {i} loss {2 - i / 100:.2f}" for i in range(40)
    ]
    assert one.last == "bar 40%"
    for _ in range(3):
        assert one.read() in ([], ["bar 40%"])
    assert server.state() == before
    assert capture(pane)[-1] == "bar 40%"  # type: ignore[index]
    server.run("send-keys", "-t", pane.id, "Enter")
    wait_until(lambda: one.read() is not None and one.last == "bar 50%")


@pytest.mark.tmux
def test_a_pane_is_found_by_its_terminal(server):
    pane = server.start("sleep 1000")
    tty = server.run("list-panes", "-a", "-F", "#{pane_tty}").strip()
    assert list_panes(server.path)[tty].name == "work:0.0"
    assert is_own_server(server.path)
    server.run("rename-session", "-t", "work", "a\u241eb")  # libtmux's separator
    assert list_panes(server.path)[tty].name == "a\u241eb:0.0"
    server.run("kill-server")
    assert list_panes(server.path) == {}
    assert capture(pane) is None


def test_only_a_socket_in_a_private_folder_is_asked(tmp_path, monkeypatch):
    folder = tmp_path / "tmux"
    folder.mkdir(mode=0o700)
    (folder / "no-socket").write_text("")
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("default")
        (folder / "link").symlink_to("default")
        assert is_own_server(f"{folder}/default")
        for path in ("default", "/nowhere", f"{folder}/link", f"{folder}/no-socket", f"{folder}/."):
            assert not is_own_server(path)
        folder.chmod(0o750)
        assert not is_own_server(f"{folder}/default")


def test_only_the_server_of_ones_own_job_is_asked(tmp_path, monkeypatch, wait_until):
    folder = tmp_path / "tmux"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    monkeypatch.chdir(folder)
    asked: list[str] = []
    monkeypatch.setattr(panes, "list_panes", lambda path: asked.append(path) or {})
    environ = {**os.environ, "TMUX": f"{folder}/s,1,0"}
    with socket.socket(socket.AF_UNIX) as one, running("sleep", "1000", env=environ) as process:
        one.bind("s")
        wait_until(lambda: procs.environ_value(process.pid, "TMUX"), what="its variables")
        job = job_of(process.pid)
        panes.panes_of(job)
        assert asked == [], "anyone can write to the folder"
        folder.chmod(0o700)
        panes.panes_of(job)
        assert asked == [f"{folder}/s"]
        monkeypatch.setattr(procs, "uid_of", lambda pid: os.geteuid() + 1)
        panes.panes_of(job)
        assert len(asked) == 1, "another user's job"


def test_unresponsive_server_is_not_touched(tmp_path, monkeypatch):
    monkeypatch.setattr(panes, "TIMEOUT_S", 0.2)
    asked, run = [], programs.run
    monkeypatch.setattr(
        programs, "run", lambda words, *how, **env: asked.append(words) or run(words, *how, **env)
    )
    fake = tmp_path / "tmux"
    fake.write_text("#!/bin/sh\nexec sleep 10\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    path = os.fspath(tmp_path / "hung")
    assert list_panes(path) == {}
    assert list_panes(path) == {}
    assert len(asked) == 1
