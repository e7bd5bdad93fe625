"""What a line of output, or an entry of a file that a training logs to, says of the training."""

from __future__ import annotations

from typing import Literal

import msgspec

ReadingKind = Literal["train", "val"]
StepUnit = Literal["run", "epoch", "samples", "epochs"]


class Reading(msgspec.Struct, frozen=True, gc=False):
    """What one line of output, or one redraw of a progress bar, says of a training."""

    rank: int | None = None
    """Of the line's own prefix, such as `[0]<stdout>:`; None where it does not say."""
    local_rank: int | None = None
    """The same where the prefix counts on its host, as `[default0]:` of torchrun does."""
    step: int | None = None
    """As printed; see `counts`."""
    total: int | None = None
    """What `step` counts up to: of the whole run or of one epoch, see `counts`."""
    counts: StepUnit = "run"
    """What `step` counts: steps of the whole run, as far as the line tells, steps of the epoch,
    samples of the epoch, or epochs themselves."""
    loss: float | None = None
    """May be NaN or infinite, as printed; None where the line tells only how far it is."""
    epoch: float | None = None
    """As printed, counted from 0 or from 1."""
    kind: ReadingKind = "train"
    eta_s: float | None = None
    """Seconds until `total` is reached, as the output itself reckons."""
    rate_per_s: float | None = None
    """How much of what `step` counts is done in a second, as the output says."""
    run_eta_s: float | None = None
    """Seconds until the whole run ends, where the output says that beside a count of the epoch."""
    epochs: int | None = None
    """What stands behind the slash of `epoch`: how many there are, or the number of the last."""
    written_at_s: float | None = None
    """Unix seconds at which it was written; None where the output does not say."""
    open: bool = False
    """Whether `counts` is only what is usual: `total` may be of an epoch as well as of the run."""
    unnamed: bool = False
    """Whether no word says what is counted: it may be samples."""
    from_zero: bool = False
    """Whether such outputs count epochs from 0, and `epochs` is the number of the last."""
