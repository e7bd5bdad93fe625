"""What the workers of a data loader do, from their stacks."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath

from ddptop_runner.judge.hangs.records import Frame, is_script, main_thread

HEADER = "--- data loader process "
"""Starts the line before each worker's stacks; it ends with IN_DISK_SLEEP for one in that state."""
IN_DISK_SLEEP = "in uninterruptible sleep (D) ---"
_LOADS = "torch/utils/data/_utils/fetch.py"
"""Calls the script's dataset and collate function."""


def in_words(stacks: str) -> str | None:
    """`3 of 4 workers were in load (Image.py:312), called in __getitem__ (data.py:88)`.

    None unless half of the workers were at one place, loading.
    """
    places = [_place(worker) for worker in stacks.split(HEADER)[1:]]
    for place, count in Counter(places).most_common(1):
        if place is not None and count >= len(places) / 2:
            return f"{count} of {len(places)} workers were {place}"
    return None


def _place(worker: str) -> str | None:
    """Where a worker is in its dataset or collate function; None elsewhere, as when it is idle."""
    if worker.partition("\n")[0].endswith(IN_DISK_SLEEP):
        return "in uninterruptible sleep (D), as while waiting for a disk"
    frames = main_thread(worker)
    calls = [place for place, frame in enumerate(frames) if _LOADS in frame.file]
    loading = frames[: calls[0]] if calls else []
    if not loading:
        return None
    script = next((frame for frame in loading if is_script(frame.file)), loading[0])
    called = "" if script is loading[0] else f", called in {_brief(script)}"
    return f"in {_brief(loading[0])}{called}"


def _brief(frame: Frame) -> str:
    return f"{frame.name} ({PurePath(frame.file).name}:{frame.line})"
