"""`ddptop metrics`: jobs, ranks, and devices for Prometheus."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from ddptop.export.exporter import FILE_NAME, Exporter
from ddptop.output import info
from ddptop.terminal import until_stopped
from ddptop_runner.base.errors import UsageError


def run(listen: str | None, textfile: str | None, interval_s: float) -> int:
    """Print the metrics once, or serve or write them until ctrl+c or SIGTERM.

    Raises:
        UsageError: both are given, the address is not valid or available, or the folder cannot be
            written.
    """
    if listen is not None and textfile is not None:
        raise UsageError("--listen and --textfile cannot be used together", "run one of each")
    try:
        asyncio.run(_run(listen, textfile, interval_s))
    except UnicodeError:  # of a name with a label that is empty or too long
        raise UsageError(f"{listen} is no address", "use another ADDRESS:PORT") from None
    except OSError as error:
        number = error.errno or 0
        why = os.strerror(number) if number > 0 else error.strerror  # getaddrinfo's are negative
        if textfile is not None:
            raise UsageError(
                f"cannot write {Path(textfile) / FILE_NAME}: {why}",
                "use a folder that exists and that you can write to",
            ) from None
        if listen is None:
            raise
        raise UsageError(f"cannot listen on {listen}: {why}", "use another ADDRESS:PORT") from None
    return 0


async def _run(listen: str | None, textfile: str | None, interval_s: float) -> None:
    exporter = Exporter()

    async def work() -> None:
        if listen is not None:
            shown, address = listen.rpartition(":")[0], _address(listen)
            ready = "ddptop: serving http://{}:{}/metrics; ctrl+c ends it"
            await exporter.serve(*address, lambda port: info(ready.format(shown, port)))
        elif textfile is not None:
            await exporter.write(Path(textfile), interval_s)
        else:
            sys.stdout.write((await exporter.text()).decode())

    try:
        await until_stopped(work())
    finally:
        await exporter.close()


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise UsageError(
            f"--listen {listen} is not in the form ADDRESS:PORT", "use --listen 127.0.0.1:9400"
        )
    return host.strip("[]"), int(port)
