"""The key table is consistent, and what a user can change about it."""

from __future__ import annotations

import importlib
from collections import defaultdict

import pytest
from ddptop.job import keys
from ddptop.job.keys import BY_ID, CHART, EVERYWHERE, MOVING, SCREENS, STOP
from ddptop.tui.app import DdptopApp
from ddptop.tui.keymap import RESERVED, parse_key
from ddptop.tui.screens.base import MonitorScreen
from ddptop.tui.settings import parse
from ddptop.tui.widgets.charts import ChartWidget


def check_keys(given: dict[str, object]) -> tuple[object, tuple[str, ...]]:
    """The keys of `[keys]`, and the errors."""
    settings = parse({"keys": given}, "config.toml")
    return settings.keys, settings.problems


MODULES = ("overview", "job", "rank", "devices", "logs", "story", "compare", "replay")

SHARED = {"enter", "home", "end", "↑", "↓", "k", "j"}
"""Keys of a screen that the focused widget may use instead."""


def screens() -> dict[str, type[MonitorScreen]]:
    """Every screen by its title in the key table."""
    for name in MODULES:
        importlib.import_module(f"ddptop.tui.screens.{name}")
    found: list[type[MonitorScreen]] = [MonitorScreen]
    for screen in found:  # which grows meanwhile
        found += screen.__subclasses__()
    return {
        screen.KEYS: screen
        for screen in found
        if hasattr(screen, "KEYS") and screen.__module__.startswith("ddptop.")
    }


def test_every_screen_has_a_table_whose_actions_are_bound_to_methods() -> None:
    assert screens().keys() == SCREENS.keys()
    for title, screen in screens().items():
        bound = {binding.id for binding in screen.BINDINGS}
        names = [action.name for action in SCREENS[title]]
        assert len(names) == len(set(names)), title
        for action in SCREENS[title]:
            name = action.action.partition("(")[0]
            owner, name = (DdptopApp, name[4:]) if name.startswith("app.") else (screen, name)
            assert callable(getattr(owner, f"action_{name}")), action.id
            assert action.help and action.id in bound


def test_every_key_of_a_chart_does_something() -> None:
    assert all(hasattr(ChartWidget, action.action.split("'")[1]) for action in CHART)


def test_no_default_clashes_with_another() -> None:
    for title, table in SCREENS.items():
        by_key: defaultdict[str, list[str]] = defaultdict(list)
        for action in (*table, *MOVING, *EVERYWHERE):
            for key in action.keys:
                by_key[key].append(action.id)
        clashes = {key: ids for key, ids in by_key.items() if len(ids) > 1 and key not in SHARED}
        assert clashes == {} and "ctrl+z" not in by_key, title


def test_an_action_has_the_same_keys_everywhere_which_the_settings_could_name() -> None:
    for table in keys.TABLES.values():
        for action in table:
            assert action.defaults == BY_ID[action.id].defaults, action.id
            assert [parse_key(key) for key in action.keys if len(key) > 1 or key.isascii()] == [
                key for key in action.keys if len(key) > 1 or key.isascii()
            ]


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("s", "s"),
        ("S", "S"),
        ("?", "?"),
        (" ", "space"),
        ("space", "space"),
        ("+", "+"),
        ("ctrl+S", "ctrl+s"),
        ("Ctrl+s", "ctrl+s"),
        ("shift+s", "S"),
        ("shift+left", "shift+←"),
        ("F5", "F5"),
        ("escape", "esc"),
        ("PgUp", "PgUp"),
        ("alt+x", "alt+x"),
        ("é", "é"),
        ("strg+s", None),
        ("entr", None),
        ("shift+1", None),
        ("\x1b", None),
        ("ctrl+", None),
        ("", None),
    ],
)
def test_how_a_key_may_be_written(written: str, key: str | None) -> None:
    assert parse_key(written) == key


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"job.stopp": "s"}, '"job.stopp" is not an action; did you mean "job.stop"?'),
        ({"zzz": "s"}, '"zzz" is not an action; see ddptop keys'),
        ({"job.stop": "entr"}, '"job.stop": "entr" is not a key; did you mean "enter"?'),
        ({"job.stop": "§§§"}, '"job.stop": "§§§" is not a key; use "s", "S", "ctrl+s", or "f5"'),
        ({"job.stop": 3}, '"job.stop" is not a key; use "s" or ["s", "ctrl+s"]'),
        (
            {"job.stop": "ctrl+i"},
            '"job.stop": "ctrl+i" cannot be remapped: terminals send it as tab',
        ),
        (
            {"job.stop": "ctrl+c"},
            f'"job.stop": "ctrl+c" cannot be remapped: {RESERVED["ctrl+c"]}',
        ),
        (
            {"job.stop": "K"},
            'K is bound to "job.stop" and "job.kill" on the "all jobs" screen, so '
            "the default is kept; remap one of them",
        ),
        (
            {"job.stop": "j"},
            'j is bound to "job.stop" and "move.down" on the "all jobs" screen, so '
            "the default is kept; remap one of them",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_named_and_left_out(given: dict[str, object], problem: str) -> None:
    chosen, wrong = check_keys(given)
    assert wrong == (f"config.toml, [keys]: {problem}",)
    assert chosen == {}


def test_two_actions_may_change_places() -> None:
    chosen, wrong = check_keys({"job.stop": "K", "job.kill": "s"})
    assert wrong == ()
    assert chosen == {"job.stop": ("K",), "job.kill": ("s",)}


def test_a_clash_of_two_choices_gives_both_up_and_keeps_the_rest() -> None:
    given = {"job.stop": "y", "job.kill": "y", "job.findings": "Y"}
    chosen, wrong = check_keys(given)
    assert len(wrong) == 1 and "the defaults are kept" in wrong[0]
    assert chosen == {"job.findings": ("Y",)}


def test_a_key_can_be_taken_away() -> None:
    chosen, wrong = check_keys({"job.stop": ""})
    assert wrong == ()
    keys.use(chosen)
    assert STOP.keys == () and keys.key("job.stop") == "ctrl+p Stop"


def test_the_keys_that_move_are_those_of_vim_too() -> None:
    found = {key for action in MOVING for key in action.keys}
    assert {"j", "k", "g", "G", "ctrl+d", "ctrl+u", "↑", "↓", "home", "end"} <= found
