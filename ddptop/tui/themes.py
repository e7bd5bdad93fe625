"""ddptop's own themes, with few colors of which only alerts stand out.

The color-blind pair takes its hues from Okabe and Ito's palette ("Color Universal Design", 2008):
sky blue, bluish green, yellow, and vermillion, lightened or darkened until text is readable. Its
job states are distinct for deuteranopes and protanopes.
"""

from __future__ import annotations

from dataclasses import replace

from textual.theme import Theme

STRONG = "strong-contrast"
"""A theme with this variable draws labels and rules nearly as bright as text."""

DARK = Theme(
    name="ddptop",
    dark=True,
    background="#11151a",
    surface="#161b21",
    panel="#222a33",
    foreground="#d3dae2",
    primary="#6fa8dc",
    secondary="#8a9bb0",
    accent="#8fd0c8",
    success="#86b987",
    warning="#e3b25c",
    error="#ec7b73",
)
LIGHT = Theme(
    name="ddptop-light",
    dark=False,
    background="#fbfbf9",
    surface="#f3f3f0",
    panel="#e6e7e2",
    foreground="#1f252b",
    primary="#215f9a",
    secondary="#4f6072",
    accent="#12706a",
    success="#2a6a3a",
    warning="#815400",
    error="#b3261e",
)
COLOR_BLIND = replace(
    DARK,
    name="ddptop-colourblind",
    foreground="#dfe5ec",
    primary="#56b4e9",
    secondary="#9aa9bb",
    accent="#d99bbd",
    success="#2fb892",
    warning="#f0e442",
    error="#f5813a",
)
COLOR_BLIND_LIGHT = Theme(
    name="ddptop-colourblind-light",
    dark=False,
    background="#fbfbf9",
    surface="#f4f4f1",
    panel="#ebece7",
    foreground="#1b2026",
    primary="#00639c",
    secondary="#4d5c6e",
    accent="#8e3a6d",
    success="#00694c",
    warning="#846600",
    error="#6b1a00",
)
CONTRAST = Theme(
    name="ddptop-contrast",
    dark=True,
    background="#000000",
    surface="#000000",
    panel="#2a2a2a",
    foreground="#ffffff",
    primary="#79c0ff",
    secondary="#d0d7de",
    accent="#7ee7d8",
    success="#7ee787",
    warning="#ffd33d",
    error="#ff9c94",
    variables={STRONG: "yes"},
)
OWN = (DARK, LIGHT, COLOR_BLIND, COLOR_BLIND_LIGHT, CONTRAST)
"""ddptop's themes, in the order of the palette."""
