"""The key map: the tables' defaults, and the user's changes in `[keys]`.

Textual ignores unknown ids, and silently gives a key with two actions to one of them. This module
checks the map, reports errors, and leaves the wrong entries out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import msgspec
from textual.app import App
from textual.keys import Keys, key_to_character

from ddptop.tui.actions import ALL, EVERYWHERE, HELP, MOVING, PALETTE, Action, key_text
from ddptop.tui.settings import did_you_mean, near, shown

NO_KEY = "no-key"
"""In Textual's key map, the key of an action without one; no terminal sends it."""

RESERVED = {
    "ctrl+c": "it copies the selection or asks before quitting",
    "ctrl+z": "ddptop cannot be suspended; press d to quit (jobs keep running)",
    "tab": "it moves to the next panel",
    "shift+tab": "it moves to the previous panel",
}
"""Keys that cannot be remapped, and why."""

SAME_BYTE = {"ctrl+i": "tab", "ctrl+m": "enter", "ctrl+left_square_bracket": "escape"}
"""Keys that a terminal cannot distinguish from others."""

_NAMES = {
    "esc": "escape",
    "return": "enter",
    "del": "delete",
    "ins": "insert",
    "pgup": "pageup",
    "pgdn": "pagedown",
    "pgdown": "pagedown",
}
_KNOWN = {key.value for key in Keys if not key.value.startswith("<")}


class KeyMap(msgspec.Struct, frozen=True):
    """The keys in use."""

    chosen: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """User-defined keys by action, as Textual names them."""

    def keys(self, action: Action) -> tuple[str, ...]:
        """The keys of an action, as Textual names them."""
        chosen = self.chosen.get(action.id)
        return tuple(action.keys.split(",")) if chosen is None else chosen

    def text(self, action: Action) -> str:
        """All keys of an action, as the user types them; empty if it has none."""
        return "  ".join(key_text(key) for key in self.keys(action))

    def short(self, action: Action) -> str:
        """The text in the key bar."""
        if action.key_display is not None and action.id not in self.chosen:
            return action.key_display
        return self.text(action)

    def named(self) -> dict[str, str]:
        """The key of each action as messages name it: its shortest, or a path in the palette."""
        return {
            name: min(map(key_text, keys), key=lambda text: (len(text), not text.isalnum()))
            if (keys := self.keys(action))
            else f"{self.text(PALETTE)} {action.name}".strip()
            for name, action in every_action().items()
        }

    def for_textual(self) -> dict[str, str]:
        """The map for `App.set_keymap`."""
        return {name: ",".join(keys) or NO_KEY for name, keys in self.chosen.items()}


def keys_in_use(app: App[object]) -> KeyMap:
    """The key map of an app."""
    keys = getattr(app, "keys", None)
    return keys if isinstance(keys, KeyMap) else KeyMap()


def help_hint(app: App[object], *, typing: bool = False) -> str:
    """Such as `? help`; if `typing`, with a key that a text field does not take."""
    keys = keys_in_use(app).keys(HELP)
    free = [key for key in keys if not typing or _character_of(key) is None]
    return f"{key_text(free[0])} help" if free else ""


def _character_of(key: str) -> str | None:
    """The character that a key types; None if it types none."""
    text = key_to_character(key)
    return text if text is not None and text.isprintable() else None


def every_action() -> dict[str, Action]:
    """All actions by id; if several screens have one, the first screen's."""
    found: dict[str, Action] = {}
    for _, actions in places():
        for action in actions:
            found.setdefault(action.id, action)
    return found


def places() -> Iterator[tuple[str, tuple[Action, ...]]]:
    """Each screen's title and actions."""
    for title, table in ALL.items():
        yield title, (*table, *MOVING, *EVERYWHERE)


