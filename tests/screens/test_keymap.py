"""A user's keys work, are shown, and are named by every text."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import ddptop
from ddptop.job import keys
from ddptop.job.keys import BY_ID
from ddptop.tui.app import DdptopApp
from ddptop.tui.screens.dialogs import ConfirmScreen
from ddptop.tui.screens.help import HelpScreen
from ddptop.tui.screens.overview import OverviewScreen
from ddptop.tui.settings import parse
from tests.support import fake_gpus, fake_home
from tests.support.driving import keys_shown, offered, running, shown, until

MakeApp = Callable[..., DdptopApp]


async def test_the_persons_keys_work_and_are_shown(eight_gpus: Path, make_app: MakeApp) -> None:
    fake_gpus.eight_gpu_ranks(eight_gpus)
    fake_home.two_cpu_ranks(eight_gpus)
    given = {"keys": {"job.stop": "X", "app.help": "f9", "move.down": "ctrl+n", "job.kill": ""}}
    settings = parse(given, "config.toml")
    assert settings.problems == ()
    async with running(make_app(settings=settings)) as (app, pilot):
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
    async with running(
        make_app(settings=parse({"keys": {"job.stopp": "s", "job.kill": 3}}, "config.toml")),
        (80, 24),
    ) as (app, pilot):
        (note,) = app._notifications
        assert 'did you mean "job.stop"?' in note.message
        assert "1 more; run ddptop keys to list them" in note.message
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        assert keys.HELP.text in shown(app)


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
    known = {key for one in BY_ID.values() for key in one.keys}
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
    for room in ("job", "draw", "charts", "logs", "tui"):
        for path in (package / room).rglob("*.py"):
            if path.name in ("keymap.py", "keys.py"):
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


def test_texts_name_known_actions() -> None:
    asked = {found for _, _, text in _texts() for found in re.findall(r"\{(\w+\.\w+)\}", text)}
    assert asked and asked <= BY_ID.keys()


async def test_messages_name_the_users_keys(eight_gpus: Path, make_app: MakeApp) -> None:
    fake_home.two_cpu_ranks(eight_gpus)
    given = {"keys": {"job.launch": "f7", "view.story": "Z", "job.findings": "", "view.back": "B"}}
    async with running(make_app(settings=parse(given, "config.toml"))) as (app, pilot):
        assert keys.with_keys("{job.launch} {view.story} {job.stop}") == "F7 Z s"
        assert keys.key("job.findings") == "ctrl+p Findings"
        await pilot.press("slash", *"nothing", "enter")
        await until(pilot, lambda: "press B to show all jobs" in shown(app))
