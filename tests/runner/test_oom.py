"""Whether the kernel killed a process for lack of memory: by its counters or log, or unknown."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddptop_runner.host import oom
from ddptop_runner.host.oom import (
    KernelLine,
    KernelLog,
    Kill,
    MemoryGroup,
    OomFinding,
    OomWatch,
    by_counts,
    by_log,
    kills_in,
    parse_record,
)

LIMIT = (
    "Memory cgroup out of memory: Killed process 30846 (python3) total-vm:65460kB, "
    "anon-rss:55612kB, file-rss:6600kB, shmem-rss:0kB, UID:0 pgtables:172kB oom_score_adj:0"
)
WHOLE = "Out of memory: Killed process 7 (pt_main_thread) total-vm:1kB, anon-rss:2097152kB, file"
OTHER = "Out of memory: Killed process 8 (chrome) total-vm:1kB, anon-rss:1024kB, file"


def log(*texts: str) -> list[Kill]:
    return kills_in(KernelLine(1.0, text) for text in ("eth0: link up", *texts))


def test_kills_in_the_log():
    assert log(LIMIT, WHOLE) == [
        Kill(30846, "python3", 55612 * 1024, by_limit=True),
        Kill(7, "pt_main_thread", 2**31, by_limit=False),
    ]


@pytest.mark.parametrize(
    ("texts", "own_pids", "expected"),
    [
        ((), True, None),
        (
            (LIMIT, WHOLE),
            True,
            (True, "killed process 7 (pt_main_thread), which used 2.0 GiB: the machine"),
        ),
        ((OTHER,), True, (False, "no OOM kill of this process, only of other")),
        (
            (WHOLE,),
            False,
            (True, "Probably out of memory: during this attempt, the kernel killed process 7"),
        ),
        ((OTHER,), False, None),
    ],
)
def test_by_log(texts, own_pids, expected):
    found = by_log(log(*texts), {7}, own_pids=own_pids)
    assert (found is None) is (expected is None)
    if found is not None and expected is not None:
        assert found.killed is expected[0]
        assert expected[1] in found.words


def groups(*kills: int | None, limit: int | None = None) -> list[MemoryGroup]:
    return [
        MemoryGroup(f"/g{depth}", 2, count, limit_bytes=limit) for depth, count in enumerate(kills)
    ]


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (groups(3), groups(3), (False, "something else killed it")),
        (groups(3), groups(4), (True, "killed a process in the job's cgroup")),
        (
            groups(3),
            groups(5, limit=2**30),
            (True, "2 processes in the job's cgroup (lim"),
        ),
        (groups(3, 3), groups(3, 4), (True, "Probably out of memory")),
        (groups(None), groups(None), None),
        ([], groups(1), None),
        (groups(1), [], None),
    ],
)
def test_by_counts(before, now, expected):
    found = by_counts(before, now)
    assert (found is None) is (expected is None)
    if found is not None and expected is not None:
        assert found.killed is expected[0]
        assert expected[1] in found.words


def records(*texts: str, at_s: float) -> bytes:
    return "".join(f"3,{n},{int(at_s * 1e6)},-;{t}\n" for n, t in enumerate(texts)).encode()


def test_the_log_is_read_from_the_attempts_start_on(tmp_path):
    path = tmp_path / "kmsg"
    path.write_bytes(records(WHOLE, at_s=1.0))
    kernel = KernelLog(path)
    assert not kernel.readable
    kernel.begin()
    assert kernel.readable
    assert kernel.lines() == []
    with path.open("ab") as file:
        file.write(b"garbage\n" + records("one", LIMIT, at_s=time.monotonic()))
    assert [line.text for line in kernel.lines()] == ["one", LIMIT]
    assert len(kernel.lines()) == 2
    kernel.begin()
    assert kernel.lines() == []
    kernel.close()


def test_a_watch_that_is_taken_over_reads_the_log_from_then_on(tmp_path):
    path = tmp_path / "kmsg"
    now_s = time.monotonic()
    path.write_bytes(records(OTHER, at_s=now_s - 60) + records(WHOLE, at_s=now_s))
    first = OomWatch(groups=lambda: groups(3), log=KernelLog(tmp_path / "none"), own_pids=True)
    first.begin_attempt()
    second = OomWatch(groups=lambda: groups(4), log=KernelLog(path), own_pids=True)
    second.recall(first.remember())
    assert [line.text for line in second.log.lines()] == [WHOLE]
    found = second.explain({7})
    assert found is not None and "killed process 7" in found.words
    third = OomWatch(groups=lambda: groups(4), log=KernelLog(tmp_path / "none"), own_pids=True)
    third.recall(first.remember())
    found = third.explain({7})
    assert found is not None and "a process in the job's cgroup" in found.words
    second.log.close()


def test_readable_kernel_log_without_a_kill_is_evidence(tmp_path):
    path = tmp_path / "kmsg"
    path.write_bytes(b"")
    watch = OomWatch(groups=list, log=KernelLog(path), own_pids=True)
    watch.begin_attempt()
    found = watch.explain({7})
    assert found is not None and not found.killed
    watch.log.close()


@pytest.mark.parametrize("record", [b"", b"x", b"3,1;no time", b" CONTINUED=1\n"])
def test_what_is_no_record(record):
    assert parse_record(record) is None


# -- cgroups -------------------------------------------------------------------------------------


def put(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def groups_seen(root: Path, membership: str) -> list[MemoryGroup]:
    put(root / "proc/self", cgroup=membership)
    return oom.groups_of(proc=root / "proc", cgroups=root / "cg")


def test_version_2(tmp_path):
    mount = tmp_path / "cg"
    put(mount / "user/job", memory__events="low 0\noom 2\noom_kill 2\n", memory__max="1073741824\n")
    put(mount / "user", memory__events="oom_kill 5\n", memory__max="max\n", memory__current="7\n")
    own, above, root = groups_seen(tmp_path, "0::/user/job\n")
    assert (own.kills, own.limit_bytes, own.version) == (2, 2**30, 2)
    assert (above.kills, above.limit_bytes, above.used_bytes) == (5, None, 7)
    assert (root.kills, root.path) == (None, str(mount))


def test_version_1_in_a_container_that_mounts_its_own_group(tmp_path):
    mount = tmp_path / "cg/memory"
    oom_control = "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"
    limits = {"memory__limit_in_bytes": "9223372036854771712\n"}
    put(mount / "job", memory__oom_control=oom_control, **limits)
    put(mount, memory__oom_control="oom_kill 0\n", **limits)
    own, above = groups_seen(tmp_path, "5:devices:/\n4:cpu,memory:/docker/abc/job\n0::/\n")
    assert (own.kills, own.limit_bytes, own.version) == (1, None, 1)
    assert (above.kills, above.path) == (0, str(mount))


@pytest.mark.parametrize("membership", ["", "garbage\n0::/x\n", "1:cpu:/\n", "1:memory:/../..\n"])
def test_no_memory_cgroup(tmp_path, membership):
    assert groups_seen(tmp_path, membership) == []
    assert oom.groups_of(pid=0, proc=tmp_path / "none") == []


EAT = "\n".join(
    [
        "import os, sys",
        "open(sys.argv[1], 'w').write(str(os.getpid()))",
        "kept = []",
        "while True: kept.append(b'x' * 1_000_000)",
    ]
)


@pytest.fixture
def small_group():
    """A real memory cgroup of 48 MiB."""
    seen = oom.groups_of()
    if not seen:
        pytest.skip("no memory cgroup is seen here")
    folder = Path(seen[-1].path) / f"ddptop-test-{os.getpid()}"
    name = "memory.max" if seen[0].version == 2 else "memory.limit_in_bytes"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error.strerror}")
    try:
        (folder / name).write_text(str(48 * 2**20))
        (folder / "memory.swap.max").write_text("0") if seen[0].version == 2 else None
    except OSError as error:
        folder.rmdir()
        pytest.skip(f"no limit can be set here: {error.strerror}")
    yield folder, seen[0].version
    folder.rmdir()


def test_a_real_kill_in_a_cgroup_is_counted(small_group):
    folder, version = small_group
    kernel = KernelLog()
    watch = OomWatch(lambda: [oom.read_group(folder, version)], kernel)
    watch.begin_attempt()
    eater = subprocess.Popen([sys.executable, "-c", EAT, str(folder / "cgroup.procs")])
    assert eater.wait(60) == -9
    counted = by_counts([MemoryGroup(str(folder), version, 0)], watch.groups())
    words = "Out of memory: the kernel killed a process in the job's cgroup (limit: 48 MiB)."
    assert counted == OomFinding(True, words)
    found = watch.explain({eater.pid})
    kernel.close()
    assert found is not None and found.killed
