"""Whether the kernel killed a process for lack of memory: by its counters, or unknown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddptop_runner.host import oom
from ddptop_runner.host.oom import MemoryGroup, OomFinding, OomWatch, by_counts


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


def test_a_watch_that_is_taken_over_compares_with_the_counters_from_before():
    first = OomWatch(groups=lambda: groups(3))
    first.begin_attempt()
    second = OomWatch(groups=lambda: groups(4))
    second.recall(first.remember())
    found = second.explain()
    assert found is not None and "a process in the job's cgroup" in found.words


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
    put(mount / "user", memory__events="oom_kill 5\n", memory__max="max\n")
    own, above, root = groups_seen(tmp_path, "0::/user/job\n")
    assert (own.kills, own.limit_bytes, own.version) == (2, 2**30, 2)
    assert (above.kills, above.limit_bytes) == (5, None)
    assert (root.kills, root.path) == (None, str(mount))


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
    watch = OomWatch(lambda: [oom.read_group(folder, version)])
    watch.begin_attempt()
    eater = subprocess.Popen([sys.executable, "-c", EAT, str(folder / "cgroup.procs")])
    assert eater.wait(60) == -9
    counted = by_counts([MemoryGroup(str(folder), version, 0)], watch.groups())
    words = "Out of memory: the kernel killed a process in the job's cgroup (limit: 48 MiB)."
    assert counted == OomFinding(True, words)
    found = watch.explain()
    assert found is not None and found.killed


@pytest.mark.parametrize("membership", ["", "garbage\n0::/x\n", "1:cpu:/\n", "1:memory:/../..\n"])
def test_no_memory_cgroup(tmp_path, membership):
    assert groups_seen(tmp_path, membership) == []
    assert oom.groups_of(proc=tmp_path / "none") == []


def test_memory_that_is_left_is_bounded_by_the_cgroup_and_counts_its_page_cache(tmp_path):
    put(tmp_path / "proc", meminfo="MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    assert oom.available_bytes(tmp_path / "proc", tmp_path / "cgroups") == 8000 * 1024
    put(tmp_path / "proc" / "self", cgroup="0::/job\n")
    files = {"memory.events": "oom_kill 0\n", "memory.max": "5000\n", "memory.current": "4000\n"}
    put(tmp_path / "cgroups" / "job", **files, **{"memory.stat": "inactive_file 1500\n"})
    assert oom.available_bytes(tmp_path / "proc", tmp_path / "cgroups") == 2500
    assert oom.available_bytes(tmp_path / "nothing", tmp_path / "cgroups") is None
