"""Defines what screens show besides jobs and ranks: the host, histories, recent values. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ddptop.view.learning import LossTrend
from ddptop.view.series import Points


class Machine(msgspec.Struct, frozen=True):
    """This host's own figures."""

    host: str
    cpu_percent: float | None = None
    """Utilization of the machine's cores; 100 means all of them."""
    cores: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None


class DeviceHistory(msgspec.Struct, frozen=True):
    """History of the devices up to a time."""

    since: float = 0.0
    until: float = 0.0
    """Unix seconds."""
    recent: Mapping[str, tuple[float | None, ...]] = msgspec.field(default_factory=dict)
    """Utilization in percent by UUID: one value for each ten seconds of the last ten minutes."""
    idle_s: Mapping[str, float] = msgspec.field(default_factory=dict)
    """How long each device has been idle, by UUID; busy devices are absent."""
    device: str | None = None
    """UUID of the device that `figures` is about."""
    figures: Mapping[str, Points] = msgspec.field(default_factory=dict)
    """By name in figures.devices.HISTORY: in percent, bytes, watts, or degrees Celsius."""
    first: float | None = None
    """Earliest recorded time of that device, in unix seconds."""
    fills: int = 0
    """How many times data from before this viewer started was loaded."""
    marks: tuple[tuple[float, str], ...] = ()
    """When the device's clocks were lowered, and its errors: unix seconds and a word."""


class Tail(msgspec.Struct, frozen=True):
    """The last lines of a log."""

    attempt: int
    owner: int | None
    """The rank that wrote them, `model.LAUNCHER` for a command, or None if there are none."""
    lines: tuple[str, ...] = ()


SPARK_S = 300.0
"""The time span of the sparklines on the cards."""


class Recent(msgspec.Struct, frozen=True):
    """A job's recent values."""

    trend: LossTrend | None = None
    """None if too little is known yet."""
    step_times: Mapping[int, Points] = msgspec.field(default_factory=dict)
    """By rank, over the last SPARK_S seconds."""
    losses: Mapping[int, Points] = msgspec.field(default_factory=dict)
    """Losses by rank, over the same time."""
