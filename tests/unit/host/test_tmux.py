"""ddptop's own tmux server, whatever the user's tmux, shell, and configuration."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddptop_runner.base.errors import DdptopError, UsageError
from ddptop_runner.host import tmux, tmux_server


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("tmux 3.2a", (3, 2, "a")),
        ("tmux 3.2a\n", (3, 2, "a")),
        ("tmux 3.4", (3, 4, "")),
        ("tmux next-3.6", (3, 6, "")),
        ("tmux 3.10", (3, 10, "")),
        ("tmux 3.3-rc2", (3, 3, "")),
        ("tmux openbsd-7.4", (7, 4, "")),
        ("tmux master", None),
        ("", None),
    ],
)
def test_parse_version(text, version):
    assert tmux.parse_version(text) == version


def fake_tmux(folder: Path, text: str) -> str:
    """A PATH with this shell script as `tmux`, and nothing else."""
    path = folder / "tmux"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(folder)


VERSIONS = {
    "newer": ("echo 'tmux 3.5a'", None),
    "the first that will do": ("echo 'tmux 3.2a'", None),
    "3.2 lacks what 3.2a mended": ("echo 'tmux 3.2'", "tmux 3.2 is too old (3.2a or newer"),
    "old": ("echo 'tmux 2.9a'", "tmux 2.9a is too old"),
    "very old": ("echo 'tmux 1.8'", "tmux 1.8 is too old"),
    "no version": ("echo 'tmux master'", "cannot determine the tmux version (tmux master)"),
    "knows no -V": ("echo 'usage: tmux' >&2; exit 1", "tmux version (usage: tmux)"),
    "broken": ("exec /none/such", "cannot determine the tmux version"),
    "no program at all": (None, "tmux is not installed"),
}


@pytest.mark.parametrize("case", VERSIONS.values(), ids=list(VERSIONS))
def test_why_a_tmux_cannot_be_used(tmp_path, monkeypatch, case):
    text, reason = case
    monkeypatch.setenv("PATH", str(tmp_path) if text is None else fake_tmux(tmp_path, text))
    found = tmux.why_unusable()
    if reason is None:
        assert found is None
    else:
        assert found is not None and reason in found and "\n" not in found


def test_a_tmux_for_another_machine_cannot_be_used(tmp_path, monkeypatch):
    (tmp_path / "tmux").write_bytes(b"\x7fELF\x00")
    (tmp_path / "tmux").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = tmux.why_unusable()
    assert found is not None and found.startswith("tmux cannot be run (")


def test_a_server_that_never_answers_cannot_be_used(tmp_path, monkeypatch):
    monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path))
    monkeypatch.setattr(tmux, "ANSWER_S", 0.3)
    assert tmux.why_unusable() is None
    tmux.socket_dir().mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmux.socket_dir() / tmux.socket_name()))
        silent.listen()
        assert tmux.why_unusable() == f"the tmux server {tmux.socket_name()!r} does not respond"


def test_words_reach_the_program_as_they_are():
    argv = ["/p y/x", "a b", "$HOME", "'", '"', "#{pid}", "", ";", "日本"]
    command = tmux_server.shell_words(argv, Path("/a 'b"))
    assert shlex.split(command)[-len(argv) - 1 :] == ["exec", *argv]


@pytest.fixture
def ask(ddptop_home) -> Callable[..., str]:
    """`ask(*words)`: the server's response."""

    def run(*words: str) -> str:
        command = ["tmux", "-L", os.environ["DDPTOP_TMUX_SOCKET"], *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    return run


WITNESS = """
import json, os, sys, time
seen = [sys.argv[2:], os.getcwd(), dict(os.environ)]
with open(sys.argv[1] + ".part", "w") as file:
    json.dump(seen, file)
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(60)
"""


def start(home: Path, *argv: str, name: str = "train") -> Path:
    """Start a session whose program records how it was started; returns the file that it will
    write."""
    file = home / f"{name}.json"
    words = [sys.executable, "-S", "-c", WITNESS, str(file), *argv]
    job_id = home / f"{name} id"
    job_id.write_text(f"{name}@1\nmore\n")
    tmux_server.start_session(name, words, home, job_id)
    return file


def witnessed(file: Path, wait_until: Callable[..., object]) -> tuple[list[str], str, dict]:
    import json

    wait_until(file.exists, what="the pane's program to start")
    argv, cwd, env = json.loads(file.read_text())
    return argv, cwd, env


@pytest.mark.tmux
def test_the_pane_runs_the_words_in_the_folder_with_the_variable(ddptop_home, ask, wait_until):
    odd = ["a b", "$HOME", "'", "#{pid}", "", ";", "日本"]
    argv, cwd, env = witnessed(start(ddptop_home, *odd), wait_until)
    assert argv == odd
    assert cwd == str(ddptop_home)
    assert env["DDPTOP_JOB_ID"] == "train@1"
    assert ask("list-sessions", "-F", "#{session_name} #{session_attached}") == "train 0\n"
    assert ask("list-panes", "-t", "train", "-F", "#{pane_start_command}").count("exec") == 1


HOSTILE = """
set -g default-command "exec false"
set -g default-shell /bin/false
set -g remain-on-exit on
set -g destroy-unattached on
set-hook -g session-created "kill-server"
set -g status off
garbage that is no command
"""


@pytest.mark.tmux
def test_the_persons_own_config_and_shell_do_not_matter(
    ddptop_home, tmp_path, ask, wait_until, monkeypatch
):
    (tmp_path / ".tmux.conf").write_text(HOSTILE)
    (tmp_path / ".config" / "tmux").mkdir(parents=True)
    (tmp_path / ".config" / "tmux" / "tmux.conf").write_text(HOSTILE)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    monkeypatch.setenv("SHELL", "/bin/false")
    witnessed(start(ddptop_home), wait_until)
    options = ask("show-options", "-g")
    assert "destroy-unattached off" in options
    assert "default-shell /bin/sh" in options
    assert ask("show-options", "-gw", "remain-on-exit") == "remain-on-exit off\n"


@pytest.mark.tmux
def test_one_server_holds_all_jobs_and_a_name_is_taken_once(ddptop_home, ask, wait_until):
    for name in ("train", "train-2", "tra"):
        witnessed(start(ddptop_home, name=name), wait_until)
    assert sorted(ask("list-sessions", "-F", "#{session_name}").split()) == [
        "tra",
        "train",
        "train-2",
    ]
    with pytest.raises(UsageError, match="session 'train' already exists"):
        start(ddptop_home, name="train")
    assert len(ask("list-sessions").splitlines()) == 3


@pytest.mark.tmux
def test_the_session_goes_with_its_program_and_the_server_with_the_last(
    ddptop_home, ask, wait_until
):
    witnessed(start(ddptop_home), wait_until)
    os.kill(int(ask("list-panes", "-t", "train", "-F", "#{pane_pid}")), 9)
    wait_until(lambda: ask("list-sessions") == "", what="the server to end")


@pytest.mark.tmux
def test_a_session_is_ended_by_its_exact_name(ddptop_home, ask, wait_until):
    for name in ("train", "train-2"):
        witnessed(start(ddptop_home, name=name), wait_until)
    tmux_server.end_session("tra")  # tmux itself would accept a unique prefix
    tmux_server.end_session("train-")
    assert len(ask("list-sessions").splitlines()) == 2
    tmux_server.end_session("train")
    assert ask("list-sessions", "-F", "#{session_name}") == "train-2\n"


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", ".."])
def test_a_socket_name_that_is_a_path_is_refused(monkeypatch, name):
    monkeypatch.setenv("DDPTOP_TMUX_SOCKET", name)
    with pytest.raises(UsageError, match="is not a file name; use a plain name"):
        tmux.socket_name()


DYING = """
real={real}
case "$*" in
*new-session*) what=new ;;
*) exec "$real" "$@" ;;
esac
echo >> "$0.$what"
[ "$(wc -l < "$0.$what")" -gt {times} ] && exec "$real" "$@"
case {way} in  # each was seen of a client whose server was killed meanwhile
silent) exit 0 ;;
*) echo 'server exited unexpectedly' >&2; exit 1 ;;
esac
"""


@pytest.mark.tmux
@pytest.mark.parametrize(
    ("way", "times", "error"),
    [
        ("silent", 2, None),
        ("silent", 99, "its server keeps exiting"),
        ("said", 2, None),
        ("said", 99, "server exited unexpectedly"),
    ],
)
def test_server_killed_meanwhile_is_restarted(
    ddptop_home, tmp_path, ask, wait_until, monkeypatch, way, times, error
):
    text = DYING.format(real=shutil.which("tmux"), way=way, times=times)
    monkeypatch.setenv("PATH", f"{fake_tmux(tmp_path, text)}:{os.environ['PATH']}")
    monkeypatch.setattr(tmux_server, "TRY_AGAIN_S", 0.01)
    if error is None:
        witnessed(start(ddptop_home), wait_until)
        assert ask("list-sessions", "-F", "#{session_name}") == "train\n"
    else:
        with pytest.raises(DdptopError, match=error):
            start(ddptop_home)


def test_unresponsive_tmux_is_not_touched(monkeypatch):
    def stands_still(command: list[str], *_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired(command, 5)

    monkeypatch.setattr(tmux_server.programs, "run", stands_still)
    tmux_server.end_session("train")
