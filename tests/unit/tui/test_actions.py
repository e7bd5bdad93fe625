"""One table of actions: unique, explained, and implemented."""

from __future__ import annotations

import importlib
from collections import Counter

import pytest
from ddptop.job.help import GLOSSARY
from ddptop.style import plain
from ddptop.tui.actions import ALL, CHART_ACTIONS, JOB, OVERVIEW, PLACES, Action, key_text
from ddptop.tui.app import DdptopApp
from ddptop.tui.screens.base import CHART_KEYS
from ddptop.tui.screens.help import help_lines

MODULES = {
    "OverviewScreen": "overview",
    "JobScreen": "job",
    "RankScreen": "rank",
    "DevicesScreen": "devices",
    "LogsScreen": "logs",
    "StoryScreen": "story",
    "CompareScreen": "compare",
    "ReplayScreen": "replay",
}
SCREENS = [
    pytest.param(
        ALL[place],
        getattr(importlib.import_module(f"ddptop.tui.screens.{MODULES[name]}"), name),
        id=name,
    )
    for name, place in PLACES.items()
]


@pytest.mark.parametrize(("actions", "screen"), SCREENS)
def test_ids_and_keys_are_unique(actions: tuple[Action, ...], screen: type) -> None:
    ids = Counter(action.id for action in actions)
    keys = Counter(key for action in actions for key in action.keys.split(","))
    assert [i for i, n in (ids + keys).items() if n > 1] == []


@pytest.mark.parametrize(("actions", "screen"), SCREENS)
def test_every_action_has_a_method_and_a_help_line(
    actions: tuple[Action, ...], screen: type
) -> None:
    for action in actions:
        name = action.action.partition("(")[0]
        owner, name = (DdptopApp, name[4:]) if name.startswith("app.") else (screen, name)
        assert callable(getattr(owner, f"action_{name}")), action.id
        assert action.help
        assert action.binding().tooltip == action.help


@pytest.mark.parametrize(("actions", "screen"), SCREENS)
def test_every_action_of_the_table_is_bound(actions: tuple[Action, ...], screen: type) -> None:
    bound = {binding.id for binding in screen.BINDINGS}
    assert {action.id for action in actions} <= bound


def test_every_key_of_a_chart_does_something() -> None:
    names = {action.action.split("'")[1] for action in CHART_ACTIONS}
    assert names == set(CHART_KEYS)


def test_suspending_is_not_offered() -> None:
    keys = [key for actions in ALL.values() for a in actions for key in a.keys.split(",")]
    assert "ctrl+z" not in keys


def test_the_help_names_every_key_and_every_word() -> None:
    text = "\n".join(plain(line) for line in help_lines(72))
    for action in (*OVERVIEW, *JOB):
        assert "  ".join(map(key_text, action.keys.split(","))) in text
    for word, _ in GLOSSARY:
        assert word in text
    assert all(len(line) <= 72 for line in text.splitlines())
