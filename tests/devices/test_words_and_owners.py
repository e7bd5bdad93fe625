from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import subprocess
import sys

import pytest
from tests.nvml_stub import build_library

from ddptop_runner.devices.owners import INIT_PID_NAMESPACE, ProcessOwners, user_name
from ddptop_runner.devices.words import throttle_words


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
    assert throttle_words(mask) == words


def test_a_process_of_the_first_namespace_is_described():
    me = pwd.getpwuid(os.getuid()).pw_name
    user, command = ProcessOwners(INIT_PID_NAMESPACE).describe(os.getpid())
    assert user == me
    assert command and "python" in command


def test_a_process_that_is_gone_is_unknown():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert ProcessOwners(INIT_PID_NAMESPACE).describe(child.pid) == (None, None)


def test_a_command_is_one_printable_line_of_limited_length():
    script = "print(flush=True); input()  # \x1b[31m\n#" + "x" * 1000
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        _, command = ProcessOwners(INIT_PID_NAMESPACE).describe(child.pid)
        child.stdin.write(b"\n")
        child.stdin.flush()
    assert len(command) == 400 and command.endswith("...")
    assert command.isprintable()


def test_in_a_container_a_pid_counts_only_with_cuda_in_it(make_stub, tmp_path):
    library = tmp_path / "libcuda.so.1"
    shutil.copy(build_library(), library)
    owners = ProcessOwners(INIT_PID_NAMESPACE + 1)
    assert owners.describe(os.getpid()) == (None, None)
    script = f"import ctypes; ctypes.CDLL({str(library)!r}); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        user, command = owners.describe(child.pid)
        child.stdin.write(b"\n")
        child.stdin.flush()
    assert user and "libcuda" in command


def test_a_user_without_a_name_is_a_number():
    assert user_name(4_000_000_123) == "4000000123"


def test_the_stub_is_what_nvml_would_be(make_stub):
    assert ctypes.CDLL(str(build_library())).nvmlErrorString
