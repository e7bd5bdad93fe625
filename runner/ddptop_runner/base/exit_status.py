"""Exit statuses in words."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 70` for a signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def split_status(returncode: int) -> tuple[int | None, str | None]:
    """(exit code, signal name) of a return code as in subprocess; exactly one is set."""
    return (None, signal_name(-returncode)) if returncode < 0 else (returncode, None)


def status_in_words(returncode: int | None) -> str:
    """`exited with status 1`, `was killed by SIGKILL`, or `exited with an unknown status`."""
    if returncode is None:
        return "exited with an unknown status"
    exit_code, name = split_status(returncode)
    return f"was killed by {name}" if name else f"exited with status {exit_code}"
