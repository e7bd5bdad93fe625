"""The state of the git repository that a job is launched from."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ddptop_runner.base import programs
from ddptop_runner.model.spec import GitState

TIMEOUT_S = 2.0
NAME_CHARS = 200


def read(folder: Path) -> GitState | None:
    """The commit and branch of a folder; None without git, a repository, or a quick answer.

    Untracked files do not count as changes.
    """
    argv = ["git", "-C", str(folder), "-c", "core.fsmonitor=false"]  # it can name a program
    argv += ["status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = programs.run(argv, TIMEOUT_S, env=env)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse(done.stdout) if done.returncode == 0 else None


def parse(status: str) -> GitState | None:
    """The state that `git status --porcelain=v2 --branch` prints; None before the first commit."""
    lines = status.splitlines()
    said = dict(line[2:].partition(" ")[::2] for line in lines if line.startswith("# "))
    commit, branch = said.get("branch.oid", ""), said.get("branch.head", "")
    if not commit.isalnum():
        return None
    is_named = branch.isprintable() and not branch.startswith("(")
    return GitState(
        commit=commit[:NAME_CHARS],
        branch=branch[:NAME_CHARS] if is_named else None,
        has_changes=any(not line.startswith("#") for line in lines),
    )
