"""The user's settings of the interface, and what it remembers between runs."""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from ddptop_runner.base import bounded
from ddptop_runner.base.files import write_atomic
from ddptop_runner.base.paths import config_file, state_home

First = Literal["jobs", "devices"]
"""The screens that ddptop can start on."""

FIRSTS: tuple[First, ...] = ("jobs", "devices")
REFRESH_S = (0.2, 60.0)
"""Shortest and longest refresh interval."""

TABLES = ("interface", "keys", "themes")


class Interface(msgspec.Struct, frozen=True):
    """`[interface]`."""

    theme: str | None = None
    """None: the theme last chosen in the palette, else ddptop's default."""
    ascii: bool | None = None
    """None: depends on locale and TERM."""
    refresh_s: float = 1.0
    mouse: bool = True
    first: First = "jobs"


class Settings(msgspec.Struct, frozen=True):
    """The valid settings of the interface."""

    interface: Interface = Interface()
    keys: Mapping[str, object] = msgspec.field(default_factory=dict)
    """Keys by action, not yet checked."""
    themes: Mapping[str, object] = msgspec.field(default_factory=dict)
    """Themes by name, not yet checked."""
    file: str = "config.toml"
    """The file's name, for messages."""
    problems: tuple[str, ...] = ()
    """Errors, one line each, with file, section, key, and remedy."""


def read_settings(file: Path | None = None) -> Settings:
    """Read the settings; the defaults if the file is missing or cannot be read."""
    file = file or config_file()
    try:
        data = msgspec.toml.decode(bounded.read_bytes(Path(os.path.realpath(file))))
    except FileNotFoundError:
        return Settings()
    except (OSError, RecursionError, ValueError) as error:  # of msgspec and tomllib
        what = f"cannot read {file} ({error}); fix or remove it"
        return Settings(file=file.name, problems=(what,))
    return parse(data, file.name)


def parse(data: Mapping[str, object], file: str) -> Settings:
    """The settings of a decoded file.

    Args:
        data: its tables.
        file: its name, for messages.
    """
    wrong = [
        f"{file}: unknown section [{table}]{did_you_mean(table, TABLES)}"
        for table in data
        if table not in TABLES and near(table, TABLES)
    ]
    tables: dict[str, Mapping[str, object]] = {}
    for table in TABLES:
        given = data.get(table, {})
        if isinstance(given, Mapping):
            tables[table] = given
        else:
            tables[table] = {}
            wrong.append(f"{file}: {table} is not a section; write [{table}]")
    interface = _interface(tables["interface"], f"{file}, [interface]", wrong)
    return Settings(interface, tables["keys"], tables["themes"], file, tuple(wrong))


def _interface(given: Mapping[str, object], where: str, wrong: list[str]) -> Interface:
    known = ("theme", "ascii", "refresh_s", "mouse", "first")
    wrong += [
        f'{where}: "{name}" is not a setting{did_you_mean(name, known)}'
        for name in given
        if name not in known
    ]
    default = Interface()

    def report(name: str, remedy: str) -> None:
        wrong.append(f"{where}: {name} = {shown(given[name])} is not valid; {remedy}")

    theme, mouse = given.get("theme"), given.get("mouse", default.mouse)
    if theme is not None and not isinstance(theme, str):
        report("theme", "use a theme name in quotes")
        theme = None
    if not isinstance(mouse, bool):
        report("mouse", "use true or false")
        mouse = default.mouse
    ascii_only = given.get("ascii", "auto")
    if ascii_only != "auto" and not isinstance(ascii_only, bool):
        report("ascii", 'use "auto", true, or false')
        ascii_only = "auto"
    refresh_s = given.get("refresh_s", default.refresh_s)
    low, high = REFRESH_S
    is_number = isinstance(refresh_s, (int, float)) and not isinstance(refresh_s, bool)
    if not is_number or not low <= float(refresh_s) <= high:  # type: ignore[arg-type]
        report("refresh_s", f"use a number of seconds from {low:g} to {high:g}")
        refresh_s = default.refresh_s
    first = next((one for one in FIRSTS if one == given.get("first", default.first)), None)
    if first is None:
        report("first", 'use "jobs" or "devices"')
    return Interface(
        theme=theme,
        ascii=None if ascii_only == "auto" else bool(ascii_only),
        refresh_s=float(refresh_s),  # type: ignore[arg-type]
        mouse=mouse,
        first=first or default.first,
    )


def shown(value: object) -> str:
    """A value as written in the file, shortened if it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 40 else text[:39] + "…"


def near(name: str, known: Iterable[str]) -> str | None:
    """The known name that the user probably meant."""
    found = difflib.get_close_matches(name, list(known), 1, 0.6)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message: the name that the user probably meant, or nothing."""
    found = near(name, known)
    return f'; did you mean "{found}"?' if found else ""


SCHEMA = 1
FILE_BYTES = 1 << 16


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The file's content."""

    schema: int = SCHEMA
    greeted: bool = False
    """Whether the hint of the first start was shown."""
    theme: str | None = None
    """The theme chosen in the palette."""
    asked: str | None = None
    """The theme in the settings at that time; a different one there now takes precedence."""

    def remembered_theme(self, configured: str | None) -> str | None:
        """The theme chosen in the palette, unless the settings have changed since."""
        return self.theme if self.asked == configured else None


_decoder = msgspec.json.Decoder(Memory)


def _file() -> Path:
    return state_home() / "interface.json"


def recall() -> Memory:
    """Read the memory; empty if the file cannot be read."""
    try:
        return bounded.decode_json(_decoder, bounded.read_bytes(_file(), FILE_BYTES))
    except (OSError, ValueError):  # msgspec's errors are ValueErrors
        return Memory()


def remember(memory: Memory) -> None:
    """Save the memory, if possible."""
    with contextlib.suppress(OSError):
        _file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _file().parent.stat().st_uid != os.geteuid():
            return  # never write into another user's folder
        write_atomic(_file(), msgspec.json.encode(memory))
