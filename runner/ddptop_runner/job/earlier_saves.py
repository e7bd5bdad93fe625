"""Finds what earlier runs of a job's script saved, from which a relaunched job may resume."""

from __future__ import annotations

import contextlib

from ddptop_runner.base import bounded
from ddptop_runner.base.errors import DamagedFileError
from ddptop_runner.base.paths import RunFolder, runs_dir
from ddptop_runner.job.memory import read_memory
from ddptop_runner.judge.checkpoints import SavedAt
from ddptop_runner.model.snapshot import decode_snapshot
from ddptop_runner.model.spec import JobSpec, read_spec

SEARCHED = 50
"""As many run folders are searched, those written last."""


def of_script(spec: JobSpec) -> list[SavedAt]:
    """What other jobs of this state folder saved that ran the same script in the same folder."""
    try:
        folders = [RunFolder(path) for path in runs_dir().iterdir() if path.name != spec.job]
    except OSError:
        return []
    found = []
    for folder in sorted(folders, key=_written_s, reverse=True)[:SEARCHED]:
        with contextlib.suppress(DamagedFileError, OSError, ValueError):
            other = read_spec(folder)
            if (other.target, other.cwd) == (spec.target, spec.cwd):
                snapshot = decode_snapshot(bounded.read_bytes(folder.node_file(other.host)))
                found += read_memory(snapshot).saves.saved_at
    return found


def _written_s(folder: RunFolder) -> float:
    try:
        return folder.nodes_dir.lstat().st_mtime
    except OSError:
        return 0.0
