"""What /proc shows about real processes, and how little of it is read again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ddptop_runner.foreign.process_table import KEPT_VARIABLES, ProcessTable
from ddptop_runner.foreign.types import ProcessFacts
from ddptop_runner.host import procs

SLEEP = "import time; time.sleep(600)"


@contextmanager
def running(*command: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(
        command, env={**os.environ, **variables}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        while not (procs.argv(child.pid) and Path(f"/proc/{child.pid}/environ").read_bytes()):
            pass  # a moment after exec, they are empty
        yield child
    finally:
        child.kill()
        child.communicate()


def one(table: ProcessTable, pid: int) -> ProcessFacts:
    return {facts.pid: facts for facts in table.scan()}[pid]


def test_the_facts_of_a_process():
    with running(sys.executable, "-c", SLEEP, RANK="3", SECRET="hidden") as child:
        facts = one(ProcessTable(), child.pid)
        assert facts.argv == (sys.executable, "-c", SLEEP)
        assert (facts.ppid, facts.uid) == (os.getpid(), os.getuid())
        assert facts.start_ticks == procs.start_ticks(child.pid)
        assert facts.session == os.getsid(child.pid)
        assert not facts.is_zombie
        assert facts.environ is not None and facts.environ["RANK"] == "3"
        assert set(facts.environ) <= KEPT_VARIABLES
        assert facts.program == Path(sys.executable).resolve().name


def test_kernel_threads_and_unreadable_names_are_left_out(tmp_path):
    facts = {facts.pid: facts for facts in ProcessTable().scan()}
    assert os.getpid() in facts and 2 not in facts
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "stat").write_text("77 (odd) garbage")
    (tmp_path / "self").mkdir()
    assert ProcessTable(tmp_path).scan() == []
    assert ProcessTable(tmp_path / "missing").scan() == []


def test_parentheses_and_bytes_in_names(tmp_path):
    script = tmp_path / "a) R 1 (b"
    script.write_text(f"#!{sys.executable}\n{SLEEP}\n")
    script.chmod(0o755)
    with running(str(script), "\udcff") as child:
        facts = one(ProcessTable(), child.pid)
        assert facts.comm == "a) R 1 (b" and facts.ppid == os.getpid()
        assert facts.argv[-1] == "\udcff"


def test_another_exec_of_the_same_pid_is_noticed(wait_until):
    table = ProcessTable()
    argv = ["python", "-c", SLEEP]
    again = f"import os; input(); os.execve({sys.executable!r}, {argv}, {{'RANK': '5'}})"
    with running(sys.executable, "-c", again, RANK="4") as child:
        before = one(table, child.pid)
        assert before.environ["RANK"] == "4"
        child.stdin.write(b"\n")
        child.stdin.flush()
        after = wait_until(
            lambda: (now := one(table, child.pid)).argv[0] == "python" and now, what="exec"
        )
        assert after.environ == {"RANK": "5"} and after.start_ticks == before.start_ticks


def test_a_zombie_keeps_what_was_known(wait_until):
    table = ProcessTable()
    with running(sys.executable, "-c", SLEEP, RANK="1") as child:
        before = one(table, child.pid)
        os.kill(child.pid, 9)
        after = wait_until(lambda: (now := one(table, child.pid)).is_zombie and now)
        assert (after.argv, after.environ) == (before.argv, before.environ)
        fresh = one(ProcessTable(), child.pid)
        assert (fresh.argv, fresh.environ) == ((), None)
    assert child.pid not in {facts.pid for facts in table.scan()}


def put_process(proc: Path, environ_at: int, state: str = "S", argv: bytes = b"") -> None:
    """Process 77 as /proc would show it; `environ_at` is 0 while it has no memory."""
    fields = ["0"] * 49
    fields[0], fields[1], fields[19], fields[47] = state, "1", "500", str(environ_at)
    folder = proc / "77"
    folder.mkdir(exist_ok=True)
    (folder / "stat").write_text(f"77 (python) {' '.join(fields)}")
    (folder / "cmdline").write_bytes(argv)
    (folder / "environ").write_bytes(b"RANK=1\0" if environ_at else b"")


def test_threads_of_python_processes_only():
    with running(sys.executable, "-c", SLEEP) as python, running("sleep", "600") as other:
        table = ProcessTable()
        facts = {facts.pid: facts for facts in table.scan()}
        assert facts[python.pid].threads is not None
        assert facts[python.pid].libraries == frozenset()
        assert (facts[other.pid].threads, facts[other.pid].libraries) == (None, None)
        facts = {facts.pid: facts for facts in table.scan([other.pid])}
        assert facts[other.pid].threads == {"sleep"}


def test_libraries_are_seen_once_they_are_mapped(tmp_path, wait_until):
    library = tmp_path / "libtorch_cpu.so"
    library.write_bytes(b"\0" * (16 << 20))
    code = (
        "import mmap, time; input(); file = open('" + str(library) + "', 'rb');"
        "m = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ);" + SLEEP
    )
    table = ProcessTable()
    with running(sys.executable, "-c", code) as child:
        assert one(table, child.pid).libraries == frozenset()
        child.stdin.write(b"\n")
        child.stdin.flush()
        wait_until(lambda: one(table, child.pid).libraries == {"torch"})


@pytest.mark.skipif(os.getuid() != 0, reason="only root can look as somebody else")
def test_without_permission_facts_are_none():
    with running(sys.executable, "-c", SLEEP, RANK="1") as child:
        os.seteuid(65534)
        try:
            facts = one(ProcessTable(), child.pid)
        finally:
            os.seteuid(0)
        assert (facts.environ, facts.program, facts.libraries) == (None, None, None)
        assert facts.argv[-1] == SLEEP and facts.uid == 0
