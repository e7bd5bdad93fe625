"""What a screen shows besides jobs and ranks: the host, histories, the last minutes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from ddptop.view.learning import LossTrend
from ddptop.view.series import Points


class Machine(msgspec.Struct, frozen=True):
    """This host as a whole."""

    host: str
    cpu_percent: float | None = None
    """Utilization of the machine's cores; 100 is all of them."""
    cores: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None


class DeviceHistory(msgspec.Struct, frozen=True):
    """What was, up to a moment."""

    since: float = 0.0
    until: float = 0.0
    """Unix seconds."""
    recent: Mapping[str, tuple[float | None, ...]] = msgspec.field(default_factory=dict)
    """By UUID: how busy each device was in each ten seconds of the last ten minutes, in percent."""
    idle_s: Mapping[str, float] = msgspec.field(default_factory=dict)
    """By UUID: for how long a device has done nothing; none of one that does something."""
    device: str | None = None
    """Whose figures these are."""
    figures: Mapping[str, Points] = msgspec.field(default_factory=dict)
    """By name, of figures.devices.HISTORY: in percent, bytes, watts and degrees Celsius."""
    first: float | None = None
    """The earliest moment of that device of which something is known, unix seconds."""
    fills: int = 0
    """How often something from before this viewer was read."""
    marks: tuple[tuple[float, str], ...] = ()
    """Since when the device was slowed down, and its errors: unix seconds and a word."""


@dataclass(frozen=True)
class Tail:
    """The last lines of a log."""

    attempt: int
    owner: int | None
    """The rank that wrote them, `model.LAUNCHER` for a command; None: there are none."""
    lines: tuple[str, ...] = ()


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
