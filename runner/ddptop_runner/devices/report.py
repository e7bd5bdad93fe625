"""The output of the sampler process, and what its clients need without loading a driver."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import select
import time
from collections.abc import Collection

import msgspec

from ddptop_runner.base.clock import boottime_s, utc_now
from ddptop_runner.base.start import own_command
from ddptop_runner.devices.words import LIBRARY, LIBRARY_BROKEN, LIBRARY_MISSING, NO_ANSWER
from ddptop_runner.model.snapshot import SCHEMA, GpuSample
from ddptop_runner.model.words import Base

NOTHING_TO_SAMPLE = 3
"""The sampler's exit status if there is no driver or device; its last line says why."""

NOT_ANSWERING = "the NVIDIA driver has not responded for {age_s:.0f} s: check `nvidia-smi`"


class DeviceReport(Base, frozen=True, kw_only=True):
    """The devices at one moment: one line of the sampler's output."""

    schema: int = SCHEMA
    ts: dt.datetime
    boottime_s: float
    """CLOCK_BOOTTIME when the metrics were read."""
    source: str | None = None
    """Source of the metrics: "nvml", or None without devices."""
    driver: str | None = None
    note: str | None = None
    """Why devices are missing or stale, and how to fix it; None if there is no problem. A lost
    device has its own note."""
    gpus: list[GpuSample] = []


def decode_report(line: bytes) -> DeviceReport:
    """Decode one line from the sampler.

    Raises:
        msgspec.DecodeError: it is not a report.
    """
    return msgspec.json.decode(line, type=DeviceReport)


def empty_report(note: str) -> DeviceReport:
    """A report without devices that says why."""
    return DeviceReport(ts=utc_now(), boottime_s=boottime_s(), note=note)


NEVER_UNKNOWN = {
    *("index", "host", "parent_uuid", "mig_instances", "mig_mode", "lost", "note", "unknown"),
    *("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s"),
    *("nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s"),
}
"""Fields of GpuSample that have no reason in `unknown` if they are None."""
FIXED_METRICS = {
    *("uuid", "name", "pci_bus_id"),
    *("mem_total_bytes", "temperature_slowdown_c", "sm_clock_max_mhz"),
}
"""What remains known about a device that does not respond."""
_KEPT = {*NEVER_UNKNOWN, *FIXED_METRICS, "xid", "xid_meanings"} - {"unknown"}


def without_metrics(gpu: GpuSample) -> GpuSample:
    """The device without its metrics: identity, fixed values, XIDs, and whether it is lost."""
    kept = {name: getattr(gpu, name) for name in _KEPT}
    unknown = {
        name: gpu.unknown.get(name, NO_ANSWER) if name in _KEPT else NO_ANSWER
        for name in GpuSample.__struct_fields__
        if kept.get(name) is None and name not in NEVER_UNKNOWN
    }
    return GpuSample(**kept, unknown=unknown)


def stale_report(report: DeviceReport, note: str) -> DeviceReport:
    """`report` with a note, and without metrics that may no longer be correct."""
    gpus = [without_metrics(gpu) for gpu in report.gpus]
    return msgspec.structs.replace(report, note=note, gpus=gpus)


def crash_note(returncode: int | None, errors: bytes) -> str:
    """The note for a sampler that exited without a report."""
    from ddptop_runner.base.exit_status import status_in_words  # not needed for a report

    lines = errors.decode("utf-8", "replace").strip().splitlines()
    last = f": {lines[-1][:200]}" if lines else ""
    return f"the device sampler {status_in_words(returncode)}{last}; check `nvidia-smi`"


def library_problem() -> str | None:
    """Why NVML's library cannot be loaded, and the remedy; None if it can.

    Does not query the driver, so it cannot block.
    """
    import ctypes  # not every screen shows devices

    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:  # or it is broken, such as an empty file that an image puts there
        is_missing = "No such file" in str(error)
        return LIBRARY_MISSING if is_missing else LIBRARY_BROKEN.format(reason=error)
    return None


class Options(msgspec.Struct, frozen=True):
    """What a sampler process does; as JSON, its only argument."""

    uuids: list[str] | None = None
    """None means every device."""
    interval_s: float = 1.0
    once: bool = False
    on_request: bool = False
    """Whether a byte on standard input asks for a report at once, between two ticks."""


def sampler_command(options: Options) -> list[str]:
    """The argv of a sampler process."""
    return own_command("ddptop_runner.devices.sampler", msgspec.json.encode(options).decode())


# --- one reading, for a command that prints and exits -------------------------------------------
#
# The driver can crash or block, so a child process reads it. A command with only its main thread
# forks: the child then does not have to import the report types, half the cost of a sampler.

_LEAVE_AFTER_S = 1.0


def sample_once(timeout_s: float = 5.0, uuids: Collection[str] | None = None) -> DeviceReport:
    """The devices now, read in a separate process because the driver may block or crash.

    If NVML's library is missing, no process is started. Never raises: if nothing can be read, the
    report has no devices, and its `note` says why.

    Args:
        timeout_s: how long to wait for the driver.
        uuids: devices or MIG instances to read; None for all of both.
    """
    if (problem := library_problem()) is not None:
        return empty_report(problem)
    import subprocess  # not needed if the process is forked

    from ddptop_runner.base import programs

    argv = sampler_command(Options(uuids=None if uuids is None else list(uuids), once=True))
    try:
        done = programs.run(argv, timeout_s, cwd="/")
    except (OSError, subprocess.TimeoutExpired):
        return empty_report(NOT_ANSWERING.format(age_s=timeout_s))
    return _last_report(f"{done.stdout}\n{done.stderr}".encode(), done.returncode)


class ForkedReading:
    """A reading of all devices through the driver, which starts when this object is created."""

    def __init__(self) -> None:
        self._output, output = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _sample(output)
        os.close(output)

    def report(self, timeout_s: float = 5.0) -> DeviceReport:
        """Wait for the reading and return it; can be called once.

        Never raises: if nothing can be read, the report has no devices, and its `note` says why.
        """
        written = _read_all(self._output, time.monotonic() + timeout_s)
        os.close(self._output)
        if written is None:
            import signal  # what reads devices in time does without

            os.kill(self._pid, signal.SIGKILL)
        returncode = _wait(self._pid, time.monotonic() + _LEAVE_AFTER_S)
        if written is None:
            return empty_report(NOT_ANSWERING.format(age_s=timeout_s))
        return _last_report(written, returncode)


def _sample(output: int) -> None:
    """Run the sampler in the child process; never returns."""
    status = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        from ddptop_runner.devices import sampler

        status = sampler.main(Options(once=True))
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
    finally:
        os._exit(status)  # neither the caller's cleanup nor NVML's


def _read_all(fd: int, deadline_s: float) -> bytes | None:
    """Everything written to a pipe; None if it is not closed in time."""
    written = b""
    while select.select([fd], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
        if not (piece := os.read(fd, 1 << 16)):
            return written
        written += piece
    return None


def _wait(pid: int, deadline_s: float) -> int | None:
    """The child's return code as in subprocess; None if it is blocked in the driver."""
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
