"""The median without importing `statistics`, which takes half as long as a fast command."""

from __future__ import annotations

from collections.abc import Iterable


def median(values: Iterable[float]) -> float:
    """The middle value, or the mean of the middle two.

    Raises:
        ValueError: there are no values.
    """
    found = sorted(values)
    if not found:
        raise ValueError("no values")
    middle = len(found) // 2
    return found[middle] if len(found) % 2 else (found[middle - 1] + found[middle]) / 2