def parse_key(text: str) -> str | None:
    """Textual's name of a key that the user wrote; None if there is no such key.

    Args:
        text: such as `s`, `S`, `?`, `ctrl+s`, `f5` or `enter`.
    """
    text = text.strip() or text[:1]
    if len(text) == 1:
        return _of_character(text)
    *modifiers, last = text.split("+") if not text.endswith("++") else (text[:-2], "+")
    modifiers = [modifier.strip().lower() for modifier in modifiers]
    if any(modifier not in ("ctrl", "alt", "shift") for modifier in modifiers):
        return None
    if len(last) == 1:
        if modifiers == ["shift"] and last.isalpha():
            return last.upper()
        name = _of_character(last.lower() if "ctrl" in modifiers else last)
    else:
        name = _NAMES.get(last.lower(), last.lower())
        if name not in _KNOWN and key_to_character(name) is None:
            return None
    if name is None or (modifiers == ["shift"] and f"shift+{name}" not in _KNOWN):
        return None
    return "+".join([*sorted(set(modifiers), key=("ctrl", "alt", "shift").index), name])


def _of_character(character: str) -> str | None:
    from ddptop.tui.textual_gaps import key_of_character

    if character == " ":
        return "space"
    return key_of_character(character) if character.isprintable() else None


def check_keys(given: Mapping[str, object], file: str) -> tuple[KeyMap, list[str]]:
    """The key map from the valid entries of `[keys]`, and the errors.

    Args:
        given: a key, or a list of keys, by action.
        file: the file's name, for messages.
    """
    where = f"{file}, [keys]"
    known = every_action()
    wrong: list[str] = []
    chosen: dict[str, tuple[str, ...]] = {}
    for name, value in given.items():
        if name not in known:
            remedy = did_you_mean(name, known) or "; see ddptop keys"
            wrong.append(f'{where}: "{name}" is not an action{remedy}')
            continue
        keys = _keys_of(name, value, where, wrong)
        if keys is not None:
            chosen[name] = keys
    wrong += _without_clashes(chosen, where)
    return KeyMap(chosen), wrong


def _keys_of(name: str, value: object, where: str, wrong: list[str]) -> tuple[str, ...] | None:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        wrong.append(f'{where}: "{name}" = {shown(value)} is not a key; use "s" or ["s", "ctrl+s"]')
        return None
    keys: list[str] = []
    for text in texts:
        if not text:
            continue
        key = parse_key(text)
        if key is None:
            meant = near(text.lower(), {*_KNOWN, *_NAMES})
            hint = f'did you mean "{meant}"?' if meant else 'use "s", "S", "ctrl+s", or "f5"'
            wrong.append(f'{where}: "{name}": "{text}" is not a key; {hint}')
            return None
        if key in SAME_BYTE:
            same = key_text(SAME_BYTE[key])
            wrong.append(
                f'{where}: "{name}": terminals send "{text}" as {same}; choose another key'
            )
            return None
        if key in RESERVED:
            wrong.append(f'{where}: "{name}": "{text}" cannot be remapped: {RESERVED[key]}')
            return None
        if key not in keys:
            keys.append(key)
    return tuple(keys)


def _without_clashes(chosen: dict[str, tuple[str, ...]], where: str) -> list[str]:
    """Remove entries that give one key to two actions of a screen; returns the errors."""
    wrong: list[str] = []
    while clash := _clash(chosen):
        key, names, place = clash
        mine = [name for name in names if name in chosen]
        for name in mine:
            del chosen[name]
        both = " and ".join(f'"{name}"' for name in names)
        kept = "the default is kept" if len(mine) == 1 else "the defaults are kept"
        wrong.append(
            f'{where}: {key_text(key)} is bound to {both} on the "{place}" screen, so '
            f"{kept}; remap one of them"
        )
    return wrong


def _clash(chosen: Mapping[str, tuple[str, ...]]) -> tuple[str, list[str], str] | None:
    """A key of two actions, at least one of them user-defined: (key, actions, screen)."""
    keys = KeyMap(chosen)
    for place, actions in places():
        by_key: defaultdict[str, list[str]] = defaultdict(list)
        for action in actions:
            for key in keys.keys(action):
                if action.id not in by_key[key]:
                    by_key[key].append(action.id)
        for key, names in by_key.items():
            if len(names) > 1 and _is_new(key, names, chosen):
                return key, names, place
    return None


def _is_new(key: str, names: list[str], chosen: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether the user gave the key to one of these actions that has another by default."""
    known = every_action()
    return any(
        key in chosen.get(name, ()) and key not in known[name].keys.split(",") for name in names
    )
