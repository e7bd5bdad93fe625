"""Asks the ranks to save immediately, in a way that can never end one.

A signal goes only to a rank whose probe reported a handler for it, and only if the kernel confirms
the handler right before. What the handler does is up to the script. Any script can also check for
the flag file at the path in DDPTOP_CHECKPOINT_FILE, save, and delete the file.
"""

from __future__ import annotations

import datetime as dt
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from ddptop_runner.base import files
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import ControlError
from ddptop_runner.base.exit_status import signal_name
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.host import procs
from ddptop_runner.job.ranks import RankRecord
from ddptop_runner.model.protocol import SaveAsked
from ddptop_runner.model.snapshot import Checkpoint

SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that scripts handle to save; the first that a rank handles is sent."""

LEFT_FOR_S = 10.0
"""How long the flag file stays after the requested checkpoint, for other ranks."""
FLAG_LIES_BACK_S = 1.0
"""The flag file's initial age: a script that sees it at once then certainly changes its time, even
though a file system's clock may tick only 250 times a second."""


def ask(folder: RunFolder, records: Sequence[RankRecord]) -> SaveAsked:
    """Signal each rank that handles a signal for it, and create the flag file.

    Raises:
        ControlError: neither is possible.
    """
    at = utc_now()
    stamp, error = None, None
    try:
        stamp = _make_flag(folder.save_flag, at)
    except OSError as failed:
        error = failed
    signalled: dict[int, str] = {}
    refused: dict[int, str] = {}
    for record in records:
        if record.process is None or not record.alive or not record.reported.save_signals:
            continue
        number, why_not = _signal_for(record.process.pid, record.reported.save_signals)
        if number is not None and procs.signal_process(record.process, number):
            signalled[record.rank] = signal_name(number)
        elif why_not:
            refused[record.rank] = why_not
    if stamp is None and not signalled:
        raise ControlError(
            f"cannot create {folder.save_flag} ({error})", "fix the cause and try again"
        )
    return SaveAsked(signalled, str(folder.save_flag), stamp, at, refused)


def _make_flag(flag: Path, at: dt.datetime) -> int:
    """Create the flag file; returns its change time, read before scripts can see or delete it."""
    staged = flag.with_name(f".{flag.name}.staged")
    files.write_atomic(staged, f"{at.isoformat()}\n".encode())
    before_ns = int((at.timestamp() - FLAG_LIES_BACK_S) * 1e9)
    os.utime(staged, ns=(before_ns, before_ns))
    stamp = staged.stat().st_mtime_ns
    staged.replace(flag)
    return stamp


def _signal_for(pid: int, handled: Sequence[int]) -> tuple[int | None, str]:
    """(the signal that the process currently handles, or None; the reason for None)."""
    if procs.state_letter(pid) in (
        "T",
        "t",
    ):  # the signal would stay pending, and its handler may change
        return None, "paused"
    for number in SIGNALS:
        if number not in handled or not procs.catches_signal(pid, number):
            continue
        if procs.blocks_signal(pid, number):
            return None, f"{signal_name(number)} is blocked"
        return number, ""
    return None, "no longer handled"


def is_taken(flag_file: str, stamp: int | None) -> bool:
    """Whether a script has seen the flag file: deleted it, or called `checkpoint_requested`."""
    return stamp is not None and files.stamp(Path(flag_file)) != stamp


def is_done(asked: SaveAsked, last: Checkpoint) -> bool:
    """Whether the flag file can go: a checkpoint followed, and every rank had time to see it."""
    since_s = (last.at - asked.at).total_seconds() - (last.took_s or 0.0)
    return since_s >= 0 and (utc_now() - last.at).total_seconds() >= LEFT_FOR_S


def withdraw(folder: RunFolder) -> None:
    """Delete any flag file, because the request is fulfilled or obsolete."""
    try:
        os.unlink(folder.save_flag)  # noqa: PTH108 - one call, and no other error of ours
    except OSError:
        return
