"""Pictures of the screens, at three sizes.

After an intended change: `pytest tests/screens/test_snapshots.py --snapshot-update`, then look at
each changed picture.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support import fake_foreign, fake_gpus, fake_home
from tests.support.driving import look, settle, until
from tests.support.pictures import Picture, by_size
from textual.pilot import Pilot


def with_open(opening: str = "", *keys: str) -> Callable[[Pilot[None]], object]:
    """Everything is read; then press a key that opens something, and type there."""

    async def prepare(pilot: Pilot[None]) -> None:
        await settle(pilot)
        if opening:
            before = pilot.app.screen
            await pilot.press(opening)
            await until(pilot, lambda: pilot.app.screen is not before)
            await until(pilot, lambda: all(one.is_finished for one in pilot.app.workers))
            await look(pilot, 2)
            await pilot.press(*keys)
            await pilot.pause()
        for field in pilot.app.screen.query("Input"):
            field.cursor_blink = False

    return prepare


@by_size
def test_the_launch_form(
    eight_gpus: Path,
    picture: Picture,
    size: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "fit.py").touch()
    monkeypatch.chdir(tmp_path)
    keys = ("n", *"fit.py", "enter", *"--lr 1")
    picture(size, with_open(*keys))


@by_size
def test_confirm(frozen: Path, picture: Picture, size: object) -> None:
    fake_gpus.eight_gpu_ranks(frozen)
    picture(size, with_open("K"), "llama-ft")


@by_size
def test_stacks(frozen: Path, picture: Picture, size: object) -> None:
    fake_home.failed_job(frozen)
    picture(size, with_open("t"), "vit-base")


@by_size
def test_a_foreign_job(held_gpus: Path, picture: Picture, size: object) -> None:
    picture(size, with_open(), watched=fake_foreign.with_findings().foreign)


def test_the_findings_of_a_foreign_job(held_gpus: Path, picture: Picture) -> None:
    view = fake_foreign.with_findings()
    picture((120, 40), with_open("f"), watched=view.foreign)
