"""What the interface remembers from one start to the next: a small file in the state home.

Settings are the person's and never written. A file that cannot be read or written is as good as
none: nothing depends on it.
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
    """Whether the first hint has been given."""
    theme: str | None = None
    """The one that was chosen in the palette."""
    asked: str | None = None
    """The theme of the settings at that moment: another one there since then beats this choice."""

    def theme_beside(self, asked: str | None) -> str | None:
        """The theme chosen in the palette, while the settings still ask for `asked`."""
        return self.theme if self.asked == asked else None


_decoder = msgspec.json.Decoder(Memory)


def _file() -> Path:
    return state_home() / "interface.json"


def recall() -> Memory:
    """What was remembered; nothing where it cannot be read."""
    try:
        return bounded.decode_json(_decoder, bounded.read_bytes(_file(), FILE_BYTES))
    except (OSError, ValueError):  # msgspec's errors are ValueErrors
        return Memory()


def remember(memory: Memory) -> None:
    """Keep it, where that is possible."""
    with contextlib.suppress(OSError):
        _file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _file().parent.stat().st_uid != os.geteuid():
            return  # nothing is written into another user's folder
        write_atomic(_file(), msgspec.json.encode(memory))
