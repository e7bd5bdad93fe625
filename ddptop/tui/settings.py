"""The user's settings of the interface, and what it remembers between runs.

What is wrong in config.toml is reported, and the defaults are used instead.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta
from textual.theme import BUILTIN_THEMES

from ddptop.export.settings import NotifyTable
from ddptop.job.keys import BY_ID, ON_EVERY_SCREEN, SCREENS
from ddptop.tui.keymap import KNOWN, RESERVED, SHOWN, parse_key
from ddptop.tui.themes import DARK, OWN
from ddptop_runner.base import bounded
from ddptop_runner.base.files import write_atomic
from ddptop_runner.base.paths import config_file, state_home

TableT = TypeVar("TableT")
SCHEMA = 1
FILE_BYTES = 1 << 16
TABLES = ("interface", "keys", "notify", "hooks", "report")

THEMES = (*BUILTIN_THEMES, *(theme.name for theme in OWN))


class Interface(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[interface]`."""

    theme: str | None = None
    """None: the theme last chosen in the palette, else ddptop's default."""
    ascii: bool | Literal["auto"] = "auto"
    refresh_s: Annotated[float, Meta(ge=0.2, le=60)] = 1.0
    mouse: bool = True


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The state file's content."""

    schema: int = SCHEMA
    theme: str | None = None
    """The theme chosen in the palette."""


class Settings(msgspec.Struct, frozen=True):
    """The valid settings of the interface."""

    interface: Interface = Interface()
    keys: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """The user's keys by action."""
    notify: NotifyTable = NotifyTable()
    problems: tuple[str, ...] = ()
    """Errors, one line each, with file, section, key, and remedy."""

    def theme(self, memory: Memory) -> str:
        """The theme at startup: that of the file, or else the one last chosen in the palette."""
        names = (name for name in (self.interface.theme, memory.theme) if name in THEMES)
        return next(names, DARK.name)


def read_settings(file: Path | None = None) -> Settings:
    """Read the settings; the defaults if the file is missing or cannot be read."""
    file = file or config_file()
    try:
        data = msgspec.toml.decode(bounded.read_bytes(Path(os.path.realpath(file))))
    except FileNotFoundError:
        return Settings()
    except (OSError, RecursionError, ValueError) as error:  # of msgspec and tomllib
        return Settings(problems=(f"cannot read {file} ({error}); fix or remove it",))
    return parse(data, file.name)


def parse(data: Mapping[str, object], file: str) -> Settings:
    """The settings of a decoded file.

    Args:
        data: its tables.
        file: its name, for messages.
    """
    problems = [
        f"{file}: unknown section [{table}]{did_you_mean(table, TABLES)}"
        for table in data
        if table not in TABLES and near(table, TABLES)
    ]

    def table(name: str, of: type[TableT]) -> TableT:
        try:
            return msgspec.convert(data.get(name, {}), of)
        except msgspec.ValidationError as error:
            problems.append(f"{file}, [{name}]: {error}; the defaults are used")
            return of()

    interface, notify = table("interface", Interface), table("notify", NotifyTable)
    keys = _keys(data.get("keys", {}), file, problems)
    if interface.theme is not None and interface.theme not in THEMES:
        meant = near(interface.theme, THEMES)
        hint = f'did you mean "{meant}"?' if meant else "the command palette lists all themes"
        problems.append(
            f'{file}, [interface]: theme = "{interface.theme}" is not a known theme; {hint}'
        )
    return Settings(interface, keys, notify, tuple(problems))


# --- keys -----------------------------------------------------------------------------------------


def _keys(given: object, file: str, problems: list[str]) -> dict[str, tuple[str, ...]]:
    """The valid entries of `[keys]`.

    Textual ignores unknown IDs, and silently gives a key with two actions to one of them.
    """
    where = f"{file}, [keys]"
    chosen: dict[str, tuple[str, ...]] = {}
    if not isinstance(given, Mapping):
        problems.append(f"{file}: keys is not a section; write [keys]")
        return chosen
    for name, value in given.items():
        if name not in BY_ID:
            remedy = did_you_mean(name, BY_ID) or "; see ddptop keys"
            problems.append(f'{where}: "{name}" is not an action{remedy}')
            continue
        try:
            texts = msgspec.convert([value] if isinstance(value, str) else value, list[str])
            chosen[name] = tuple(dict.fromkeys(_key(text) for text in texts if text))
        except msgspec.ValidationError:
            problems.append(f'{where}: "{name}" is not a key; use "s" or ["s", "ctrl+s"]')
        except ValueError as error:
            problems.append(f'{where}: "{name}": {error}')
    while clash := _clash(chosen):
        key, ids, screen = clash
        mine = [name for name in ids if chosen.pop(name, None) is not None]
        both = " and ".join(f'"{name}"' for name in ids)
        kept = "the default is kept" if len(mine) == 1 else "the defaults are kept"
        problems.append(
            f'{where}: {key} is bound to {both} on the "{screen}" screen, so {kept}; '
            "remap one of them"
        )
    return chosen


def _key(text: str) -> str:
    """The key that a text means; raises ValueError if there is none, or it is reserved."""
    key = parse_key(text)
    if key is None:
        meant = near(text.lower(), {*KNOWN, *SHOWN})
        hint = f'did you mean "{meant}"?' if meant else 'use "s", "S", "ctrl+s", or "f5"'
        raise ValueError(f'"{text}" is not a key; {hint}')
    if key in RESERVED:
        raise ValueError(f'"{text}" cannot be remapped: {RESERVED[key]}')
    return key


def _clash(chosen: Mapping[str, tuple[str, ...]]) -> tuple[str, list[str], str] | None:
    """A key that the user gave to an action while another has it: (key, actions, screen)."""
    for screen, table in SCREENS.items():
        owners: defaultdict[str, list[str]] = defaultdict(list)
        given: set[str] = set()
        for action in (*table, *ON_EVERY_SCREEN):
            defaults = action.defaults.split()
            keys = chosen.get(action.id, tuple(defaults))
            given |= set(keys) - set(defaults)
            for key in keys:
                owners[key].append(action.id)
        for key, ids in owners.items():
            if len(ids) > 1 and key in given:
                return key, ids, screen
    return None


# --- messages -------------------------------------------------------------------------------------


def near(name: str, known: Iterable[str]) -> str | None:
    """The known name that the user probably meant."""
    found = difflib.get_close_matches(name, list(known), 1, 0.6)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message: the name that the user probably meant, or nothing."""
    found = near(name, known)
    return f'; did you mean "{found}"?' if found else ""


# --- memory ---------------------------------------------------------------------------------------


def _memory_file() -> Path:
    return state_home() / "interface.json"


def recall() -> Memory:
    """Read the memory; empty if the file cannot be read."""
    try:
        return msgspec.json.decode(bounded.read_bytes(_memory_file(), FILE_BYTES), type=Memory)
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return Memory()


def remember(memory: Memory) -> None:
    """Save the memory, if possible."""
    file = _memory_file()
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if file.parent.stat().st_uid == os.geteuid():  # never write into another user's folder
            write_atomic(file, msgspec.json.encode(memory))
