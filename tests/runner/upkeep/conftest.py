"""What tests of log sizes share."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ddptop_runner.store.upkeep import space


@pytest.fixture
def worker() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "logs" / "attempt-0"
    folder.mkdir(parents=True)
    path = folder / "rank-0.log"
    path.touch()
    if not space.can_punch(folder):
        pytest.skip("the file system cannot punch holes")
    return path
