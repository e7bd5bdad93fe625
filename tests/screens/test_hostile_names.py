"""Names and texts with markup or control characters are shown literally or made harmless."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from ddptop.job.series import Machine
from ddptop.tui.app import DdptopApp
from rich.cells import cell_len
from tests.support import fake_foreign, fake_gpus, fake_home
from tests.support.driving import look, running
from tests.support.fake_home import GIB, ago

from ddptop_runner.model.snapshot import Alert, Cause

MakeApp = Callable[..., DdptopApp]

MARKUP = "[red]x[/] [/] [link=http://a]b [@click=app.quit]c"
STEERING = "\x1b[2J\x1b]0;title\x07\x9b31m\r\n\t\u202eabc\u200b\udcff日本e\u0301"
NAME = MARKUP + STEERING
SCREENS = ((), ("v",), ("n",), ("question_mark",), ("f",), *(("enter", key) for key in "fletip?"))
"""Keys typed from the overview on."""


def steers(text: str) -> bool:
    """Whether a terminal would do anything other than draw it."""
    return not text.isprintable() or any(0xD800 <= ord(letter) < 0xE000 for letter in text)


async def test_of_a_job_of_ours(eight_gpus: Path, make_app: MakeApp) -> None:
    folder = fake_home.failed_job(eight_gpus)
    text = NAME.replace("\udcff", "")  # JSON cannot contain half of a surrogate pair
    fake_home.change(
        folder,
        cause=Cause(kind="exception", rank=1, exit_code=1, summary=text),
        alerts=[Alert(id="quiet", severity="warning", message=text, since=ago(60), ranks=[1])],
    )
    spec = msgspec.json.decode(folder.spec_file.read_bytes())
    spec.update(target=f"{text}.py", args=[text], cwd=f"/{text}")
    folder.spec_file.write_bytes(msgspec.json.encode(spec))
    fake_home.write_log(folder, 2, 1, f"{text}\n")
    fake_gpus.eight_gpu_ranks(eight_gpus)
    await walk(make_app(), "vit-base", text)


async def test_of_a_job_of_somebody_else(
    held_gpus: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = NAME
    job = fake_foreign.foreign_job(f"{name}.py", 2, user=name, command=f"python {name}")
    ranks, gpus = fake_foreign.ranks_of(job)
    view = fake_foreign.view_of(job, ranks, gpus, output=f"/home/{name}")
    fake_foreign.FakeWorld.views.append(view)
    machine = Machine(name, 10.0, 8, GIB, 4 * GIB)
    monkeypatch.setattr("tests.support.frozen.MACHINE", machine)
    await walk(make_app(), None, name)


async def walk(app: DdptopApp, job: str | None, name: str) -> None:
    """Open every screen of the job; no cell may contain control characters."""
    drawn = ""
    async with running(app, (140, 45)) as (app, pilot):
        app.notify(name, markup=False, timeout=60)
        overview = app.screen
        if job is not None:
            overview.jobs.move_to(job)  # type: ignore[attr-defined]
        for keys in SCREENS:
            await pilot.press(*keys)
            await look(pilot)
            for strip in app.screen._compositor.render_strips():
                assert not steers(strip.text), (keys, strip.text)
                assert cell_len(strip.text) == 140
                drawn += strip.text
            while app.screen is not overview:
                app.pop_screen()
                await pilot.pause()
    assert "[red]x[/]" in drawn and "[@click=app.quit]c" in drawn
