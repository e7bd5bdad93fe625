"""The key map: what a user can configure, and the messages for what is not possible."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import ddptop
import pytest
from ddptop.job import keys
from ddptop.tui.actions import ALL, HELP, MOVING, STOP, key_text
from ddptop.tui.app import DdptopApp
from ddptop.tui.keymap import RESERVED, KeyMap, check_keys, every_action, parse_key, places
from ddptop.tui.preferences import preferences_of
from ddptop.tui.screens.confirm import ConfirmScreen
from ddptop.tui.screens.help import HelpScreen
from ddptop.tui.screens.overview import OverviewScreen
from ddptop.tui.settings import parse
from tests.support import fake_gpus, fake_home
from tests.support.driving import keys_shown, offered, settle, shown, until

MakeApp = Callable[..., DdptopApp]

SHARED: dict[str, str] = {
    "enter": "what is under the cursor opens, whichever table has it",
    "home": "of the chart on screens whose chart has the focus, else of the table",
    "end": "of the chart on screens whose chart has the focus, else of the table",
    **dict.fromkeys(
        ("up", "down", "j", "k"),
        "of the screen's list where what has the focus does not move up and down itself",
    ),
}
"""Keys used by both a screen and the focused widget, and why they do not clash."""

SEVERAL: dict[str, str] = {}
"""Actions with other keys on some screens, and why."""


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("s", "s"),
        ("S", "S"),
        ("?", "question_mark"),
        (" ", "space"),
        ("space", "space"),
        ("+", "plus"),
        ("ctrl+S", "ctrl+s"),
        ("Ctrl+s", "ctrl+s"),
        ("shift+s", "S"),
        ("shift+left", "shift+left"),
        ("F5", "f5"),
        ("esc", "escape"),
        ("PgUp", "pageup"),
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
        ({"job.stop": 3}, '"job.stop" = 3 is not a key; use "s" or ["s", "ctrl+s"]'),
        ({"job.stop": "ctrl+i"}, '"job.stop": terminals send "ctrl+i" as tab; choose another key'),
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
    keys, wrong = check_keys(given, "config.toml")
    assert wrong == [f"config.toml, [keys]: {problem}"]
    assert keys == KeyMap()


def test_two_actions_may_change_places() -> None:
    keys, wrong = check_keys({"job.stop": "K", "job.kill": "s"}, "config.toml")
    assert wrong == []
    assert keys.chosen == {"job.stop": ("K",), "job.kill": ("s",)}


def test_a_clash_of_two_choices_gives_both_up_and_keeps_the_rest() -> None:
    given = {"job.stop": "y", "job.kill": "y", "job.findings": "Y"}
    keys, wrong = check_keys(given, "config.toml")
    assert len(wrong) == 1 and "the defaults are kept" in wrong[0]
    assert keys.chosen == {"job.findings": ("Y",)}


def test_a_key_can_be_taken_away() -> None:
    keys, wrong = check_keys({"job.stop": ""}, "config.toml")
    assert wrong == []
    assert keys.keys(STOP) == () and keys.text(STOP) == ""


def test_no_default_clashes_with_another() -> None:
    for place, actions in places():
        by_key: defaultdict[str, set[str]] = defaultdict(set)
        for action in actions:
            for key in action.keys.split(","):
                by_key[key].add(action.id)
        clashes = {key: ids for key, ids in by_key.items() if len(ids) > 1 and key not in SHARED}
        assert clashes == {}, place


def test_ids_are_unique_on_a_screen() -> None:
    for place, actions in places():
        ids = [action.id for action in actions]
        assert len(ids) == len(set(ids)), place


def test_an_action_has_the_same_keys_everywhere() -> None:
    keys: defaultdict[str, set[str]] = defaultdict(set)
    for table in ALL.values():
        for action in table:
            keys[action.id].add(action.keys)
    assert {name: found for name, found in keys.items() if len(found) > 1}.keys() == SEVERAL.keys()


def test_every_default_key_could_be_written_in_the_settings() -> None:
    for action in every_action().values():
        for key in action.keys.split(","):
            written = KeyMap().text(action).split("  ")
            assert parse_key(key) == key or any(parse_key(one) == key for one in written), key


def test_the_keys_that_move_are_those_of_vim_too() -> None:
    keys = {key for action in MOVING for key in action.keys.split(",")}
    assert {"j", "k", "g", "G", "ctrl+d", "ctrl+u", "up", "down", "home", "end"} <= keys


async def test_the_persons_keys_work_and_are_shown(eight_gpus: Path, make_app: MakeApp) -> None:
    fake_gpus.eight_gpu_ranks(eight_gpus)
    fake_home.two_cpu_ranks(eight_gpus)
    given = {"keys": {"job.stop": "X", "app.help": "f9", "move.down": "ctrl+n", "job.kill": ""}}
    preferences = preferences_of(parse(given, "config.toml"))
    assert preferences.problems == ()
    app = make_app(preferences=preferences)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        assert "X Stop" in keys_shown(app) and "F9 Help" in keys_shown(app)
        assert "Kill" not in keys_shown(app)
        assert "Kill" in offered(app)
        await pilot.press("s", "K", "question_mark")
        await pilot.pause()
        overview = app.screen
        assert isinstance(overview, OverviewScreen)
        job = overview.jobs.cursor_key
        await pilot.press("down")
        assert overview.jobs.cursor_key == job
        await pilot.press("ctrl+n")
        assert overview.jobs.cursor_key != job
        await pilot.press("X")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("n", "f9")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        assert " X " in shown(app)


async def test_a_wrong_key_map_does_not_keep_it_from_starting(
    frozen: Path, make_app: MakeApp
) -> None:
    preferences = preferences_of(parse({"keys": {"job.stopp": "s", "job.kill": 3}}, "config.toml"))
    app = make_app(preferences=preferences)
    async with app.run_test() as pilot:
        await settle(pilot)
        (note,) = app._notifications
        assert 'did you mean "job.stop"?' in note.message
        assert "1 more; run ddptop keys to list them" in note.message
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        assert KeyMap().text(HELP) in shown(app)


FIXED = {
    "enter": "of a dialog's chosen button",
    "esc": "of a dialog, or of a field in which a person types",
    "n": "of a question",
    "tab": "reserved",
    "→": "a trend",
}
"""Keys of dialogs and fields, which belong to no action and cannot be remapped."""


def _named_keys(text: str) -> set[str]:
    """Keys that a text names directly rather than by a placeholder."""
    known = {key_text(key) for one in every_action().values() for key in one.keys.split(",")}
    patterns = (
        r"\b[Pp]ress(?:ing|es)? (?!a key)(\S+?)(?=[;,.)]? |[;,.)]?$)",
        r"(?:^|[;(,] ?|\bor )(\S+): \w",
        r"(?:^|[;(,] ?|\band |\bor )(\S+) (?:closes|clears|cancels|applies|opens|shows|hides)\b",
        r"(?:^|[;(] ?)(\S+),? and \S+,? (?:scroll|move|pan|zoom)",
    )
    return {name for one in patterns for name in re.findall(one, text) if name in known}


def _texts() -> Iterator[tuple[Path, int, str]]:
    """Every string of the screens, except docstrings and key tables."""
    package = Path(ddptop.__file__).parent
    for room in ("view", "draw", "charts", "logs", "tui"):
        for path in (package / room).rglob("*.py"):
            if path.parent.name == "actions" or path.name in ("keymap.py", "keys.py"):
                continue
            tree = ast.parse(path.read_text())
            notes = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
            for node in ast.walk(tree):
                if isinstance(node, ast.JoinedStr):
                    parts = (p.value if isinstance(p, ast.Constant) else "…" for p in node.values)
                    yield path, node.lineno, "".join(map(str, parts))
                elif isinstance(node, ast.Constant) and id(node) not in notes:
                    yield path, node.lineno, str(node.value)
                elif isinstance(node, ast.Tuple) and len(node.elts) == 2:
                    first, style = node.elts
                    if isinstance(style, ast.Constant) and style.value == "busy":
                        shown = first.value if isinstance(first, ast.Constant) else None
                        yield path, node.lineno, f"press {shown}"


def test_texts_name_keys_as_the_key_map_has_them() -> None:
    assert _named_keys("press f to list; enter: ranks (t: stacks)") == {"f", "enter", "t"}
    found = {
        f"{path.name}:{number}: {text}"
        for path, number, text in _texts()
        if _named_keys(text) - FIXED.keys()
    }
    assert found == set()


def test_texts_name_the_default_keys_until_others_are_chosen() -> None:
    named = KeyMap().named()
    assert {action: named[action] for action in keys.DEFAULTS} == keys.DEFAULTS
    asked = {found for _, _, text in _texts() for found in re.findall(r"\{(\w+\.\w+)\}", text)}
    assert asked and asked <= keys.DEFAULTS.keys()


async def test_messages_name_the_users_keys(eight_gpus: Path, make_app: MakeApp) -> None:
    fake_home.two_cpu_ranks(eight_gpus)
    given = {"keys": {"job.launch": "f7", "view.story": "Z", "job.findings": "", "view.back": "B"}}
    app = make_app(preferences=preferences_of(parse(given, "config.toml")))
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        assert keys.with_keys("{job.launch} {view.story} {job.stop}") == "F7 Z s"
        assert keys.key("job.findings") == "ctrl+p Findings"
        await pilot.press("slash", *"nothing", "enter")
        await until(pilot, lambda: "press B to show all jobs" in shown(app))
