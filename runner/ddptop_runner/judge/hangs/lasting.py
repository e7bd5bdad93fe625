"""How long something lasts, coarsely, as it is told of pauses."""

from __future__ import annotations


def lasting(seconds: float) -> str:
    """`25 s`, `4 min`, `3 h`."""
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
