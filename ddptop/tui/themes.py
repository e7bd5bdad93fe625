"""ddptop's own themes, with few colors of which only alerts stand out, and the user's themes.

The color-blind pair takes its hues from Okabe and Ito's palette ("Color Universal Design", 2008):
sky blue, bluish green, yellow, and vermillion, lightened or darkened until text is readable. Its
job states are distinct for deuteranopes and protanopes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from textual.color import Color, ColorParseError
from textual.theme import BUILTIN_THEMES, Theme

from ddptop.tui.settings import did_you_mean, near, shown

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
COLOR_BLIND = Theme(
    name="ddptop-colourblind",
    dark=True,
    background="#11151a",
    surface="#161b21",
    panel="#222a33",
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

COLORS = (
    "background",
    "surface",
    "panel",
    "foreground",
    "primary",
    "secondary",
    "accent",
    "success",
    "warning",
    "error",
    "boost",
)
"""The colors that a theme of `[themes.NAME]` may set; only `primary` is required."""

KEYS = ("base", "dark", *COLORS)


def own_themes(given: Mapping[str, object], file: str) -> tuple[list[Theme], list[str]]:
    """The valid themes of `[themes.NAME]`, and the errors.

    Args:
        given: tables by name; `base` names the theme that supplies missing colors.
        file: the file's name, for messages.
    """
    themes: list[Theme] = []
    wrong: list[str] = []
    for name, table in given.items():
        where = f"{file}, [themes.{name}]"
        if not isinstance(table, Mapping):
            wrong.append(
                f"{file}: themes.{name} is not a section; "
                f"write [themes.{name}] with its colors below it"
            )
            continue
        wrong += [
            f'{where}: "{key}" is not a theme color{did_you_mean(key, KEYS)}'
            for key in table
            if key not in KEYS
        ]
        theme = _theme(name, table, where, themes, wrong)
        if theme is not None:
            themes.append(theme)
    return themes, wrong


def _theme(
    name: str, table: Mapping[str, object], where: str, before: list[Theme], wrong: list[str]
) -> Theme | None:
    bases = {theme.name: theme for theme in (*BUILTIN_THEMES.values(), *OWN, *before)}
    asked = table.get("base")
    if asked is not None and asked not in bases:
        hint = did_you_mean(str(asked), bases)
        wrong.append(f"{where}: base = {shown(asked)} is not a known theme{hint}")
    dark = table.get("dark")
    if dark is not None and not isinstance(dark, bool):
        wrong.append(f"{where}: dark = {shown(dark)} is not valid; use true or false")
        dark = None
    default = LIGHT if dark is False else DARK
    base = bases.get(asked, default) if isinstance(asked, str) else default
    colors = {key: getattr(base, key) for key in COLORS}
    for key in COLORS:
        if key not in table:
            continue
        try:
            colors[key] = Color.parse(str(table[key])).hex
        except ColorParseError:
            value = shown(table[key])
            wrong.append(f'{where}: {key} = {value} is not a color; use a value such as "#6fa8dc"')
    return Theme(
        name=name,
        dark=base.dark if dark is None else dark,
        variables=dict(base.variables),
        **colors,
    )


def chosen_theme(
    asked: str | None, remembered: str | None, known: Iterable[str], where: str
) -> tuple[str, str | None]:
    """The theme at startup, and what is wrong with the one in the settings.

    Args:
        asked: the theme in the settings.
        remembered: the theme last chosen in the palette, if the settings have not changed since.
        known: names of themes.
        where: file and section, for messages.
    """
    names = list(known)
    wrong = None
    if asked is not None and asked not in names:
        meant = near(asked, names)
        hint = f'did you mean "{meant}"?' if meant else "the command palette lists all themes"
        wrong = f'{where}: theme = "{asked}" is not a known theme; {hint}'
    for name in (remembered, asked):
        if name in names:
            return str(name), wrong
    return DARK.name, wrong
