"""One rank fills the disk as fast as it can: another that writes less than 1 MB/s is not ended."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.runner.builders import make_spec

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.node import keeper as keeper_module
from ddptop_runner.node.keeper import RunFolderKeeper
from ddptop_runner.store.history import HistoryWriter
from ddptop_runner.store.story import Story
from ddptop_runner.store.upkeep import space

DISK_MIB = 48
SECONDS = 40
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
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    fallocate, given_back = space._fallocate, 0

    def contested(fd: int, mode: int, *arguments: Any, **options: Any) -> None:
        nonlocal given_back
        fallocate(fd, mode, *arguments, **options)
        if mode & space.PUNCH_HOLE:
            given_back += 1
            if given_back % 2:
                fill()

    monkeypatch.setattr(space, "_fallocate", contested)
    # what takes long is over before the next look
    monkeypatch.setattr(keeper_module, "ThreadPoolExecutor", AtOnce)
    history = HistoryWriter(tmp_path / "history.db")
    spec = make_spec(nproc=2)
    keeper = RunFolderKeeper(folder, spec, Story(history, lambda _: None))
    line = b"x" * 9999 + b"\n"
    for second in range(SECONDS):
        flooding = second >= 8
        fill()
        for _ in range(SLOW_BYTES_PER_S // len(line)):
            assert os.write(slow, line) == len(line), second  # ENOSPC would end the rank
        fill()
        keeper.look(0, float(second))
    flooding = False
    keeper.close()
    history.close()
    for fd in (slow, flood):
        os.close(fd)


class AtOnce:
    """An executor that does it before it returns."""

    def __init__(self, *_: object, **options: object) -> None:
        pass

    def submit(self, work: Any, *arguments: Any) -> Any:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments))
        except Exception as error:
            done.set_exception(error)
        return done

    def shutdown(self) -> None:
        pass
