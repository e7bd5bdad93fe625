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
        stderr=subprocess.PIPE,
        cwd="/",
        start_new_session=True,
    )
    try:
        output, errors = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # blocked in the kernel: left behind
            child.wait(1.0)
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
        return empty_report(NOT_ANSWERING.format(age_s=timeout_s))
    return _last_report(output, errors, child.returncode)


class ForkedReading:
    """A reading of all devices that starts when this object is made."""

    def __init__(self, *, links: bool = False) -> None:
        """`links` asks for PCIe and NVLink rates too, which takes a second more."""
        self._pid: int | None = None
        if not driver_library_exists():
            return
        self._output, output = os.pipe()
        self._errors, errors = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _sample(output, errors, links)
        os.close(output)
        os.close(errors)

    def report(self, timeout_s: float = 5.0) -> DeviceReport:
        """Wait for the reading and return it; can be called once.

        Never raises: where nothing could be read, the report has no device and its `note` says why.
        """
        if self._pid is None:
            return no_library_report()
        pid, self._pid = self._pid, None
        written = _read_all((self._output, self._errors), time.monotonic() + timeout_s)
        os.close(self._output)
        os.close(self._errors)
        if written is None:
            os.kill(pid, signal.SIGKILL)
            _wait(pid, time.monotonic() + _LEAVE_AFTER_S)
            return empty_report(NOT_ANSWERING.format(age_s=timeout_s))
        returncode = _wait(pid, time.monotonic() + _LEAVE_AFTER_S)
        return _last_report(*written, returncode)


def _sample(output: int, errors: int, links: bool) -> None:
    """Run the sampler in the child; never returns."""
    status = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(errors, 2)
        from ddptop_runner.devices import sampler

        status = sampler.main(["--once", *(["--links"] if links else [])])
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
    finally:
        os._exit(status)  # neither the caller's cleanup nor NVML's


def _read_all(fds: tuple[int, int], deadline_s: float) -> tuple[bytes, bytes] | None:
    """All that is written to both pipes; None if they are not closed in time."""
    written = dict.fromkeys(fds, b"")
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    waiting = set(fds)
    while waiting:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return None
        for fd, _ in poll.poll(left_s * 1000):
            if piece := os.read(fd, 1 << 16):
                written[fd] += piece
            else:
                poll.unregister(fd)
                waiting.discard(fd)
    return written[fds[0]], written[fds[1]]


def _wait(pid: int, deadline_s: float) -> int | None:
    """The child's return code as in subprocess; None if the driver blocks it."""
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline_s:
            return None
        time.sleep(0.005)


def _last_report(output: bytes, errors: bytes, returncode: int | None) -> DeviceReport:
    try:
        return decode_report(output.splitlines()[-1])
    except (IndexError, msgspec.DecodeError):
        return empty_report(crash_note(returncode, errors))
