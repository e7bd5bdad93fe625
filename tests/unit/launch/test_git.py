"""The commit that a job is launched from."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from ddptop_runner.launch import git
from ddptop_runner.model.spec import GitState

HASH = "1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (f"# branch.oid {HASH}\n# branch.head main\n", GitState(commit=HASH, branch="main")),
        (
            f"# branch.oid {HASH}\n# branch.head (detached)\n1 .M N... 100644 a b c train.py\n",
            GitState(commit=HASH, has_changes=True),
        ),
        (f"# branch.oid {HASH}\n# branch.head a\x1b[2J\n", GitState(commit=HASH)),
        ("# branch.oid (initial)\n# branch.head main\n", None),
        ("", None),
    ],
)
def test_status_is_parsed(status: str, expected: GitState | None) -> None:
    assert git.parse(status) == expected


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_real_repository(tmp_path: Path) -> None:
    def run(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    assert git.read(tmp_path) is None
    run("init", "-b", "trunk")
    (tmp_path / "train.py").write_text("1")
    run("add", "train.py")
    run("commit", "-m", "First")
    (tmp_path / "untracked").touch()
    state = git.read(tmp_path)
    assert state is not None
    assert (len(state.commit), state.branch, state.has_changes) == (40, "trunk", False)
    (tmp_path / "train.py").write_text("2")
    changed = git.read(tmp_path)
    assert changed is not None
    assert changed.has_changes


def test_a_git_that_hangs_does_not_delay_a_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "git"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(git, "TIMEOUT_S", 0.2)
    began_s = time.monotonic()
    assert git.read(tmp_path) is None
    assert time.monotonic() - began_s < 5
