"""The end of a rank's log as plain text, long enough to hold a traceback."""

from __future__ import annotations

from pathlib import Path

from ddptop_runner.store.log_clean import sanitize
from ddptop_runner.store.log_ranges import LogFile

READ_BYTES = 4 * 1024 * 1024
"""A progress bar without line ends may have written a megabyte after a traceback."""
KEPT_BYTES = 256 * 1024
LINE_BYTES = 4000
"""Of a longer line its two ends are kept."""


def log_end(
    path: Path,
    kept_bytes: int = KEPT_BYTES,
    before: int | None = None,
    read_bytes: int = READ_BYTES,
) -> str:
    """The last lines of a log, cleaned; empty when there is none.

    Args:
        path: the log, whose head may have been archived.
        kept_bytes: about this much text, after long lines were shortened.
        before: the byte at which the log is taken to end, None for its end.
        read_bytes: no more than this is read for it.
    """
    try:
        with LogFile(path) as log:
            end = log.end if before is None else min(before, log.end)
            start = min(end, max(log.first, end - read_bytes))
            log.seek(start)
            chunks, left = [], end - start
            while left > 0 and (chunk := log.read(left)):
                chunks.append(chunk)
                left -= len(chunk)
    except OSError:
        return ""
    return sanitize(shortened(b"".join(chunks), kept_bytes))


def shortened(data: bytes, kept_bytes: int) -> bytes:
    """The last lines of `data`, and of a long one its ends: its end is what a bar last drew."""
    kept: list[bytes] = []
    size = 0
    for line in reversed(data.split(b"\n")):
        if len(line) > LINE_BYTES:
            line = line[: LINE_BYTES // 2] + b" [...] " + line[-LINE_BYTES // 2 :]
        size += len(line) + 1
        if size > kept_bytes and kept:
            break
        kept.append(line)
    return b"\n".join(reversed(kept))
