"""The folder of an attempt's logs."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ddptop_runner.agent.run import NEXT, make_logs
from ddptop_runner.node import keeper


def test_prepared_folder_becomes_the_attempts_folder_without_other_logs(tmp_path: Path) -> None:
    assert keeper.NEXT_ATTEMPT == NEXT
    (tmp_path / NEXT).mkdir()
    for name in ("launcher.log", "rank-0.log", "rank-1.log"):
        (tmp_path / NEXT / name).touch()
    kept = (tmp_path / NEXT / "rank-0.log").stat().st_ino
    make_logs(str(tmp_path), 1, ["rank-0.log"])
    assert os.listdir(tmp_path / "attempt-1") == ["rank-0.log"]
    assert (tmp_path / "attempt-1" / "rank-0.log").stat().st_ino == kept
    assert not (tmp_path / NEXT).exists()


def test_logs_are_private_regardless_of_umask(tmp_path: Path) -> None:
    for number, umask in enumerate((0, 0o777)):
        before = os.umask(umask)
        try:
            folder = Path(make_logs(str(tmp_path), number, ["rank-0.log"]))
        finally:
            os.umask(before)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "rank-0.log").stat().st_mode) == 0o600
