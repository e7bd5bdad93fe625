"""Fixtures and markers for all tests.

`ddptop_home`
    An empty state folder with a short path (sockets are limited to 107 bytes), exported as
    DDPTOP_HOME, and a separate tmux server named in DDPTOP_TMUX_SOCKET. After the test, the tmux
    server is killed. A process that still has this folder in its environment is killed by PID and
    FAILS the test: a test ends what it starts.
`wait_until`
    `wait_until(condition, timeout_s=60, what="...")` returns the first truthy result of
    `condition()`, and fails the test if there is none in time. Use it instead of sleeping.
`ddptop_cli`
    `ddptop_cli("ls", "--json", timeout_s=120)` runs the command line with this interpreter in
    `ddptop_home`, without a terminal, and returns its CompletedProcess (text).

The markers `tmux`, `torch`, `gloo_records`, `gpu`, `cluster`, and `slurm` skip a test, with a
reason, if what it needs is missing. If it is listed in DDPTOP_TEST_REQUIRE (such as "tmux torch"),
the test fails instead, so that CI skips nothing unnoticed.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

pytest.register_assert_rewrite("tests.support", "benchmarks.faults")

from tests.support.cluster import machines, slurm  # noqa: E402

from ddptop_runner.base import start  # noqa: E402
from ddptop_runner.host import procs  # noqa: E402

T = TypeVar("T")

LEAVE_TIME_S = 30.0
"""How long a test's processes may take to exit after it has ended."""


for _name in ("COLUMNS", "LINES"):  # pytest-xdist sets them, and they override the size of any pty
    os.environ.pop(_name, None)

# a script's `make test &` ignores them, and so would every process that a test starts
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


# --- markers ---------------------------------------------------------------------------------


@functools.cache
def _missing_tmux() -> str | None:
    if shutil.which("tmux") is None:
        return "tmux is not installed"
    said = subprocess.run(
        ["tmux", "-V"], capture_output=True, text=True, check=False
    ).stdout.strip()
    found = re.search(r"(\d+)\.(\d+)([a-z]?)", said)
    if found and (int(found[1]), int(found[2]), found[3]) < (3, 2, "a"):
        return f"{said} is older than 3.2a"
    return None


@functools.cache
def _missing_torch() -> str | None:
    return None if importlib.util.find_spec("torch") else "torch is not installed"


@functools.cache
def _missing_gloo_records() -> str | None:
    script = "import torch; torch._C._distributed_c10d._dump_fr_trace_json"
    asked = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    return "this torch records nothing of gloo" if asked.returncode else None


@functools.cache
def _missing_gpu() -> str | None:
    script = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount())"
    try:  # in a separate process: NVML can block or crash when a device fails
        asked = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False
        )
    except subprocess.TimeoutExpired:
        return "NVML did not answer in 30 s"
    if asked.returncode != 0:
        return f"no NVML device: {(asked.stderr.strip().splitlines() or ['no message'])[-1]}"
    return None if int(asked.stdout) else "NVML reports no device"


