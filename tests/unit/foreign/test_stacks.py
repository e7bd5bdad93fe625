"""Stacks of real processes, read by the real py-spy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.support.foreign_toys import rank_of, running, wait_for_state
from tests.support.tables import table

from ddptop_runner.foreign import actions
from ddptop_runner.host import procs

WAITS = """
import time
def all_reduce():
    time.sleep(1000)
print("here", flush=True)
all_reduce()
"""


def test_where_a_python_process_stands_and_that_it_was_not_paused(wait_until):
    with running(sys.executable, "-c", WAITS, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found: list = []

        def taken() -> bool:
            found[:] = actions.read_stacks([rank_of(process.pid, 3)])
            return bool(found[0].text) and "all_reduce" in found[0].text

        wait_until(taken)
        (one,) = found
        assert (one.rank, one.pid, one.note) == (3, process.pid, None)
        wait_for_state(process.pid, "S", wait_until)
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert "TracerPid:\t0" in status


def test_process_without_python_is_reported(wait_until):
    with running("sleep", "1000") as process:
        wait_until(lambda: b"sleep" in Path(f"/proc/{process.pid}/cmdline").read_bytes())
        (one,) = actions.read_stacks([rank_of(process.pid)], timeout_s=60.0)
        assert one.text is None
        assert one.note is not None
        assert one.note.startswith("py-spy failed: ")


def test_a_process_that_is_gone_or_another_now():
    rank = rank_of(os.getpid())
    (one,) = actions.read_stacks([msgspec.structs.replace(rank, start_ticks=rank.start_ticks - 1)])
    assert one.note == f"pid {os.getpid()} has exited"


def test_without_py_spy_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr(actions, "find_py_spy", lambda: None)
    (one,) = actions.read_stacks([rank_of(os.getpid())])
    assert one.note is not None
    assert "pip install" in one.note


def test_it_is_searched_next_to_python_and_then_on_path(tmp_path, monkeypatch):
    tool = tmp_path / "py-spy"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    assert actions.find_py_spy() == os.fspath(Path(sys.executable).parent / "py-spy")
    monkeypatch.setattr(sys, "executable", os.fspath(tmp_path / "bin" / "python"))
    assert actions.find_py_spy() == os.fspath(tool)


def test_one_that_hangs_is_given_up(tmp_path, monkeypatch):
    tool = tmp_path / "py-spy"
    tool.write_text("#!/bin/sh\nexec sleep 30\n")
    tool.chmod(0o755)
    monkeypatch.setattr(actions, "find_py_spy", lambda: os.fspath(tool))
    found = actions.read_stacks([rank_of(os.getpid(), 0), rank_of(os.getpid(), 1)], timeout_s=0.3)
    assert [one.note for one in found] == ["py-spy timed out; try a single rank"] * 2


@pytest.mark.parametrize(("error", "words"), table(__file__, "complaints"))
def test_what_it_complains_of(error, words, tmp_path, monkeypatch):
    tool = tmp_path / "py-spy"
    tool.write_text(f"#!/bin/sh\necho '{error}' >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setattr(actions, "find_py_spy", lambda: os.fspath(tool))
    (one,) = actions.read_stacks([rank_of(os.getpid())])
    assert one.text is None
    assert words in (one.note or "")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_without_permission_the_remedy_is_named(tmp_path, monkeypatch):
    """As `nobody`, through setpriv; py-spy must be readable there."""
    tool = tmp_path / "py-spy"
    real = actions.find_py_spy()
    assert real is not None
    tool.write_text(f'#!/bin/sh\nexec setpriv --reuid=65534 --clear-groups {real} "$@"\n')
    tool.chmod(0o755)
    monkeypatch.setattr(actions, "find_py_spy", lambda: os.fspath(tool))
    (one,) = actions.read_stacks([rank_of(os.getpid())], timeout_s=60.0)
    assert one.text is None
    assert one.note is not None
    assert "no permission" in one.note
    assert procs.state_letter(os.getpid()) != "T"
