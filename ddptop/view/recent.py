"""The last minutes of a job, as its screen shows them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ddptop.view.learning import LossTrend
from ddptop.view.series import Points

SPARK_S = 300.0
"""The time span of the sparklines on the cards."""


class Recent(msgspec.Struct, frozen=True):
    """A job's last minutes."""

    trend: LossTrend | None = None
    """None where too little is known yet."""
    step_times: Mapping[int, Points] = msgspec.field(default_factory=dict)
    """By rank, over the last SPARK_S seconds."""
    losses: Mapping[int, Points] = msgspec.field(default_factory=dict)
    """The same of the losses."""
