"""What the interface remembers between runs, in a small file in the state directory.

ddptop never writes the user's settings. A file that cannot be read or written is ignored: nothing
depends on it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from ddptop_runner.base import bounded
from ddptop_runner.base.files import write_atomic
from ddptop_runner.base.paths import state_home

SCHEMA = 1
FILE_BYTES = 1 << 16


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The file's content."""

    schema: int = SCHEMA
    greeted: bool = False
    """Whether the hint of the first start was shown."""
    theme: str | None = None
    """The theme chosen in the palette."""
    asked: str | None = None
    """The theme in the settings at that time; a different one there now takes precedence."""

    def remembered_theme(self, configured: str | None) -> str | None:
        """The theme chosen in the palette, unless the settings have changed since."""
        return self.theme if self.asked == configured else None


_decoder = msgspec.json.Decoder(Memory)


def _file() -> Path:
    return state_home() / "interface.json"


def recall() -> Memory:
    """Read the memory; empty if the file cannot be read."""
    try:
        return bounded.decode_json(_decoder, bounded.read_bytes(_file(), FILE_BYTES))
    except (OSError, ValueError):  # msgspec's errors are ValueErrors
        return Memory()


def remember(memory: Memory) -> None:
    """Save the memory, if possible."""
    with contextlib.suppress(OSError):
        _file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _file().parent.stat().st_uid != os.geteuid():
            return  # never write into another user's folder
        write_atomic(_file(), msgspec.json.encode(memory))