_MISSING = {
    "tmux": _missing_tmux,
    "torch": _missing_torch,
    "gloo_records": _missing_gloo_records,
    "gpu": _missing_gpu,
    "cluster": functools.cache(machines.missing),
    "slurm": functools.cache(slurm.missing),
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    required = os.environ.get("DDPTOP_TEST_REQUIRE", "").split()
    for name, missing in _MISSING.items():
        if item.get_closest_marker(name) is None:
            continue
        reason = missing()
        if reason and name in required:
            pytest.fail(f"{reason}, and DDPTOP_TEST_REQUIRE names {name}", pytrace=False)
        if reason:
            pytest.skip(reason)


WAITING = ("system/cluster",)
"""Folders whose tests mostly wait, such as for a timeout, so that a core is free meanwhile."""
SLOW = ("system/jobs", "unit/foreign", "unit/agent", "unit/probe")
"""Folders whose tests import torch or run real training."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of five workers, two begin with files that wait and three with slow ones.

    So cores are busy all the time, and no slow file runs alone at the end.
    """

    def is_in(file: Path, folders: tuple[str, ...]) -> bool:
        return str(file).startswith(tuple(f"{Path(__file__).parent / name}/" for name in folders))

    tests: dict[Path, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(item.path, []).append(item)
    waiting = [file for file in tests if is_in(file, WAITING)]
    others = [file for file in tests if file not in waiting]
    others.sort(key=lambda file: not is_in(file, SLOW))
    items.clear()
    while waiting or others:
        for file in (*waiting[:2], *others[:3]):
            items.extend(tests[file])
        del waiting[:2], others[:3]


# --- processes of a test ---------------------------------------------------------------------


def _processes_of(home: Path) -> list[int]:
    """PIDs, other than ours, whose environment contains `home`; a zombie has no environment."""
    others = (pid for pid in procs.all_pids() if pid != os.getpid())
    return [pid for pid in others if procs.environ_value(pid, "DDPTOP_HOME") == str(home)]


def _describe(pid: int) -> str:
    try:
        argv = (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return f"{pid} (gone meanwhile)"
    return f"{pid} {argv.strip()[:200]}"


def _end_leftovers(home: Path) -> list[str]:
    """Kill processes that do not exit by themselves, and describe them."""
    deadline = time.monotonic() + LEAVE_TIME_S
    while (pids := _processes_of(home)) and time.monotonic() < deadline:
        time.sleep(0.05)
    killed = {pid: _describe(pid) for pid in pids}
    while pids:  # a guardian may start a supervisor between two scans
        for pid in pids:
            killed.setdefault(pid, _describe(pid))
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)
        pids = _processes_of(home)
    return list(killed.values())


def _kill_tmux_server(socket_name: str) -> None:
    if shutil.which("tmux") is None:
        return
    subprocess.run(
        ["tmux", "-L", socket_name, "kill-server"], capture_output=True, timeout=20, check=False
    )
    folder = Path(os.environ.get("TMUX_TMPDIR", "/tmp")) / f"tmux-{os.getuid()}"
    (folder / socket_name).unlink(missing_ok=True)


@pytest.fixture
def ddptop_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty state folder; fails the test if a process outlives it."""
    home = Path(tempfile.mkdtemp(prefix="ddptop-", dir="/tmp")).resolve()
    socket_name = f"ddptop-test-{uuid.uuid4().hex[:10]}"
    for name in [key for key in os.environ if key.startswith("DDPTOP_")]:
        if name != "DDPTOP_TEST_REQUIRE":
            monkeypatch.delenv(name)
    for name in ("TMUX", "TMUX_PANE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DDPTOP_HOME", str(home))
    monkeypatch.setenv("DDPTOP_QUEUE_DIR", "off")  # see no jobs of others on this machine
    monkeypatch.setenv("DDPTOP_TMUX_SOCKET", socket_name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    try:
        yield home
    finally:
        _kill_tmux_server(socket_name)
        left = _end_leftovers(home)
        shutil.rmtree(home, ignore_errors=True)
    if left:
        pytest.fail("processes outlived the test:\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture(autouse=True)
def _umask_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The command line sets a private umask; restore the shell's for the next test."""
    monkeypatch.setattr(start, "_shell_umask", None)
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


# --- small helpers ---------------------------------------------------------------------------


def _wait_until(condition: Callable[[], T], timeout_s: float = 60.0, what: str | None = None) -> T:
    deadline = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout_s:g} s: {what or condition}; last answer {answer!r}")
        time.sleep(0.05)


@pytest.fixture
def wait_until() -> Callable[..., T]:
    """Wait for a condition; see the module's docstring."""
    return _wait_until


@pytest.fixture
def ddptop_cli(ddptop_home: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line; see the module's docstring."""

    def run(*args: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ddptop", *args],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )

    return run
