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
from tests.support.pictures import Compare, MakeApp, by_size
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
    make_app: MakeApp,
    snap_compare: Compare,
    size: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "fit.py").touch()
    monkeypatch.chdir(tmp_path)
    app = make_app()
    keys = ("n", *"fit.py", "enter", *"--lr 1")
    assert snap_compare(app, terminal_size=size, run_before=with_open(*keys))


@by_size
def test_confirm(frozen: Path, make_app: MakeApp, snap_compare: Compare, size: object) -> None:
    fake_gpus.eight_gpu_ranks(frozen)
    assert snap_compare(make_app("llama-ft"), terminal_size=size, run_before=with_open("K"))


@by_size
def test_stacks(frozen: Path, make_app: MakeApp, snap_compare: Compare, size: object) -> None:
    fake_home.failed_job(frozen)
    assert snap_compare(make_app("vit-base"), terminal_size=size, run_before=with_open("t"))


@by_size
def test_a_foreign_job(
    held_gpus: Path, make_app: MakeApp, snap_compare: Compare, size: object
) -> None:
    app = make_app(watched=fake_foreign.with_findings().foreign)
    assert snap_compare(app, terminal_size=size, run_before=with_open())


def test_a_foreign_job_in_good_health(
    held_gpus: Path, make_app: MakeApp, snap_compare: Compare
) -> None:
    app = make_app(watched=fake_foreign.healthy().foreign)
    assert snap_compare(app, terminal_size=(120, 40), run_before=with_open())


def test_a_foreign_job_that_is_gone(
    held_gpus: Path, make_app: MakeApp, snap_compare: Compare
) -> None:
    async def prepare(pilot: Pilot[None]) -> None:
        await settle(pilot)
        fake_foreign.FakeWorld.views.clear()
        fake_foreign.gone()
        await settle(pilot)

    app = make_app(watched=fake_foreign.healthy().foreign, readonly=True)
    assert snap_compare(app, terminal_size=(80, 24), run_before=prepare)


def test_the_findings_of_a_foreign_job(
    held_gpus: Path, make_app: MakeApp, snap_compare: Compare
) -> None:
    view = fake_foreign.with_findings()
    app = make_app(watched=view.foreign)
    assert snap_compare(app, terminal_size=(120, 40), run_before=with_open("f"))
