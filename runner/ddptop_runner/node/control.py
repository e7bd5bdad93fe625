"""Sends commands to a job's supervisor: one JSON line to `control.sock`, one JSON line back.

The socket is in a folder with mode 0700, and the supervisor also checks the peer's uid.
"""

from __future__ import annotations

import socket
import time
from typing import Any

import msgspec

from ddptop_runner.base import bounded
from ddptop_runner.base.errors import ControlError
from ddptop_runner.base.paths import RunFolder

REPLY_LIMIT_BYTES = 16 << 20
"""Enough for the stacks of a thousand ranks; anything longer is not from our supervisor."""
CHUNK_BYTES = 1 << 20
_answer_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def request(
    folder: RunFolder, op: str, timeout_s: float = 10.0, **arguments: Any
) -> dict[str, Any]:
    """Send one command and return the supervisor's answer.

    Args:
        folder: the job's run folder.
        op: `ping`, `stop`, `kill`, `restart`, `stacks`, or `checkpoint`.
        timeout_s: how long the answer may take.
        arguments: the command's arguments, JSON-serializable.

    Returns:
        The answer's fields.

    Raises:
        ControlError: no supervisor answers in time, or it refuses.
    """
    path = folder.control_socket
    message = msgspec.json.encode({"op": op, **arguments}) + b"\n"
    deadline_s = time.monotonic() + timeout_s
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            connection.sendall(message)
            line = _read_line(connection, deadline_s)
    except TimeoutError as error:
        raise ControlError(
            f"the supervisor for {folder.job} did not respond within {timeout_s:g} s",
            f"see {folder.supervisor_log}",
        ) from error
    except OSError as error:
        raise ControlError(
            f"the supervisor for {folder.job} cannot be reached ({error.strerror or error})",
            f"see {folder.supervisor_log}",
        ) from error
    if not line:
        raise _broken_off(folder) from EOFError()
    try:
        answer = bounded.decode_json(_answer_decoder, line)
    except msgspec.DecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise _broken_off(folder)
    if not answer.get("ok"):
        raise ControlError(
            str(answer.get("error") or "the supervisor refused the request"), answer.get("hint")
        )
    return answer


def _read_line(connection: socket.socket, deadline_s: float) -> bytes:
    """Read to the end of the line or connection, up to the length limit.

    Raises:
        TimeoutError: the line is not complete in time.
    """
    line = bytearray()
    while len(line) < REPLY_LIMIT_BYTES:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        connection.settimeout(left_s)
        data = connection.recv(CHUNK_BYTES)
        line += data
        if not data or b"\n" in data:
            break
    return bytes(line)


def _broken_off(folder: RunFolder) -> ControlError:
    return ControlError(
        f"the supervisor for {folder.job} closed the connection", f"see {folder.supervisor_log}"
    )
