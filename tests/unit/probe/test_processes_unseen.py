"""A script that has a probe notices nothing of it: its output, threads, signals and files."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.support.probe_ranks import same_with_and_without

from ddptop_runner.probe import evidence

# --- unseen ----------------------------------------------------------------------------------


UNSEEN = """
import atexit, os, random, sys, threading, warnings
warnings.simplefilter("error")
random.seed(7)
import torch
atexit.register(lambda: print("mine at exit", threading.active_count()))
print(threading.active_count(), [t.name for t in threading.enumerate()], random.random())
print(sorted(os.listdir("/proc/self/fd"), key=int)[:4], random.getstate()[1][:3])
pid = os.fork()
if pid == 0:
    print("child", threading.active_count(), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print("parent", random.random())
sys.stdout.flush()
sys.stderr.write("to stderr\\n")
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("", 0),
        ("sys.exit(7)", 7),
        ("raise KeyError('x')", 1),
        ("os._exit(9)", 9),
        ("os.abort()", -6),
    ],
)
def test_output_and_status_are_the_same_with_the_probe(stub_torch, end, status):
    script = stub_torch.write("unseen.py", UNSEEN + end)
    assert same_with_and_without(stub_torch, script)[0] == status
    assert stub_torch.receiver.messages, "the probe was not there at all"


def test_the_probes_thread_is_not_there_while_the_process_forks(stub_torch):
    # Python 3.12 counts threads around a fork and warns of each that is not the forking one
    script = (
        "import os, sys, time, torch\n"
        "def threads(): return len(os.listdir('/proc/self/task'))\n"
        "def settled(number):\n"  # how long the kernel takes to end a thread is its own affair
        "    end = time.monotonic() + 30\n"
        "    while threads() != number and time.monotonic() < end: time.sleep(0.001)\n"
        "    return threads()\n"
        "probe = sys.modules['_ddptop_probe']\n"
        "for _ in range(20):\n"
        "    pid = os.fork()\n"
        "    if not pid: os._exit(threads() - 1)\n"
        "    assert os.waitpid(pid, 0)[1] == 0 and settled(2) == 2\n"
        "    probe._before_fork()\n"
        "    print(settled(1), end=''); probe._after_fork_in_parent()\n"
    )
    assert stub_torch.run("-W", "error", "-c", script) == (0, "1" * 20, "")


def test_the_probes_thread_takes_no_signals(stub_torch, wait_until):
    process = stub_torch.start("-c", "import torch; input()")
    wait_until(lambda: stub_torch.receiver.messages, what="a first datagram")
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    (thread,) = [task for task in tasks if task.name != str(process.pid)]
    status = dict(line.split(":\t") for line in (thread / "status").read_text().splitlines())
    blocked = int(status["SigBlk"], 16)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, evidence.STACK_SIGNAL):
        assert blocked >> (number - 1) & 1
    process.communicate("\n")


def test_a_signal_reaches_the_scripts_own_thread(stub_torch, wait_until):
    script = (
        "import signal, sys, torch\n"
        "def end(*_): signal.signal(signal.SIGTERM, signal.SIG_IGN); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('ready', flush=True)\n"
        "signal.pause()"
    )
    process = stub_torch.start("-c", script)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"

    def ends() -> bool:
        process.send_signal(signal.SIGTERM)  # again, if it came just before pause()
        return process.poll() is not None

    wait_until(ends, what="its end")
    process.communicate()
    assert process.returncode == 3
    assert stub_torch.receiver.last(process.pid).final


# --- stacks ----------------------------------------------------------------------------------


def test_the_stack_signal_writes_all_stacks_and_the_rank_lives(stub_torch, wait_until):
    script = "import torch\ndef wait_here(): print('here', flush=True); input()\nwait_here()"
    process = stub_torch.start("-c", script)
    assert process.stdout is not None and process.stdout.readline() == "here\n"
    wait_until(lambda: stub_torch.receiver.messages, what="a first datagram")
    number = stub_torch.receiver.messages[0].stack_signal
    assert number == evidence.STACK_SIGNAL == signal.SIGRTMIN + 9
    file = stub_torch.folder / "stacks" / "attempt-2-rank-3.txt"
    assert file.read_text() == "" and file.stat().st_mode & 0o777 == 0o600
    for times in (1, 2):
        process.send_signal(number)
        wait_until(lambda n=times: file.read_text().count("in wait_here") == n, what="stacks")
    process.communicate("\n")
    assert process.returncode == 0


def test_a_late_request_for_stacks_kills_no_rank_that_is_exiting(stub_torch):
    number = evidence.STACK_SIGNAL
    script = (  # as its last act, the process raises the signal that its exit status names
        "import ctypes, sys, torch\nlibc = ctypes.CDLL(None)\n"
        f"libc.on_exit(libc['raise'], None)\nsys.exit({number})"
    )
    assert stub_torch.run("-c", script)[0] == number


def test_a_crash_writes_its_stack_and_ends_as_it_would(stub_torch):
    script = "import ctypes, torch\ndef crash(): ctypes.string_at(0)\ncrash()"
    assert stub_torch.run("-c", script) == (-signal.SIGSEGV, "", "")
    told = (stub_torch.folder / "stacks" / "attempt-2-rank-3.txt").read_text()
    assert "Segmentation fault" in told and "line 2 in crash" in told
    own = f"import faulthandler; faulthandler.enable(); {script}"
    code, _, stderr = stub_torch.run("-c", own)
    assert code == -signal.SIGSEGV and "line 2 in crash" in stderr
