"""The terminal of a command: its output reaches the log even if the pump fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddptop_runner.agent.command import PUMP_MAIN, Terminal
from ddptop_runner.agent.link import ExitWatch
from ddptop_runner.host import procs, tree

WRITER = """
import os, sys
print(sys.stdout.isatty(), *os.get_terminal_size())
try:
    os.open("/dev/tty", os.O_RDWR)
except OSError:
    print("nobody's controlling terminal", flush=True)
sys.stdin.readline()
for number in range(3000):
    print(f"line {number} of many, to be found again")
"""


@pytest.fixture
def watch() -> Iterator[ExitWatch]:
    def ended(process: subprocess.Popen[bytes], about: dict[str, Terminal]) -> None:
        about["terminal"].pump_ended(process.returncode)

    return ExitWatch(ended)


def run_in(terminal: Terminal, program: str) -> subprocess.Popen[bytes]:
    writer = subprocess.Popen(
        [sys.executable, "-S", "-c", program],
        stdin=subprocess.PIPE,
        stdout=terminal.slave,
        stderr=terminal.slave,
        start_new_session=True,
    )
    terminal.hand_over()
    return writer


def pumps() -> list[int]:
    mine = tree.children_of(os.getpid())
    found = [pid for pid in mine if PUMP_MAIN in procs.argv(pid)]
    return [pid for pid in found if procs.state_letter(pid) not in (None, "Z")]


def test_all_output_reaches_the_log_even_if_a_pump_dies(tmp_path: Path, watch, wait_until):
    log = tmp_path / "launcher.log"
    with log.open("ab") as file:
        terminal = Terminal(file.fileno(), watch)
    writer = run_in(terminal, WRITER)
    wait_until(lambda: b"nobody's" in log.read_bytes(), what="the first lines")
    (first,) = pumps()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: first not in pumps(), what="its end")  # what it has read is lost with it
    writer.communicate(b"\n", timeout=30)
    wait_until(lambda: pumps() == [], what="the last pump's end")
    lines = log.read_bytes().split(b"\n")
    assert lines[:2] == [b"True 120 40", b"nobody's controlling terminal"]
    assert lines[2:-1] == [b"line %d of many, to be found again" % n for n in range(3000)]
    terminal.close()


def test_full_disk_does_not_block_the_command(watch, wait_until):
    with Path("/dev/full").open("ab") as file:
        terminal = Terminal(file.fileno(), watch)
    writer = run_in(terminal, WRITER)
    writer.communicate(b"\n", timeout=30)
    assert writer.returncode == 0
    wait_until(lambda: pumps() == [], what="the pump's end")
    assert terminal._pumps == 1
    terminal.close()


def test_pump_drains_output_before_it_exits(tmp_path: Path, watch, wait_until):
    log = tmp_path / "launcher.log"
    with log.open("ab") as file:
        terminal = Terminal(file.fileno(), watch)
    writer = run_in(terminal, "import sys; print('before', flush=True); sys.stdin.readline()")
    wait_until(lambda: log.read_bytes() == b"before\n", what="the line")
    for pid in pumps():
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: pumps() == [], what="the pump's end")
    writer.communicate(b"\n", timeout=30)
    terminal.close()
