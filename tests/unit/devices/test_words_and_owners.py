from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys

import pytest
from tests.support.nvml_stub import build_library
from tests.support.tables import table

from ddptop_runner.devices import codes
from ddptop_runner.devices.owners import (
    EXITED,
    HIDDEN,
    INIT_PID_NAMESPACE,
    OTHER_NAMESPACE,
    ProcessOwners,
)
from ddptop_runner.devices.words import why_not
from ddptop_runner.model.snapshot import GpuProcess


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (0, []),
        (0x1, []),  # idle
        (0x4 | 0x1, ["power cap"]),
        (0x8, ["hardware slowdown"]),
        (0x8 | 0x40, ["thermal, by hardware"]),
        (0x20 | 0x80 | 0x8, ["thermal, by software", "power brake"]),
        (0x1000, ["0x1000"]),
    ],
)
def test_throttle_reasons_in_words(mask, words):
    assert codes.throttle_names(mask) == words


@pytest.mark.parametrize(("code", "words"), table(__file__, "xids"))
def test_xids_in_words(code, words):
    assert words in codes.xid(code).meaning


@pytest.mark.parametrize(("status", "words"), table(__file__, "unknown"))
def test_why_a_figure_is_unknown(status, words):
    assert words in why_not(status)


def test_a_process_of_the_first_namespace_is_described():
    me = pwd.getpwuid(os.getuid()).pw_name
    owner = ProcessOwners(INIT_PID_NAMESPACE).describe(os.getpid())
    assert owner.user == me
    assert owner.command and "python" in owner.command
    assert owner.note is None


def test_a_process_that_is_gone_is_unknown():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    owner = ProcessOwners(INIT_PID_NAMESPACE).describe(child.pid)
    assert (owner.user, owner.command, owner.note) == (None, None, EXITED)
    assert owner.has_exited


@pytest.mark.parametrize("hidden", ["stat", "open"])
def test_processes_of_others_under_hidepid_are_no_processes_that_ended(monkeypatch, hidden):
    def refuse(*args: object, **options: object) -> None:
        raise PermissionError

    def absent(*args: object) -> None:
        raise FileNotFoundError

    if hidden == "stat":  # hidepid=2: no folder, and no permission to signal
        monkeypatch.setattr(os, "stat", absent)
        monkeypatch.setattr(os, "kill", refuse)
    else:
        monkeypatch.setattr("builtins.open", refuse)
    owner = ProcessOwners(INIT_PID_NAMESPACE).describe(os.getpid())
    monkeypatch.undo()
    assert owner.command is None and owner.note == HIDDEN
    assert (owner.user is None) == (hidden == "stat")


def test_a_command_is_one_printable_line_of_limited_length():
    script = "print(flush=True); input()  # \x1b[31m\n#" + "x" * 1000
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        command = ProcessOwners(INIT_PID_NAMESPACE).describe(child.pid).command
        child.stdin.write(b"\n")
        child.stdin.flush()
    assert len(command) == 400 and command.endswith("...")
    assert command.isprintable()


def test_in_a_container_a_pid_counts_only_with_cuda_in_it(make_stub, tmp_path):
    library = tmp_path / "libcuda.so.1"
    shutil.copy(build_library(), library)
    owners = ProcessOwners(INIT_PID_NAMESPACE + 1)
    unknown = GpuProcess(pid=os.getpid(), note=OTHER_NAMESPACE)
    assert owners.describe(os.getpid()) == unknown
    assert "--pid=host" in OTHER_NAMESPACE
    assert not owners.pids_are_the_drivers
    script = f"import ctypes; ctypes.CDLL({str(library)!r}); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        owner = owners.describe(child.pid)
        child.stdin.write(b"\n")
        child.stdin.flush()
    assert owner.user and "libcuda" in owner.command and owner.note is None
