"""Keys as Textual names them, and as users may write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace
from textual.binding import Binding, BindingType
from textual.keys import Keys

from ddptop.job.keys import Key
from ddptop.tui.textual_gaps import key_of_character

NO_KEY = "no-key"
"""In Textual's key map, the key of an action without one; no terminal sends it."""

RESERVED = {
    "ctrl+c": "it copies the selection or asks before quitting",
    "ctrl+z": "ddptop cannot be suspended; press d to quit (jobs keep running)",
    "tab": "it moves to the next panel",
    "shift+tab": "it moves to the previous panel",
    "ctrl+i": "terminals send it as tab",
    "ctrl+m": "terminals send it as enter",
    "ctrl+[": "terminals send it as esc",
}
"""Keys that cannot be remapped, and why."""

TEXTUAL_NAMES = {
    "esc": "escape",
    "PgUp": "pageup",
    "PgDn": "pagedown",
    "↑": "up",
    "↓": "down",
    "←": "left",
    "→": "right",
}
"""Textual's names of keys that are shown differently."""

SHOWN = {
    **{name: key for key, name in TEXTUAL_NAMES.items()},
    **{"pgup": "PgUp", "pgdn": "PgDn", "return": "enter", "del": "delete", "ins": "insert"},
}
KNOWN = {key.value for key in Keys if not key.value.startswith("<")}


def textual_key(key: str) -> str:
    """Textual's name of a key: `question_mark` for `?`."""
    modifiers, plus, last = key.rpartition("+") if len(key) > 1 else ("", "", key)
    is_character = len(last) == 1 and last not in TEXTUAL_NAMES
    name = key_of_character(last) if is_character else TEXTUAL_NAMES.get(last, last.lower())
    return f"{modifiers}{plus}{name}"


def bindings(actions: Iterable[Key], methods: Mapping[str, str] | None = None) -> list[BindingType]:
    """Bindings of a screen or widget.

    Args:
        actions: rows of the key table.
        methods: the methods by ID, for a widget whose methods have other names.
    """
    if methods is not None:
        actions = [replace(one, do=methods[one.id]) for one in actions if one.id in methods]
    return [
        Binding(",".join(map(textual_key, one.defaults.split())), one.action, id=one.id, show=False)
        for one in actions
    ]


def for_textual(chosen: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """The user's keys for `App.set_keymap`."""
    return {name: ",".join(map(textual_key, keys)) or NO_KEY for name, keys in chosen.items()}


def parse_key(text: str) -> str | None:
    """A key as ddptop shows it; None if there is no such key.

    Args:
        text: what the user wrote, such as `s`, `S`, `?`, `ctrl+s`, `f5`, or `enter`.
    """
    if len(text) == 1:
        return "space" if text == " " else text if text.isprintable() else None
    *modifiers, last = text.strip().lower().split("+")
    if modifiers == ["shift"] and len(last) == 1 and last.isalpha():
        return last.upper()
    is_function_key = last[:1] == "f" and last[1:].isdigit()
    name = last.upper() if is_function_key else SHOWN.get(last, last)
    key = "+".join([*sorted(set(modifiers)), name])
    is_known = textual_key(name) in KNOWN or (len(last) == 1 and last.isprintable())
    if not is_known or not {"ctrl", "alt", "shift"}.issuperset(modifiers):
        return None
    return None if "shift" in modifiers and textual_key(key) not in KNOWN else key
