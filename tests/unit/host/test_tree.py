"""CPU and memory of a rank with all of its child processes, using real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.support.programs import piped

from ddptop_runner.base.paths import LAUNCHER
from ddptop_runner.host import procs, tree
from ddptop_runner.host.tree import HostUsage

TREE = """
import subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-S", "-c",
     "import time; x = bytearray(64 << 20); print(1, flush=True); time.sleep(600)"],
    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
for line in sys.stdin:
    sum(range(10_000_000))
    print("worked", flush=True)
child.kill()
"""


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[str]]:
    process = piped(sys.executable, "-S", "-c", TREE)
    yield process
    process.communicate(timeout=60)


def test_a_ranks_figures_are_those_of_its_tree(rank, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(tree, "boottime_s", lambda: clock[0])
    assert rank.stdout is not None and rank.stdin is not None
    child = int(rank.stdout.readline())
    usage = HostUsage()
    first = usage.look({3: rank.pid})[3]
    assert first.cpu_percent is None  # a rate needs two samples
    assert first.tree_pids == (rank.pid, child)
    assert first.rss_bytes > 64 << 20
    assert first.state_letter in "RS"
    assert set(usage.seen) == {rank.pid, child}
    clock[0] += 2.0
    rank.stdin.write("work\n")
    rank.stdin.flush()
    reader = rank.stdout.readline()
    assert reader == "worked\n"
    worked = usage.look({3: rank.pid})[3].cpu_percent
    assert worked is not None and 1.0 < worked <= 200.0
    clock[0] += 2.0
    assert usage.look({3: rank.pid})[3].cpu_percent == pytest.approx(0.0, abs=2.0)


def test_a_rank_that_is_gone_is_left_out():
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    assert HostUsage().look({0: gone.pid}) == {}


def test_parent_rank_excludes_its_child_rank_and_the_launcher_includes_all(rank):
    assert rank.stdout is not None
    child = int(rank.stdout.readline())
    usage = HostUsage().look({0: rank.pid, 1: child, LAUNCHER: rank.pid})
    assert [usage[number].tree_pids for number in (0, 1, LAUNCHER)] == [
        (rank.pid,),
        (child,),
        (rank.pid, child),
    ]
    assert usage[0].rss_bytes < 64 << 20 < usage[1].rss_bytes < usage[LAUNCHER].rss_bytes


THREADS = """
import subprocess, sys, threading
child = [sys.executable, "-S", "-c", "import subprocess, sys;"
         "p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"]
def run():  # a child of another thread is a child too
    p = subprocess.Popen(child, stdout=subprocess.PIPE, text=True)
    print(p.pid, p.stdout.readline(), flush=True)
    p.wait()
threading.Thread(target=run).start()
"""


def test_a_tree_is_walked_down_parents_first_and_up_from_any_process():
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", THREADS], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    child, grandchild = (int(word) for word in process.stdout.readline().split())
    try:
        assert tree.children_of(process.pid) == [child]
        assert tree.descendants_of(process.pid) == [child, grandchild]
        above = list(tree.ancestors_of(grandchild))
        assert above[:3] == [child, process.pid, os.getpid()] and above[-1] == 1
        assert tree.descends_from(grandchild, process.pid)
        assert not tree.descends_from(process.pid, grandchild)
        job = [procs.identify(pid) for pid in (process.pid, child, grandchild)]
        assert tree.launchers_of([grandchild], job) == [process.pid, child]
    finally:
        os.kill(grandchild, signal.SIGKILL)
        process.communicate(timeout=10)
    assert process.returncode == 0
    assert list(tree.ancestors_of(grandchild)) == []
