"""Commands to a job's supervisor: one JSON line to `control.sock`, one JSON line back.

The socket lies in a folder of mode 0700, and the supervisor checks the peer's uid as well.
"""

from __future__ import annotations

import socket
from typing import Any

import msgspec

from ddptop_runner.errors import ControlError
from ddptop_runner.paths import RunFolder

HAS_ENDED = "the job has ended"
"""What a supervisor answers that has yet to write the last snapshot."""
REPLY_LIMIT_BYTES = 64 * 1024 * 1024
"""Stacks of a thousand ranks fit in this; anything longer is not our supervisor."""


def request(
    folder: RunFolder, op: str, timeout_s: float = 10.0, **arguments: Any
) -> dict[str, Any]:
    """Send one command and return the supervisor's answer.

    Args:
        folder: the job's run folder.
        op: `ping`, `stop`, `kill`, `restart`, `stacks` or `checkpoint`.
        timeout_s: how long the answer may take.
        arguments: of the command, JSON-serialisable.

    Returns:
        The answer's fields.

    Raises:
        ControlError: when no supervisor answers in time, or it refuses.
    """
    path = folder.control_socket
    message = msgspec.json.encode({"op": op, **arguments}) + b"\n"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            connection.sendall(message)
            with connection.makefile("rb") as reader:
                line = reader.readline(REPLY_LIMIT_BYTES)
    except TimeoutError as error:
        raise ControlError(
            f"the supervisor of {folder.job} did not respond within {timeout_s:g} s",
            f"see {folder.supervisor_log}",
        ) from error
    except OSError as error:
        raise ControlError(
            f"the supervisor of {folder.job} cannot be reached ({error.strerror or error})",
            f"see {folder.supervisor_log}",
        ) from error
    if not line:
        raise _broken_off(folder) from EOFError()
    try:
        answer = msgspec.json.decode(line)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise _broken_off(folder)
    if not answer.get("ok"):
        raise ControlError(str(answer.get("error") or "the supervisor refused"), answer.get("hint"))
    return answer


def _broken_off(folder: RunFolder) -> ControlError:
    return ControlError(
        f"the supervisor of {folder.job} closed the connection", f"see {folder.supervisor_log}"
    )
