"""The user's `[keys]`, and the bindings that Textual needs.

Textual ignores unknown IDs, and silently gives a key with two actions to one of them, so the
entries are checked here, and wrong ones are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace
from textual.binding import Binding, BindingType
from textual.keys import Keys

from ddptop.job.keys import BY_ID, EVERYWHERE, HELP, MOVING, SCREENS, Key
from ddptop.tui.settings import did_you_mean, near, shown
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

_SHOWN = {
    **{name: key for key, name in TEXTUAL_NAMES.items()},
    **{"pgup": "PgUp", "pgdn": "PgDn", "return": "enter", "del": "delete", "ins": "insert"},
}
_KNOWN = {key.value for key in Keys if not key.value.startswith("<")}


def textual_key(key: str) -> str:
    """Textual's name of a key: `question_mark` for `?`."""
    modifiers, plus, last = key.rpartition("+") if len(key) > 1 else ("", "", key)
    is_character = len(last) == 1 and last not in TEXTUAL_NAMES
    name = key_of_character(last) if is_character else TEXTUAL_NAMES.get(last, last.lower())
    return f"{modifiers}{plus}{name}"


def binding(action: Key) -> Binding:
    """An action's default binding."""
    keys = ",".join(textual_key(key) for key in action.defaults.split())
    return Binding(keys, action.action, id=action.id, show=False)


def bindings(actions: Iterable[Key], methods: Mapping[str, str] | None = None) -> list[BindingType]:
    """Bindings of a screen or widget.

    Args:
        actions: rows of the key table.
        methods: the methods by ID, for a widget whose methods have other names.
    """
    if methods is not None:
        actions = [replace(one, do=methods[one.id]) for one in actions if one.id in methods]
    return [binding(action) for action in actions]


def for_textual(chosen: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """The user's keys for `App.set_keymap`."""
    return {name: ",".join(map(textual_key, keys)) or NO_KEY for name, keys in chosen.items()}


def help_hint(*, typing: bool = False) -> str:
    """Such as `? help`; if `typing`, with a key that a text field does not take."""
    key = next((key for key in HELP.keys if not typing or len(key) > 1), None)
    return f"{key} help" if key else ""


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
    name = last.upper() if is_function_key else _SHOWN.get(last, last)
    key = "+".join([*sorted(set(modifiers)), name])
    is_known = textual_key(name) in _KNOWN or (len(last) == 1 and last.isprintable())
    if not is_known or not {"ctrl", "alt", "shift"}.issuperset(modifiers):
        return None
    return None if "shift" in modifiers and textual_key(key) not in _KNOWN else key


def check_keys(
    given: Mapping[str, object], file: str
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """The valid entries of `[keys]`, and the errors.

    Args:
        given: a key, or a list of keys, by action.
        file: the file's name, for messages.
    """
    where = f"{file}, [keys]"
    wrong: list[str] = []
    chosen: dict[str, tuple[str, ...]] = {}
    for name, value in given.items():
        if name not in BY_ID:
            remedy = did_you_mean(name, BY_ID) or "; see ddptop keys"
            wrong.append(f'{where}: "{name}" is not an action{remedy}')
            continue
        try:
            texts = msgspec.convert([value] if isinstance(value, str) else value, list[str])
            chosen[name] = tuple(dict.fromkeys(_checked(text) for text in texts if text))
        except msgspec.ValidationError:
            wrong.append(
                f'{where}: "{name}" = {shown(value)} is not a key; use "s" or ["s", "ctrl+s"]'
            )
        except ValueError as error:
            wrong.append(f'{where}: "{name}": {error}')
    while clash := _clash(chosen):
        key, ids, screen = clash
        mine = [name for name in ids if chosen.pop(name, None) is not None]
        both = " and ".join(f'"{name}"' for name in ids)
        kept = "the default is kept" if len(mine) == 1 else "the defaults are kept"
        wrong.append(
            f'{where}: {key} is bound to {both} on the "{screen}" screen, so {kept}; '
            "remap one of them"
        )
    return chosen, wrong


def _checked(text: str) -> str:
    """The key that a text means; raises ValueError if there is none, or it is reserved."""
    key = parse_key(text)
    if key is None:
        meant = near(text.lower(), {*_KNOWN, *_SHOWN})
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
        for action in (*table, *MOVING, *EVERYWHERE):
            defaults = action.defaults.split()
            keys = chosen.get(action.id, tuple(defaults))
            given |= set(keys) - set(defaults)
            for key in keys:
                owners[key].append(action.id)
        for key, ids in owners.items():
            if len(ids) > 1 and key in given:
                return key, ids, screen
    return None
