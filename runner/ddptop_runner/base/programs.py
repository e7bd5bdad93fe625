"""Runs helper programs (ssh, squeue, tmux, py-spy), whose output nothing else limits."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

OUTPUT_BYTES = 16 << 20
"""A program that prints more is killed."""
ERROR_BYTES = 64 << 10
"""Of stderr, only the end is kept."""
CHUNK_BYTES = 64 << 10
REAP_S = 1.0
"""A killed program may hang in the kernel: after this long, it is abandoned."""


def run(
    argv: Sequence[str],
    timeout_s: float | None,
    *,
    data: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    is_interactive: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a program; returns its exit status, its output, and the end of its stderr.

    Args:
        argv: the program and its arguments.
        timeout_s: after this long, it is killed; None: never.
        data: its stdin.
        env: its variables; None for those of this process.
        cwd: its working folder; None for that of this process.
        is_interactive: whether it keeps this process's stdin and stdout.

    Raises:
        OSError: it cannot be run, or printed too much.
        subprocess.TimeoutExpired: it was killed after `timeout_s`.
    """
    pipe = None if is_interactive else subprocess.PIPE
    process = subprocess.Popen(
        argv,
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.PIPE,
        env=env,
        cwd=cwd,
        start_new_session=not is_interactive,  # it has no terminal to prompt on
    )
    try:
        out, err = _exchange(process, timeout_s, data)
    except BaseException:
        if is_interactive:
            process.kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a ProxyJump is a separate process
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(REAP_S)
        raise
    finally:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def start(
    argv: Sequence[str],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program in its own session, without stdin, whose output is appended to a log."""
    with log.open("ab") as output:
        return subprocess.Popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _exchange(
    process: subprocess.Popen[bytes], timeout_s: float | None, data: bytes
) -> tuple[str, str]:
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    read: dict[object, bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}

    def texts() -> tuple[str, str]:
        out, err = (bytes(part).decode("utf-8", "replace") for part in read.values())
        return out, err

    def left_s() -> float | None:
        if deadline_s is None:
            return None
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            assert timeout_s is not None  # as is the deadline
            raise subprocess.TimeoutExpired(process.args, timeout_s, *texts())
        return left_s

    with selectors.DefaultSelector() as selector:
        for pipe in filter(None, (process.stdout, process.stderr)):
            selector.register(pipe, selectors.EVENT_READ)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        unsent = memoryview(data)
        while selector.get_map():
            for key, _ in selector.select(left_s()):
                stream = key.fileobj
                if stream is process.stdin:
                    try:
                        unsent = unsent[os.write(key.fd, unsent[:CHUNK_BYTES]) :]
                    except BrokenPipeError:
                        unsent = unsent[:0]
                    if not unsent:
                        selector.unregister(stream)
                        process.stdin.close()
                elif part := os.read(key.fd, CHUNK_BYTES):
                    read[stream] += part
                    if stream is process.stderr:
                        del read[stream][:-ERROR_BYTES]
                    elif len(read[stream]) > OUTPUT_BYTES:
                        raise OSError(errno.EFBIG, f"printed more than {OUTPUT_BYTES >> 20} MiB")
                else:
                    selector.unregister(stream)
    process.wait(left_s())
    return texts()
