"""Reads losses and steps out of what a training printed, whichever framework printed it.

Pure: bytes go in, readings come out. Nothing here knows of files or processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ReadingKind = Literal["train", "val"]


@dataclass(frozen=True)
class Reading:
    """What one line of output, or one redraw of a progress bar, says of a training."""

    rank: int | None = None
    """Of the line's own prefix, such as `[0]<stdout>:`; None where it does not say."""
    step: int | None = None
    """As printed: of the epoch or of the whole run, whichever the framework counts."""
    total: int | None = None
    """What `step` counts up to."""
    loss: float | None = None
    """May be NaN or infinite, as printed; None where the line tells only how far it is."""
    epoch: float | None = None
    kind: ReadingKind = "train"


class LossParser:
    """Readings of one output, fed in pieces of any size. Confined to one thread."""

    def feed(self, data: bytes) -> list[Reading]:
        """Take the next bytes; the readings of all lines and redraws that ended in them."""
        raise NotImplementedError
