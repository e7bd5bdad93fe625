"""Reads the machine's devices once, for a command that prints and exits."""

from __future__ import annotations

import contextlib
import subprocess
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
    try:
        return decode_report(output.splitlines()[-1])
    except (IndexError, msgspec.DecodeError):
        return empty_report(crash_note(child.returncode, errors))
