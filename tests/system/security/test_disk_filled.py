"""One rank fills the disk as fast as it can: another that writes less than 1 MB/s is not ended."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.builders import make_spec

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.job.event_log import EventLog
from ddptop_runner.node.keeper import RunFolderKeeper
from ddptop_runner.store import disk
from ddptop_runner.store.disk import SteadyFile
from ddptop_runner.store.history import HistoryWriter

DISK_MIB = 16
SECONDS = 24
SLOW_BYTES_PER_S = 900_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(disk)]
    refused = subprocess.run(mount, capture_output=True, text=True, check=False)
    if refused.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {refused.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_slow_rank_outlives_a_flood_that_takes_every_second_block_given_up(
    small_disk, tmp_path, monkeypatch
):
    folder = RunFolder(small_disk)
    folder.log_file(0, 0).parent.mkdir(parents=True)
    folder.supervisor_log.touch()
    slow, flood = (
        os.open(folder.log_file(0, rank), os.O_WRONLY | os.O_APPEND | os.O_CREAT) for rank in (0, 1)
    )
    flooding = False

    def fill() -> None:
        try:
            while flooding:
                os.write(flood, b"flood " * 1000 + b"\n")
        except OSError:
            pass

    fallocate, given_back = disk._fallocate, 0

    def contested(fd: int, mode: int, *arguments: Any) -> None:
        nonlocal given_back
        fallocate(fd, mode, *arguments)
        if mode & disk.PUNCH_HOLE:
            given_back += 1
            if given_back % 2:
                fill()

    monkeypatch.setattr(disk, "_fallocate", contested)
    history = HistoryWriter(tmp_path / "history.db")
    spec = make_spec(nproc=2)
    keeper = RunFolderKeeper(
        folder,
        spec,
        EventLog(history, lambda _: None),
        history,
        SteadyFile(tmp_path / "node.json"),
    )
    line = b"x" * 9999 + b"\n"
    due_s = 0.0
    for second in range(SECONDS):
        flooding = second >= 8
        fill()
        writes = SLOW_BYTES_PER_S // len(line)
        for now_s in (second + number / writes for number in range(writes)):
            if now_s >= due_s:  # as the supervisor does
                due_s = now_s + keeper.hold_logs(0, now_s)
            assert os.write(slow, line) == len(line), second  # ENOSPC would end the rank
        fill()
        keeper.look(0, second + 1.0)
    flooding = False
    keeper.close()
    history.close()
    for fd in (slow, flood):
        os.close(fd)
