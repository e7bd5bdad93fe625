"""What the reading thread sends to the screens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from ddptop.sources.snapshot import Snapshot


@dataclass
class SnapshotReady(Message):
    """The collector has a new snapshot."""

    snapshot: Snapshot

    def can_replace(self, message: Message) -> bool:
        """A newer look makes one that still waits worthless."""
        return isinstance(message, SnapshotReady)
