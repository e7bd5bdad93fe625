"""A running sampler process, as used by an asyncio program: the supervisor or a viewer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection

import msgspec

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.devices.report import (
    NOT_ANSWERING,
    NOTHING_TO_SAMPLE,
    DeviceReport,
    Options,
    crash_note,
    decode_report,
    empty_report,
    library_problem,
    sampler_command,
    stale_report,
)

STALE_AFTER_S = 5.0
FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 30.0
STEADY_AFTER_S = 60.0
"""A sampler that ran for this long is restarted without the delays of earlier failures."""
LEAVE_AFTER_S = 2.0
_LONGEST_LINE_BYTES = 4 * 1024 * 1024


def next_delay_s(previous_s: float | None, lived_s: float) -> float:
    """How long to wait before restarting the sampler: doubles up to 30 s."""
    if previous_s is None or lived_s >= STEADY_AFTER_S:
        return FIRST_DELAY_S
    return min(previous_s * 2, LONGEST_DELAY_S)


class DeviceFeed:
    """Keeps a sampler process running, and its latest report available.

    If there is nothing to sample, the process exits and the report says why. It is started again
    every 30 s, as a driver may be loaded later or be only temporarily unavailable. A sampler that
    the driver blocks is not replaced, because another one would block as well.
    """

    def __init__(
        self,
        uuids: Collection[str] | None = None,
        *,
        interval_s: float = 1.0,
    ) -> None:
        """`uuids` limits the feed to these devices; None means all."""
        self._uuids = None if uuids is None else list(uuids)
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._report: DeviceReport | None = None
        self._received_s = boottime_s()
        self._trouble: str | None = None
        self._final = False

    @property
    def latest(self) -> DeviceReport | None:
        """The latest report, or None before the first one.

        After more than 5 s without a report, its metrics become None, and its `note` says why.
        """
        age_s = boottime_s() - self._received_s
        if self._final or age_s <= STALE_AFTER_S + self._interval_s - 1.0:
            return self._report
        note = self._trouble or NOT_ANSWERING.format(age_s=age_s)
        return empty_report(note) if self._report is None else stale_report(self._report, note)

    @property
    def note(self) -> str | None:
        """Why devices are missing, incomplete, or stale; None if there is no problem."""
        report = self.latest
        return None if report is None else report.note

    @property
    def pid(self) -> int | None:
        """The sampler's PID while it runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process is not None else None

    def request(self) -> None:
        """Ask for a report at once, between two ticks; does nothing without a running sampler."""
        if self.pid is not None and self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(b"\n")

    async def start(self) -> None:
        """Start sampling and return at once. Does nothing if it is already running."""
        if self._task is None:
            self._received_s, self._final = boottime_s(), False
            self._task = asyncio.create_task(self._keep_running(), name="device feed")

    async def stop(self) -> None:
        """End the sampler. One that the driver blocks for more than 2 s is abandoned."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        for end in (process.terminate, process.kill):
            with contextlib.suppress(ProcessLookupError):
                end()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), LEAVE_AFTER_S)
                return

    async def _keep_running(self) -> None:
        delay_s: float | None = None
        while True:
            if (problem := library_problem()) is not None:
                self._receive(empty_report(problem), final=True)
                return
            started_s = boottime_s()
            try:
                status, last_words = await self._run_once()
            except OSError as error:  # this user has no processes, memory, or files left
                self._trouble = f"the device sampler cannot start ({error.strerror})"
            else:
                if status == NOTHING_TO_SAMPLE:
                    self._final, delay_s = True, None
                    await asyncio.sleep(LONGEST_DELAY_S)
                    continue
                self._trouble = crash_note(status, last_words)
            delay_s = next_delay_s(delay_s, boottime_s() - started_s)
            await asyncio.sleep(delay_s)

    async def _run_once(self) -> tuple[int | None, bytes]:
        """Follow one sampler until it ends; returns its exit status and any last error line."""
        self._process = process = await asyncio.create_subprocess_exec(
            *sampler_command(Options(self._uuids, self._interval_s, on_request=True)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd="/",
            start_new_session=True,
            limit=_LONGEST_LINE_BYTES,
        )
        last_words = b""
        if process.stdout is not None:
            async for line in process.stdout:
                try:
                    self._receive(decode_report(line))
                except msgspec.MsgspecError:
                    last_words = line
        return await process.wait(), last_words

    def _receive(self, report: DeviceReport, *, final: bool = False) -> None:
        self._report, self._received_s = report, boottime_s()
        self._trouble, self._final = None, final
