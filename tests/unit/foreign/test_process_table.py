"""What /proc shows about real processes, and how little of it is read again."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ddptop_runner.foreign import process_table
from ddptop_runner.foreign.process_table import KEPT_VARIABLES, ProcessTable, kept_of
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


def test_a_new_name_does_not_read_the_environment_again(monkeypatch, wait_until):
    table = ProcessTable()
    rename = f"open('/proc/self/comm', 'w').write(input()); {SLEEP}"
    with running(sys.executable, "-c", rename, RANK="4") as child:
        before = one(table, child.pid)
        read = []
        real = process_table._read
        monkeypatch.setattr(
            process_table,
            "_read",
            lambda *what, **how: (read.append(what[0]), real(*what, **how))[1],
        )
        child.stdin.write(b"pt_data_worker\n")
        child.stdin.flush()
        after = wait_until(lambda: (now := one(table, child.pid)).comm != before.comm and now)
        assert after.comm == "pt_data_worker" and after.environ == before.environ
        assert f"/proc/{child.pid}/environ" not in read


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


def test_an_ending_process_keeps_what_was_known_before_it_is_a_zombie(tmp_path):
    table = ProcessTable(tmp_path)
    put_process(tmp_path, 4096, argv=b"python\0train.py\0")
    [before] = table.scan()
    assert (before.argv, before.environ) == (("python", "train.py"), {"RANK": "1"})
    put_process(tmp_path, 0, state="R")
    [ending] = table.scan()
    assert ending == before


def test_a_process_seen_within_its_exec_is_read_again(tmp_path):
    table = ProcessTable(tmp_path)
    put_process(tmp_path, 0)
    assert table.scan()[0].environ == {}
    put_process(tmp_path, 4096, argv=b"python\0train.py\0")
    assert table.scan()[0].environ == {"RANK": "1"}


def test_an_environment_that_is_still_empty_is_read_again(tmp_path):
    table = ProcessTable(tmp_path)
    put_process(tmp_path, 4096, argv=b"python\0train.py\0")
    (tmp_path / "77" / "environ").write_bytes(b"")
    assert table.scan()[0].environ == {}
    put_process(tmp_path, 4096, argv=b"python\0train.py\0")
    assert table.scan()[0].environ == {"RANK": "1"}


def test_what_is_known_of_an_ending_process_is_kept_all_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(process_table, "DETAILS_EVERY_S", 0.0)
    table = ProcessTable(tmp_path)
    put_process(tmp_path, 4096, argv=b"python\0train.py\0")
    (tmp_path / "77" / "maps").write_bytes(b"/lib/libtorch.so")
    (tmp_path / "77" / "task" / "77").mkdir(parents=True)
    (tmp_path / "77" / "task" / "77" / "comm").write_text("pt_gloo\n")
    [before] = table.scan()
    assert (before.libraries, before.threads) == ({"torch"}, {"pt_gloo"})
    for environ_at in (4096, 0):  # it exits after its state was read, and before it
        put_process(tmp_path, environ_at, state="R")
        (tmp_path / "77" / "maps").write_bytes(b"")
        if not environ_at:
            (tmp_path / "77" / "task" / "77" / "comm").write_text("python\n")
        for known in table._known.values():
            known.virtual_then = -1
        [ending] = table.scan()
        assert (ending.argv, ending.libraries) == (before.argv, before.libraries)
        assert ending.threads == before.threads


def test_threads_of_python_processes_only():
    with running(sys.executable, "-c", SLEEP) as python, running("sleep", "600") as other:
        table = ProcessTable()
        facts = {facts.pid: facts for facts in table.scan()}
        assert facts[python.pid].threads is not None
        assert facts[python.pid].libraries == frozenset()
        assert (facts[other.pid].threads, facts[other.pid].libraries) == (None, None)
        facts = {facts.pid: facts for facts in table.scan([other.pid])}
        assert facts[other.pid].threads == {"sleep"}


THREAD = """
import threading, time
def work():
    open("/proc/thread-self/comm", "w").write("pt_tcpstore_uv")
    print("named", flush=True)
    time.sleep(600)
input()
threading.Thread(target=work, daemon=True).start()
time.sleep(600)
"""


def test_a_thread_that_appears_later_is_seen():
    table = ProcessTable()
    with running(sys.executable, "-c", THREAD) as child:
        assert "pt_tcpstore_uv" not in one(table, child.pid).threads
        child.stdin.write(b"\n")
        child.stdin.flush()
        child.stdout.readline()
        assert "pt_tcpstore_uv" in one(table, child.pid).threads


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


def test_a_second_look_reads_one_file_of_each_process(monkeypatch):
    """The cost of a scan that finds nothing new."""
    release = threading.Event()
    threads = [threading.Thread(target=release.wait, daemon=True) for _ in range(30)]
    for thread in threads:
        thread.start()
    try:
        table = ProcessTable()
        table.scan()
        table.scan()
        read: Counter[str] = Counter()
        real = process_table._read

        def counting(path: str, limit: int, **how: bool) -> bytes | None:
            read[path.partition(f"/{os.getpid()}/")[2]] += path.startswith(f"/proc/{os.getpid()}/")
            return real(path, limit, **how)

        monkeypatch.setattr(process_table, "_read", counting)
        table.scan()
        assert +read == {"stat": 1}
    finally:
        release.set()
        for thread in threads:
            thread.join()


def test_only_the_listed_variables_are_kept():
    raw = b"RANK=1\0TOKEN=secret\0broken\0=x\0MASTER_ADDR=a=b\0RANKS=9\0MASTER_PORT=\0"
    assert kept_of(raw) == {"RANK": "1", "MASTER_ADDR": "a=b", "MASTER_PORT": ""}
