"""Sends requests to a job's supervisor: one line to `control.sock`, one line back.

The socket is in a folder with mode 0700, and the supervisor also checks the peer's uid.
"""

from __future__ import annotations

import socket
import time
from typing import TypeVar

import msgspec

from ddptop_runner.base.errors import ControlError, RefusalCode
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.model import protocol as pt
from ddptop_runner.store.log_clean import one_line

REPLY_LIMIT_BYTES = 16 << 20
"""Enough for the stacks of a thousand ranks; anything longer is not from our supervisor."""
CHUNK_BYTES = 1 << 20

R = TypeVar("R", bound=pt.Message)


def request(
    folder: RunFolder, message: pt.SupervisorRequest, kind: type[R], timeout_s: float = 10.0
) -> R:
    """Send a request and return the supervisor's reply.

    Args:
        folder: the job's run folder.
        message: the request.
        kind: the type of its reply.
        timeout_s: how long the reply may take.

    Raises:
        ControlError: no supervisor replies in time, or it refuses.
    """
    return expect(exchange(folder, message, timeout_s), kind)


def expect(reply: pt.Reply, kind: type[R]) -> R:
    """A reply, if it is of that type.

    Raises:
        ControlError: the request was refused, or this is not a reply to it.
    """
    if isinstance(reply, kind):
        return reply
    if not isinstance(reply, pt.Refused):
        reply = pt.Refused(error=f"a request got a reply of another type ({type(reply).__name__})")
    hint = None if reply.hint is None else one_line(reply.hint)
    raise ControlError(one_line(reply.error), hint, reply.code)


def exchange(folder: RunFolder, message: pt.SupervisorRequest, timeout_s: float) -> pt.Reply:
    """As `request`, for any reply.

    Raises:
        ControlError: no supervisor replies in time.
    """
    deadline_s = time.monotonic() + timeout_s
    code: RefusalCode
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(folder.control_socket))
            connection.sendall(pt.line(message))
            line = _read_line(connection, deadline_s)
        reply: pt.Reply = pt.decode(line, pt.Reply)
        return reply
    except TimeoutError:
        code, problem = "silent", f"did not respond within {timeout_s:g} s"
    except OSError as error:
        code = "unreachable"
        if isinstance(error, FileNotFoundError | ConnectionRefusedError):
            code = "absent"
        elif isinstance(error, ConnectionError):
            code = "broken_off"
        problem = f"cannot be reached ({error.strerror or error})"
    except msgspec.MsgspecError:
        code, problem = "broken_off", "closed the connection"
    raise ControlError(
        f"the supervisor for {folder.job} {problem}", f"see {folder.supervisor_log}", code
    )


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
