"""The real program in a real pty."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support import fake_home
from tests.support.terminal import Terminal

from ddptop_runner.host import procs

WaitUntil = Callable[..., Any]
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    fields = procs.stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S if fields else 0.0


def test_a_terminal_that_hangs_up_ends_it_without_a_busy_loop(
    terminal: Callable[..., Terminal], wait_until: WaitUntil
) -> None:
    one = terminal(ignore_hangup=True)
    wait_until(lambda: one.draws(b"all jobs"), what="the overview")
    before = cpu_s(one.process.pid)
    hung_up_at = time.monotonic()
    one.hang_up()
    last = before
    while one.process.poll() is None:  # the last reading before it is gone
        assert time.monotonic() - hung_up_at < 60, "it outlived its terminal"
        last = cpu_s(one.process.pid) or last
        time.sleep(0.02)
    # until the watchdog's next check, within a second, the reader may spin
    assert last - before < 2.0


def test_a_plain_hangup_ends_it(terminal: Callable[..., Terminal], wait_until: WaitUntil) -> None:
    one = terminal()
    wait_until(lambda: one.draws(b"all jobs"), what="the overview")
    one.hang_up()
    wait_until(one.ended, what="its end")


@pytest.mark.parametrize("key", ["d", "q"])
def test_leaving_gives_the_terminal_back(
    terminal: Callable[..., Terminal], wait_until: WaitUntil, ddptop_home: Path, key: str
) -> None:
    fake_home.failed_job(ddptop_home)
    one = terminal("attach", "vit-base")
    wait_until(lambda: one.draws(b"failed first"), what="the job")
    one.type(key)
    wait_until(one.ended, what="its end")
    assert one.process.returncode == 0
    assert one.draws(b"\x1b[?1049l"), "the alternate screen was not left"
    assert b"keeps running" not in one.drawn


@pytest.mark.parametrize(("host", "name"), [(None, "mlp-cpu"), ("me@far", "me@far:mlp-cpu")])
def test_leaving_a_live_job_prints_how_to_return(
    terminal: Callable[..., Terminal],
    wait_until: WaitUntil,
    ddptop_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    host: str | None,
    name: str,
) -> None:
    if host is not None:
        monkeypatch.setenv("DDPTOP_ATTACHED_HOST", host)
    fake_home.two_cpu_ranks(ddptop_home)
    one = terminal("attach", "mlp-cpu")
    wait_until(lambda: one.draws(b"rank 0"), what="the job")
    one.type("q")
    wait_until(one.ended, what="its end")
    assert one.draws(f"{name} keeps running; reattach with `ddptop attach {name}`".encode())


def test_sigterm_gives_the_terminal_back(
    terminal: Callable[..., Terminal], wait_until: WaitUntil
) -> None:
    one = terminal()
    wait_until(lambda: one.draws(b"all jobs"), what="the overview")
    one.process.terminate()
    wait_until(one.ended, what="its end")
    assert one.draws(b"\x1b[?1049l"), "the alternate screen was not left"


def test_a_log_cannot_clear_the_screen(
    terminal: Callable[..., Terminal], wait_until: WaitUntil, ddptop_home: Path
) -> None:
    folder = fake_home.failed_job(ddptop_home)
    fake_home.write_log(folder, 2, 1, "before\x1b[2J\x1b]0;title\x07after\n")
    one = terminal("attach", "vit-base")
    wait_until(lambda: one.draws(b"beforeafter"), what="the log")
    assert b"]0;title" not in one.drawn


def test_a_redirected_stderr_is_refused(ddptop_home: Path, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    with contextlib.closing((tmp_path / "err").open("w+")) as errors:
        ended = subprocess.run(
            [sys.executable, "-m", "ddptop"],
            stdin=slave,
            stdout=slave,
            stderr=errors,
            timeout=60,
            check=False,
        )
        errors.seek(0)
        said = errors.read()
    os.close(master)
    os.close(slave)
    assert ended.returncode == 2
    assert "terminal" in said
