"""Reads jobs and devices for `ddptop metrics`, and serves them or writes them to a file."""

from __future__ import annotations

import asyncio
import contextlib
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from pathlib import Path

from ddptop.export.metrics import render
from ddptop.job.record import Job, own_job
from ddptop.job.series import Machine
from ddptop.sources.collector import live_first
from ddptop.sources.devices import QUERYING, DeviceSource
from ddptop.sources.overview import SlurmSource
from ddptop.sources.query import Look, Sources
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.files import write_atomic
from ddptop_runner.host import procs
from ddptop_runner.job.registry import JobSource

FRESH_S = 0.9
"""However often metrics are requested, nothing is read again for this long: supervisors write
figures once a second."""
FOREIGN_S = 30.0
"""Foreign jobs cost the most: all processes of the machine are examined."""
FIRST_READING_S = 5.0
"""How long to wait for the driver's first report."""
MOST_CLIENTS = 32
REQUEST_S = 2.0
"""How long a client may take to send its request."""
TIMEOUT_S = 10.0
"""How long a client may take in total, including the reading."""
LONGEST_REQUEST = 8192
FILE_NAME = "ddptop.prom"


class Exporter:
    """The metrics of this host, read at most about once a second."""

    def __init__(self) -> None:
        self._sources = Sources()
        self._devices = DeviceSource()
        self._reading: asyncio.Future[bytes] | None = None
        self._read_s = 0.0
        self._foreign: list[Job] = []
        self._next_foreign_s = 0.0
        self._clients = 0

    async def text(self) -> bytes:
        """The metrics; those who ask during a reading share its result."""
        reading = self._reading
        if reading is None or (reading.done() and time.monotonic() - self._read_s >= FRESH_S):
            self._devices.loop = asyncio.get_running_loop()
            self._reading = reading = asyncio.ensure_future(asyncio.to_thread(self._read))
        return await asyncio.shield(reading)

    def _read(self) -> bytes:
        deadline_s = time.monotonic() + (0.0 if self._read_s else FIRST_READING_S)
        while True:
            look = self._look()
            self._read_s = time.monotonic()
            if look.devices.note != QUERYING or self._read_s >= deadline_s:
                return render(look)
            time.sleep(0.1)

    def _look(self) -> Look:
        now = utc_now()
        views = self._sources[SlurmSource].as_queued(self._sources[JobSource].read())
        own = [own_job(view) for view in views]
        devices = self._devices.read(own)
        if time.monotonic() >= self._next_foreign_s:
            self._next_foreign_s = time.monotonic() + FOREIGN_S
            self._foreign = self._sources.foreign.read(devices.gpus, now, None)[0]
        jobs = tuple(sorted([*own, *self._foreign], key=live_first))
        machine = Machine(host=procs.host_name())
        return Look(taken_at=now, machine=machine, jobs=jobs, devices=devices)

    async def close(self) -> None:
        """End the device sampler."""
        await self._devices.close()

    async def write(self, folder: Path, interval_s: float) -> None:
        """Replace the file for node_exporter's textfile collector until cancelled; then delete it.

        Raises:
            OSError: it cannot be written.
        """
        file = folder / FILE_NAME
        try:
            while True:
                write_atomic(file, await self.text(), mode=0o644)
                await asyncio.sleep(interval_s)
        finally:
            with contextlib.suppress(OSError):
                file.unlink()

    async def serve(self, host: str, port: int, ready: Callable[[int], None]) -> None:
        """Serve /metrics until cancelled; `ready` gets the port.

        Raises:
            OSError: the address is not available.
        """
        server = await asyncio.start_server(self._admit, host, port, limit=LONGEST_REQUEST)
        ready(server.sockets[0].getsockname()[1])
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            server.close()  # without waiting for clients, which Python 3.12's serve_forever() does

    async def _admit(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Answer one request and close the connection; drop what is slow, garbage, or too many."""
        self._clients += 1
        writer.transport.set_write_buffer_limits(0)  # so that drain() waits until all is sent
        try:
            if self._clients <= MOST_CLIENTS:
                await asyncio.wait_for(self._answer(reader, writer), TIMEOUT_S)
                writer.close()
        except (OSError, EOFError, asyncio.TimeoutError, asyncio.LimitOverrunError):
            pass
        except asyncio.CancelledError:
            pass  # the exporter ends; before Python 3.12, asyncio would print this
        finally:
            self._clients -= 1
            if not writer.is_closing():
                writer.transport.abort()

    async def _answer(self, reader: StreamReader, writer: StreamWriter) -> None:
        request = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_S)
        status, body = "404 Not Found", b"see /metrics\n"
        if request.startswith((b"GET /metrics ", b"GET /metrics?")):
            status, body = "200 OK", await self.text()
        head = (
            f"HTTP/1.1 {status}\r\n"
            "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
