"""Colors as numbers: contrast, distance, and how color-blind people see them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TypeAlias

from textual.color import Color

Linear: TypeAlias = tuple[float, float, float]

DEFICIENCIES: dict[str, tuple[Linear, Linear, Linear]] = {
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
}
"""On linear RGB. Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of
Color Vision Deficiency", IEEE TVCG 15 (2009), severity 1.0."""


def linear(color: str) -> Linear:
    """Linear RGB of a color in sRGB (IEC 61966-2-1)."""
    channels = (channel / 255 for channel in Color.parse(color).rgb)
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in channels
    )
    return red, green, blue


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2: 1 to 21; text needs 4.5."""
    low, high = sorted(_luminance(linear(color)) for color in (one, other))
    return (high + 0.05) / (low + 0.05)


def blended(foreground: str, background: str, share: float) -> str:
    """The color of text drawn with this fraction of the foreground color."""
    return Color.parse(background).blend(Color.parse(foreground), share).hex


def distance(one: str, other: str, deficiency: str | None = None) -> float:
    """CIE76 distance in Lab, as seen with that deficiency; 2.3 is just noticeable."""
    first, second = (_lab(_seen(linear(color), deficiency)) for color in (one, other))
    return sum((a - b) ** 2 for a, b in zip(first, second, strict=True)) ** 0.5


def least_distance(colors: Iterable[str], deficiency: str | None) -> float:
    """The distance of the two closest colors."""
    return min(distance(a, b, deficiency) for a, b in itertools.combinations(colors, 2))


def _seen(of: Linear, deficiency: str | None) -> Linear:
    if deficiency is None:
        return of
    red, green, blue = (
        min(1.0, max(0.0, sum(a * b for a, b in zip(row, of, strict=True))))
        for row in DEFICIENCIES[deficiency]
    )
    return red, green, blue


def _luminance(of: Linear) -> float:
    return 0.2126 * of[0] + 0.7152 * of[1] + 0.0722 * of[2]


def _lab(of: Linear) -> Linear:
    red, green, blue = of
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883

    def root(t: float) -> float:
        return float(t ** (1 / 3)) if t > 0.008856 else 7.787 * t + 16 / 116

    fx, fy, fz = root(x), root(_luminance(of)), root(z)
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)
