"""What a job's screen looks like: cards, a table, a map, a failure.

After a change that is meant: `pytest tests/tui/test_pictures_job.py --snapshot-update`, then look
at each changed picture.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ddptop.tui.app import DdptopApp
from tests.tui import fake_gpus, fake_home, fake_ranks
from tests.tui.driving import look, settle
from textual.pilot import Pilot

MakeApp = Callable[..., DdptopApp]
Compare = Callable[..., bool]
SIZES = [(80, 24), (120, 40), (200, 60)]
LOOKS = [(size, theme) for theme in ("ddptop", "ddptop-light") for size in SIZES]


def name_of(value: object) -> str:
    return f"{value[0]}x{value[1]}" if isinstance(value, tuple) else str(value)


def after(theme: str, *keys: str) -> Callable[[Pilot[None]], object]:
    """Everything read, in that theme, and keys pressed."""

    async def prepare(pilot: Pilot[None]) -> None:
        pilot.app.theme = theme
        await settle(pilot)
        for key in keys:
            await pilot.press(key)
        await look(pilot, 2)
        await pilot.pause()

    return prepare


@pytest.mark.parametrize(("size", "theme"), LOOKS, ids=name_of)
def test_eight_gpus_with_a_straggler(
    frozen: Path, make_app: MakeApp, snap_compare: Compare, size: object, theme: str
) -> None:
    fake_gpus.eight_gpu_ranks(frozen)
    assert snap_compare(make_app("llama-ft"), terminal_size=size, run_before=after(theme, "]"))


@pytest.mark.parametrize("size", [*SIZES, (60, 18)], ids=name_of)
def test_two_cpu_ranks(
    frozen: Path, make_app: MakeApp, snap_compare: Compare, size: object
) -> None:
    fake_home.two_cpu_ranks(frozen)
    assert snap_compare(make_app("mlp-cpu"), terminal_size=size, run_before=after("ddptop"))


@pytest.mark.parametrize(("size", "theme"), LOOKS, ids=name_of)
def test_a_failed_job(
    frozen: Path, make_app: MakeApp, snap_compare: Compare, size: object, theme: str
) -> None:
    fake_home.failed_job(frozen)
    assert snap_compare(make_app("vit-base"), terminal_size=size, run_before=after(theme))


@pytest.mark.parametrize(("size", "theme"), LOOKS, ids=name_of)
def test_a_thousand_ranks(
    frozen: Path, make_app: MakeApp, snap_compare: Compare, size: object, theme: str
) -> None:
    fake_ranks.many(frozen, 1024)
    app = make_app("llama-ft")
    assert snap_compare(app, terminal_size=size, run_before=after(theme, "down", "right"))


def test_sixteen_ranks_are_a_table(frozen: Path, make_app: MakeApp, snap_compare: Compare) -> None:
    fake_ranks.many(frozen, 16)
    app = make_app("llama-ft")
    assert snap_compare(app, terminal_size=(120, 40), run_before=after("ddptop", "S"))


@pytest.mark.parametrize("key", ["2", "4"], ids=["devices", "log"])
def test_one_of_its_pages(frozen: Path, make_app: MakeApp, snap_compare: Compare, key: str) -> None:
    fake_gpus.eight_gpu_ranks(frozen)
    app = make_app("llama-ft")
    assert snap_compare(app, terminal_size=(80, 24), run_before=after("ddptop", key))
