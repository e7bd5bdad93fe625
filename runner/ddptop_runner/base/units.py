"""Numbers with their units, as text."""

from __future__ import annotations


def gib(size_bytes: int) -> str:
    """`3.2 GiB`, or MiB below one."""
    if size_bytes < 2**30:
        return f"{size_bytes / 2**20:.0f} MiB"
    return f"{size_bytes / 2**30:.1f} GiB"
