"""One reading of the machine's devices, for a command that prints and exits.

The driver can crash or block, so a child reads them. A command with only its main thread forks:
the child then need not import what reports are made of, which is half of what a sampler costs.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Collection

import msgspec

from ddptop_runner.devices.report import (
    NOT_ANSWERING,
    DeviceReport,
    crash_note,
    decode_report,
    driver_library_exists,
    empty_report,
    no_library_report,
    sampler_command,
)

_LEAVE_AFTER_S = 1.0


def sample_once(
    timeout_s: float = 5.0, uuids: Collection[str] | None = None, *, links: bool = False
) -> DeviceReport:
    """The devices now, read in a process of its own because the driver may block or crash.

    Without NVML's library no process is started. Never raises: where nothing could be read, the
    report has no device and its `note` says why.

    Args:
        timeout_s: how long the driver may take.
        uuids: devices or MIG instances to read; None for all of both.
        links: whether to ask for PCIe and NVLink rates too, which takes a second more.
    """
    if not driver_library_exists():
        return no_library_report()
    import subprocess  # a forked reading does without

    child = subprocess.Popen(
        sampler_command(uuids, once=True, links=links),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
        start_new_session=True,
    )
    try:
        output, _ = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # blocked in the kernel: left behind
            child.wait(1.0)
        if child.stdout is not None:
            child.stdout.close()
        return empty_report(NOT_ANSWERING.format(age_s=timeout_s))
    return _last_report(output, child.returncode)


class ForkedReading:
    """A reading of all devices that starts when this object is made."""

    def __init__(self, *, links: bool = False) -> None:
        """`links` asks for PCIe and NVLink rates too, which takes a second more."""
        self._pid: int | None = None
        if not driver_library_exists():
            return
        self._output, output = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _sample(output, links)
        os.close(output)

    def report(self, timeout_s: float = 5.0) -> DeviceReport:
        """Wait for the reading and return it; can be called once.

        Never raises: where nothing could be read, the report has no device and its `note` says why.
        """
        if self._pid is None:
            return no_library_report()
        pid, self._pid = self._pid, None
        written = _read_all(self._output, time.monotonic() + timeout_s)
        os.close(self._output)
        if written is None:
            os.kill(pid, signal.SIGKILL)
        returncode = _wait(pid, time.monotonic() + _LEAVE_AFTER_S)
        if written is None:
            return empty_report(NOT_ANSWERING.format(age_s=timeout_s))
        return _last_report(written, returncode)


def _sample(output: int, links: bool) -> None:
    """Run the sampler in the child; never returns."""
    status = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        from ddptop_runner.devices import sampler

        status = sampler.main(sampler.Options(once=True, links=links))
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
    finally:
        os._exit(status)  # neither the caller's cleanup nor NVML's


def _read_all(fd: int, deadline_s: float) -> bytes | None:
    """All that is written to a pipe; None if it is not closed in time."""
    written = b""
    while select.select([fd], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
        if not (piece := os.read(fd, 1 << 16)):
            return written
        written += piece
    return None


def _wait(pid: int, deadline_s: float) -> int | None:
    """The child's return code as in subprocess; None if the driver blocks it."""
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline_s:
            return None
        time.sleep(0.005)


def _last_report(output: bytes, returncode: int | None) -> DeviceReport:
    for line in reversed(output.splitlines()):
        with contextlib.suppress(msgspec.DecodeError):
            return decode_report(line)
    return empty_report(crash_note(returncode, output))
