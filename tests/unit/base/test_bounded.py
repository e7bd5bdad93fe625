"""Files of a run folder, which may be anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddptop_runner.base import bounded


@pytest.mark.parametrize("what", ["a link to a file", "a folder", "a link to a device"])
def test_only_a_regular_file_is_read(tmp_path: Path, what: str) -> None:
    path = tmp_path / "job.json"
    if what == "a link to a file":
        (tmp_path / "other").write_text("{}")
        path.symlink_to(tmp_path / "other")
    elif what == "a folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="not a regular file"):
        bounded.read_bytes(path)
