"""The real program in terminals that are limited, resized, stopped, or nested."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import fake_home
from tests.support.terminal import Terminal

from ddptop_runner.host import procs

WaitUntil = Callable[..., Any]
OpenTerminal = Callable[..., Terminal]

ALTERNATE, BACK = b"\x1b[?1049h", b"\x1b[?1049l"
UTF8 = {"LC_ALL": "C.UTF-8"}


def state_of(pid: int) -> str:
    fields = procs.stat_fields(pid)
    return fields[0] if fields else "gone"


def test_terminals_of_every_kind(
    terminal: OpenTerminal, wait_until: WaitUntil, ddptop_home: Path
) -> None:
    fake_home.failed_job(ddptop_home)
    kinds = ("xterm", "screen", "tmux-256color", "linux", "vt100", "no-such-terminal", "")
    opened = {kind: terminal(env={"TERM": kind, **UTF8}) for kind in kinds}
    for kind, one in opened.items():
        wait_until(lambda one=one: one.draws(b"vit-base"), what=f"the overview in {kind}")
        one.type("q")
    for kind, one in opened.items():
        wait_until(one.ended, what=f"its end in {kind}")
        assert one.process.returncode == 0
        assert one.draws(BACK), kind
        is_poor = kind in ("linux", "vt100")
        assert one.drawn.isascii() is is_poor, kind


def test_dumb_terminal_gets_one_line_with_a_remedy(
    terminal: OpenTerminal, wait_until: WaitUntil
) -> None:
    one = terminal(env={"TERM": "dumb"})
    wait_until(one.ended, what="its end")
    assert one.process.returncode == 2
    (said,) = one.drawn.decode().splitlines()
    assert "TERM=dumb" in said and "ddptop ls" in said


def test_without_a_locale_for_it_nothing_but_ascii_is_written(
    terminal: OpenTerminal, wait_until: WaitUntil, ddptop_home: Path
) -> None:
    folder = fake_home.failed_job(ddptop_home)
    fake_home.write_log(folder, 2, 1, "Grüße, 日本 and \x1b]0;t\x07 ✓\n")
    plain = terminal("attach", "vit-base", env={"LC_ALL": "C"})
    asked = terminal("attach", "--ascii", "vit-base", env=UTF8)
    wait_until(lambda: plain.draws(b"Gr??e, ???? and "), what="the log")
    wait_until(lambda: asked.draws("Grüße, 日本 and ".encode()), what="the log")
    for one in (plain, asked):
        one.type("?")
        wait_until(lambda one=one: one.draws(b"keys on this screen"), what="the help")
        one.type("qq")
        wait_until(one.ended, what="its end")
    assert plain.drawn.isascii()
    names = "üß日本"
    assert {letter for letter in asked.drawn.decode() if not letter.isascii()} <= set(names)


def test_sizes_change_while_it_runs(
    terminal: OpenTerminal, wait_until: WaitUntil, ddptop_home: Path
) -> None:
    fake_home.failed_job(ddptop_home)
    one = terminal(size=(60, 18))
    wait_until(lambda: one.draws(b"vit-base"), what="the overview")
    for sizes in [((300, 100), (60, 18))] * 15 + [((20, 5), (1, 1), (7, 2), (400, 3), (3, 200))]:
        for columns, rows in sizes:
            one.resize(columns, rows)
            one.draws(b"")
    one.resize(110, 30)
    one.drawn = b""
    wait_until(lambda: one.draws(b"vit-base") and one.draws(b"\x1b[30;1H"), what="the last size")
    one.type("\x1b[F\r")  # end: the jobs of other tests come first
    wait_until(lambda: one.draws(b"failed first"), what="the job")
    for columns, rows in ((20, 5), (300, 100), (5, 1), (110, 30)):
        one.resize(columns, rows)
        one.draws(b"")
    one.type("d")
    wait_until(one.ended, what="its end")
    assert one.process.returncode == 0


def test_suspending_is_refused_by_key_and_clean_by_signal(
    terminal: OpenTerminal, wait_until: WaitUntil
) -> None:
    one = terminal()
    wait_until(lambda: one.draws(b"all jobs"), what="the overview")
    one.type("\x1a")
    wait_until(lambda: one.draws(b"cannot be suspended"), what="the refusal")
    assert state_of(one.process.pid) != "T"
    one.process.send_signal(signal.SIGTSTP)
    wait_until(lambda: state_of(one.process.pid) == "T", what="its stop")
    assert one.draws(BACK), "the terminal was left in the alternate screen"
    one.drawn = b""
    one.process.send_signal(signal.SIGCONT)
    wait_until(lambda: one.draws(ALTERNATE) and one.draws(b"all jobs"), what="its screen again")
    one.process.send_signal(signal.SIGSTOP)  # this signal cannot be ignored
    wait_until(lambda: state_of(one.process.pid) == "T", what="its stop")
    one.draws(b"")
    one.drawn = b""
    one.process.send_signal(signal.SIGCONT)
    wait_until(lambda: one.draws(ALTERNATE) and one.draws(b"all jobs"), what="its screen again")
    one.type("q")
    wait_until(one.ended, what="its end, with no thread left behind")
    assert one.process.returncode == 0


@pytest.fixture
def multiplexer() -> Iterator[list[list[str]]]:
    """Commands that end what a test started."""
    ending: list[list[str]] = []
    yield ending
    for command in ending:
        subprocess.run(command, capture_output=True, check=False)


DDPTOP = f"exec {sys.executable} -m ddptop"


@pytest.mark.tmux
def test_inside_of_tmux(
    wait_until: WaitUntil, multiplexer: list[list[str]], ddptop_home: Path
) -> None:
    fake_home.failed_job(ddptop_home)
    tmux = ["tmux", "-L", f"hostile-{uuid.uuid4().hex[:8]}", "-f", "/dev/null", "-u"]
    multiplexer.append([*tmux, "kill-server"])
    env = {**os.environ, **UTF8}
    session = ["new-session", "-d", "-x", "100", "-y", "30", DDPTOP]
    subprocess.run([*tmux, *session], check=True, env=env)

    def rows() -> list[str]:
        command = [*tmux, "capture-pane", "-p"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.splitlines() or [""]

    wait_until(lambda: any("vit-base" in row and "✗ failed" in row for row in rows()), what="it")
    wait_until(lambda: rows()[-1].rstrip().endswith("? Help"), what="the keys")
    assert rows()[0].startswith(" ddptop  all jobs")
    assert {len(row) for row in rows()} <= set(range(101))
    subprocess.run([*tmux, "resize-window", "-x", "70", "-y", "20"], check=True)
    wait_until(lambda: len(rows()) == 20 and "? Help" in rows()[-1], what="the new size")
    subprocess.run([*tmux, "send-keys", "q"], check=True)
    gone = [*tmux, "has-session"]
    wait_until(lambda: subprocess.run(gone, capture_output=True, check=False).returncode)
