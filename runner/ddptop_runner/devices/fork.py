"""Reads the devices once in a forked child, while the caller does something else.

For a command with nothing but its main thread that has imported what reports are made of: the child
need not do that again, which is half of what a sampler process costs. The driver may crash or block
the child, as it may a sampler.
"""

from __future__ import annotations

import os
import select
import signal
import time

import msgspec

from ddptop_runner.devices.report import (
    NOT_ANSWERING,
    DeviceReport,
    crash_note,
    decode_report,
    driver_library_exists,
    empty_report,
    no_library_report,
)

_LEAVE_AFTER_S = 1.0


class ForkedReading:
    """A reading of all devices, in progress from the moment that this is made."""

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
        """What was read, waiting up to so long from now; to be called once.

        Never raises: where nothing could be read, the report has no device and its `note` says why.
        """
        if self._pid is None:
            return no_library_report()
        pid, self._pid = self._pid, None
        said = _read_all((self._output, self._errors), time.monotonic() + timeout_s)
        os.close(self._output)
        os.close(self._errors)
        if said is None:
            os.kill(pid, signal.SIGKILL)
            _wait(pid, time.monotonic() + _LEAVE_AFTER_S)
            return empty_report(NOT_ANSWERING.format(age_s=timeout_s))
        output, errors = said
        returncode = _wait(pid, time.monotonic() + _LEAVE_AFTER_S)
        try:
            return decode_report(output.splitlines()[-1])
        except (IndexError, msgspec.DecodeError):
            return empty_report(crash_note(returncode, errors))


def _sample(output: int, errors: int, links: bool) -> None:
    """Be the sampler until it ends; never returns to the caller's own code."""
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
    """What both pipes tell until they are closed; None when that is not in time."""
    said = dict.fromkeys(fds, b"")
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
                said[fd] += piece
            else:
                poll.unregister(fd)
                waiting.discard(fd)
    return said[fds[0]], said[fds[1]]


def _wait(pid: int, deadline_s: float) -> int | None:
    """The child's exit status as subprocess tells it; None where the driver blocks it."""
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline_s:
            return None
        time.sleep(0.005)
