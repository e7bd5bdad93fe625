"""Exit statuses in words."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 70` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def split_status(returncode: int) -> tuple[int | None, str | None]:
    """(exit code, signal name) of a subprocess-style return code, exactly one of them set."""
    return (None, signal_name(-returncode)) if returncode < 0 else (returncode, None)
