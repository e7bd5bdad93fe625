"""Reads which hooks have run for a job, from the notifier's own file in the run folder.

Only the supervisor writes a job's events, and it has ended when the last hooks run.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ddptop_runner.base import bounded
from ddptop_runner.model.snapshot import Event

NOTIFIER_FILE = "notify-state.json"
FILE_BYTES = 1 << 20


class _File(msgspec.Struct):
    hooks: list[Event] = []


def hook_events(run_folder: Path) -> list[Event]:
    """The runs as entries of the story; [] if none is known."""
    try:
        data = bounded.read_bytes(run_folder / NOTIFIER_FILE, FILE_BYTES)
        return msgspec.json.decode(data, type=_File).hooks
    except (OSError, msgspec.MsgspecError, RecursionError):
        return []
