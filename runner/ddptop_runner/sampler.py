"""The sampler process: reads the devices and prints one JSON line per tick on standard output.

    python -m ddptop_runner.sampler [--uuids U,U | --all] [--interval 1.0] [--once]

A process of its own, because a driver can block or crash exactly when a device fails. It ends when
standard output is closed or its parent is gone, and exits with 3 when there is nothing to sample;
the last line then says why.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys

from ddptop_runner.clock import boottime_s, utc_now
from ddptop_runner.device_report import NOTHING_TO_SAMPLE, DeviceReport
from ddptop_runner.devices import DeviceBackend, open_backend
from ddptop_runner.model import encode

SHORTEST_INTERVAL_S = 0.1

USAGE = "usage: python -m ddptop_runner.sampler [--uuids U,U | --all] [--interval S] [--once]"


def parse_arguments(argv: list[str]) -> tuple[list[str] | None, float, bool]:
    """(UUIDs or None for all, interval in seconds, once).

    Raises:
        ValueError: naming the argument that cannot be used.
    """
    uuids: list[str] | None = None
    interval_s, once = 1.0, False
    rest = list(argv)
    while rest:
        option = rest.pop(0)
        if option == "--once":
            once = True
        elif option == "--all":
            uuids = None
        elif option == "--uuids" and rest:
            uuids = [uuid for uuid in rest.pop(0).split(",") if uuid]
        elif option == "--interval" and rest:
            interval_s = _interval(rest.pop(0))
        else:
            raise ValueError(f"{option!r} is not an option, or lacks its value")
    return uuids, interval_s, once


def _interval(text: str) -> float:
    interval_s = float(text)
    if not (math.isfinite(interval_s) and interval_s >= SHORTEST_INTERVAL_S):
        raise ValueError(f"--interval {text}: give {SHORTEST_INTERVAL_S} seconds or more")
    return interval_s


def report(backend: DeviceBackend) -> DeviceReport:
    """One reading of all devices."""
    now_s = boottime_s()
    gpus = backend.sample(now_s)
    return DeviceReport(
        ts=utc_now(),
        boottime_s=now_s,
        source=backend.source,
        driver=backend.driver,
        note=backend.note,
        gpus=gpus,
    )


def run(backend: DeviceBackend, interval_s: float, once: bool) -> int:
    """Print reports until nobody listens; returns the exit status."""
    parent = os.getppid()
    closed = select.poll()
    closed.register(sys.stdout.fileno(), 0)  # only POLLERR and POLLHUP: the reader is gone
    next_s = boottime_s()
    while True:
        _print_line(encode(report(backend)))
        if backend.source is None:
            return NOTHING_TO_SAMPLE
        if once:
            return 0
        next_s = max(next_s + interval_s, boottime_s())
        while (wait_s := next_s - boottime_s()) > 0:
            if closed.poll(math.ceil(wait_s * 1000)):
                return 0
        if os.getppid() != parent:
            return 0


def _print_line(line: bytes) -> None:
    data = memoryview(line + b"\n")
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


def main(argv: list[str] | None = None) -> int:
    """Run the sampler with these arguments; returns the exit status."""
    try:
        uuids, interval_s, once = parse_arguments(sys.argv[1:] if argv is None else argv)
    except ValueError as error:
        sys.stderr.write(f"{error}\n{USAGE}\n")
        return 2
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who started it
    backend = open_backend(uuids)
    try:
        return run(backend, interval_s, once)
    except BrokenPipeError:
        return 0
    finally:
        backend.close()


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # NVML's own cleanup can crash or block when a device is ill
