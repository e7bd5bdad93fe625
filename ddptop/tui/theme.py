"""ddptop's own colours, dark and light: few, calm, and the alerts the only loud ones."""

from __future__ import annotations

from textual.theme import Theme

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
    panel="#e2e3de",
    foreground="#22282e",
    primary="#215f9a",
    secondary="#55677a",
    accent="#12706a",
    success="#2f7040",
    warning="#8a5a00",
    error="#b3261e",
)
