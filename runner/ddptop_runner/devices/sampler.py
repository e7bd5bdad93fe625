"""The sampler process: reads the devices and prints one JSON line per tick on standard output.

    ddptop_runner.devices.sampler '{"interval_s": 1.0}'

Its argument is `Options` as JSON.

It is a separate process because a driver can block or crash exactly when a device fails. It exits
when standard output is closed or its parent is gone. If there is nothing to sample, it exits with
3, and the last line says why.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from ddptop_runner.base.clock import boottime_s, utc_now
from ddptop_runner.devices.report import NOTHING_TO_SAMPLE, DeviceReport, Options
from ddptop_runner.devices.words import PYNVML_MISSING
from ddptop_runner.model.snapshot import GpuSample, encode

if TYPE_CHECKING:
    from ddptop_runner.devices.nvml import NvmlBackend

STDIN = 0
REQUESTS_BYTES = 4096


class NoDevices:
    """The back end of a machine without devices."""

    source = driver = None

    def __init__(self, note: str) -> None:
        self.note = note

    def sample(self, boottime_s: float, *, at_once: bool = False) -> list[GpuSample]:
        """No devices."""
        return []


def open_backend(uuids: Collection[str] | None = None) -> NvmlBackend | NoDevices:
    """The back end of this machine, limited to the devices in `uuids` (None: all).

    UUIDs can be those of MIG instances; all devices include their instances. If there is no
    device to read, returns a back end without devices whose `note` says why. Never raises.
    """
    try:
        from ddptop_runner.devices.nvml import NoDriverError, NvmlBackend
    except (ImportError, AttributeError):  # or another package with the same import name
        return NoDevices(PYNVML_MISSING)
    try:
        return NvmlBackend(uuids)
    except NoDriverError as error:
        return NoDevices(error.reason)


def report(backend: NvmlBackend | NoDevices, *, at_once: bool = False) -> DeviceReport:
    """One reading of all devices; `at_once` between two ticks."""
    now_s = boottime_s()
    gpus = backend.sample(now_s, at_once=at_once)
    return DeviceReport(
        ts=utc_now(),
        boottime_s=now_s,
        source=backend.source,
        driver=backend.driver,
        note=backend.note,
        gpus=gpus,
    )


def run(backend: NvmlBackend | NoDevices, options: Options) -> int:
    """Print reports until the reader is gone; returns the exit status."""
    parent = os.getppid()
    reader = sys.stdout.fileno()
    happened = select.poll()
    happened.register(reader, 0)  # only POLLERR and POLLHUP: the reader is gone
    if options.on_request:
        happened.register(STDIN, select.POLLIN)
    next_s = boottime_s()
    is_requested = False
    while True:
        _print_line(encode(report(backend, at_once=is_requested)))
        if backend.source is None:
            return NOTHING_TO_SAMPLE
        if options.once:
            return 0
        if not is_requested:
            next_s = max(next_s + options.interval_s, boottime_s())
        is_requested = False
        while not is_requested and (wait_s := next_s - boottime_s()) > 0:
            for number, _ in happened.poll(math.ceil(wait_s * 1000)):
                if number == reader or not os.read(STDIN, REQUESTS_BYTES):
                    return 0
                is_requested = True
        if os.getppid() != parent:
            return 0


def _print_line(line: bytes) -> None:
    data = memoryview(line + b"\n")
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


def main(options: Options) -> int:
    """Run the sampler; returns the exit status. NVML stays open until the process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the process that started it
    try:
        return run(open_backend(options.uuids), options)
    except BrokenPipeError:
        return 0


if __name__ == "__main__":
    status = main(msgspec.json.decode(sys.argv[1], type=Options))
    sys.stdout.flush()
    os._exit(status)  # NVML's own cleanup can crash or block when a device fails
