"""The shared fixtures keep their promises: isolation, no process left, and red when one is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ddptop_runner.host import procs

CONFTEST = Path(__file__).parents[2] / "conftest.py"
RUN = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir"]


def run_in(folder: Path, source: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on `source` beside a copy of the conftest."""
    if not (folder / "conftest.py").exists():
        (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  tmux\n  torch\n  gpu\n")
    (folder / "test_inner.py").write_text(source)
    return subprocess.run(
        [*RUN, str(folder), str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        check=False,
        timeout=60,
    )


def test_a_process_that_outlives_its_test_fails_it_and_is_killed(tmp_path: Path) -> None:
    source = (
        "import subprocess, pathlib\n"
        "def test_leaves(ddptop_home):\n"
        "    child = subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
        f"    pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
    )
    text = CONFTEST.read_text().replace("LEAVE_TIME_S = 30.0", "LEAVE_TIME_S = 0.2")
    (tmp_path / "conftest.py").write_text(text)
    done = run_in(tmp_path, source)
    assert done.returncode == 1
    assert "processes outlived the test" in done.stdout and "sleep 300" in done.stdout
    pid = int((tmp_path / "pid").read_text())
    assert procs.state_letter(pid) in (None, "Z", "X")


def test_a_missing_tool_skips_unless_it_is_required(tmp_path: Path) -> None:
    source = "import pytest\n@pytest.mark.tmux\ndef test_it():\n    pass\n"
    skipped = run_in(tmp_path, source, PATH=str(tmp_path), DDPTOP_TEST_REQUIRE="")
    assert "1 skipped" in skipped.stdout, skipped.stdout
    required = run_in(tmp_path, source, PATH=str(tmp_path), DDPTOP_TEST_REQUIRE="tmux")
    assert required.returncode == 1
    assert "tmux is not installed, and DDPTOP_TEST_REQUIRE names tmux" in required.stdout
