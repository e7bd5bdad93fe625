"""The help: first what is under the cursor; every term of the interface is explained."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import ddptop
import pytest
from ddptop import draw
from ddptop.job.figures import devices, jobs, ranks
from ddptop.job.help import explain_alert, sections, texts
from ddptop.job.keys import BY_ID, EVERYWHERE, MOVING, SCREENS
from ddptop.style import Column, plain
from ddptop.tui import widgets
from ddptop.tui.app import DdptopApp
from ddptop.tui.screens.base import MonitorScreen
from ddptop.tui.screens.help import HelpScreen, help_lines
from ddptop.tui.widgets.lines import LinesView
from tests.support import fake_gpus
from tests.support.driving import running, shown, until
from textual.containers import VerticalScroll

import ddptop_runner
from ddptop_runner.judge.balance.imbalance import STRAGGLER
from ddptop_runner.model import events
from ddptop_runner.model.words import JobState, Phase, RankState

MakeApp = Callable[..., DdptopApp]

TERMS = [entry for words in sections().values() for entry in words]
MEANINGS = dict(TERMS)
PHASES: dict[Phase, str] = {
    "start": "starting",
    "steps": "step",
    "compile": "compile",
    "evaluation": "eval",
    "checkpoint": "ckpt",
    "data": "no batch",
    "collective": "in a collective",
    "end": "exiting",
}
"""The word shown for each phase."""

NO_ALERT = {"event"}
"""IDs built from an event, whose message is complete."""


def modules(package: object) -> Iterator[object]:
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):  # type: ignore[attr-defined]
        yield importlib.import_module(found.name)


def alert_ids() -> set[str]:
    """Every ID that the engine gives an alert: the first argument of Finding, or Alert's id."""
    found: set[str] = set()
    for file in Path(ddptop_runner.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if called in ("Finding", "finding") and node.args:
                found |= _text(node.args[0])
            for keyword in node.keywords:
                if called in ("Alert", "Finding") and keyword.arg == "id":
                    found |= _text(keyword.value)
    return found | {STRAGGLER, "xid", "other-process"}  # not written in the call


def _text(node: ast.expr) -> set[str]:
    """The ID's text; for a composed one, the part before the first placeholder."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
        return {str(node.values[0].value).rstrip("-")}
    return set()


@pytest.mark.parametrize("state", sorted({*get_args(JobState), *get_args(RankState)}))
def test_every_state_is_explained(state: str) -> None:
    assert MEANINGS.get(state), state


def test_every_phase_is_explained() -> None:
    assert set(PHASES) == set(get_args(Phase))
    assert [phase for phase, word in PHASES.items() if word not in MEANINGS] == []


def test_every_alert_is_explained() -> None:
    ids = alert_ids() - NO_ALERT
    assert {"hung", "straggler", "disk-full", "throttled"} <= ids
    ids = {"loss-nan", "loss-inf", *(ids - {"loss"})}
    assert sorted(found for found in ids if not explain_alert(found)) == []
    assert sorted(texts().alerts.keys() - ids) == [], "an alert that does not exist"
    assert (
        explain_alert("xid-79-12") == explain_alert("xid") != explain_alert("nothing of the kind")
    )


def test_every_event_is_explained() -> None:
    kinds = [kind for kind in vars(events).values() if hasattr(kind, "TYPE")]
    assert len(kinds) > 30
    assert {kind.TYPE for kind in kinds} - {"state"} <= texts().events.keys()


def test_every_placeholder_of_a_text_is_an_action() -> None:
    written = (Path(ddptop.__file__).parent / "job" / "help.toml").read_text()
    asked = set(re.findall(r"\{(\w+\.\w+)\}", written))
    assert "job.stacks" in asked and asked <= BY_ID.keys()


def test_every_column_is_explained() -> None:
    titles: set[str] = set()
    for module in (*modules(draw), *modules(widgets)):
        for value in vars(module).values():
            if isinstance(value, tuple) and value and isinstance(value[0], Column):
                titles |= {column.title.strip() for column in value}
    titles |= {one.title.strip() for one in (*devices.FIGURES, *jobs.FIGURES, *ranks.FIGURES)}
    assert {"state", "loss", "util"} <= titles
    words = {word for word in titles if re.search(r"[a-zA-Z#]", word)}
    assert sorted(word for word in words if word not in MEANINGS and word != "state") == []


def test_no_word_is_explained_twice() -> None:
    assert [word for word, n in Counter(word for word, _ in TERMS).items() if n > 1] == []


@pytest.mark.parametrize("cells", [52, 76])
def test_help_starts_with_this_screens_keys_then_the_item_under_the_cursor(cells: int) -> None:
    told = [("rank 3: quiet", "no step for longer than usual " * 8)]
    lines = [plain(line) for line in help_lines(cells, told, "a job")]
    assert all(len(line) <= cells for line in lines)
    heads = [line.split("──")[1].strip() for line in lines if line.startswith("── ")]
    first = [
        "keys on this screen: a job",
        "under the cursor",
        "keys on every screen",
        "mouse and panels",
    ]
    assert heads[: len(first)] == first
    assert heads[-len(sections()) :] == [f"terms: {heading}" for heading in sections()]
    assert len(heads) == 4 + len(SCREENS) - 1 + len(sections())
    text = " ".join(" ".join(lines).split())
    for action in (*MOVING, *EVERYWHERE, *(a for table in SCREENS.values() for a in table)):
        assert action.keys[0] in text
        assert action.name in text and action.help.split()[0] in text
    for word, meaning in TERMS:
        assert " ".join(word.split()) in text and meaning.split()[-1] in text


@pytest.mark.parametrize("key", ["question_mark", "f1"])
async def test_the_key_opens_and_closes_it(frozen: Path, make_app: MakeApp, key: str) -> None:
    fake_gpus.eight_gpu_ranks(frozen)
    async with running(make_app("llama-ft"), (100, 30)) as (app, pilot):
        below = app.screen
        assert isinstance(below, MonitorScreen)
        below.explain = lambda: [("[red]rank 0[/]", "it is well")]  # type: ignore[method-assign]
        await pilot.press(key)
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        await pilot.pause()
        assert "keys on this screen: a job" in shown(app)
        lines = app.screen.query_one(LinesView).build(72, 0)
        assert " [red]rank 0[/]" in [plain(line) for line in lines]
        scroll = app.screen.query_one(VerticalScroll)
        for step, expected in (("j", 3), ("ctrl+d", None), ("k", None), ("g", 0)):
            before = scroll.scroll_y
            await pilot.press(step)
            await pilot.pause()
            assert scroll.scroll_y != before
            assert expected is None or scroll.scroll_y == expected
        await pilot.press("G")
        await pilot.pause()
        assert scroll.is_vertical_scroll_end
        await pilot.press(key)
        await until(pilot, lambda: app.screen is below)
