"""The very first start shows where to find help; later ones do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ddptop.tui.app import DdptopApp
from ddptop.tui.settings import Settings, parse, recall, remember
from tests.support.driving import running, said, until
from tests.support.terminal import Terminal

MakeApp = Callable[..., DdptopApp]


async def test_a_hint_once(frozen: Path, make_app: MakeApp) -> None:
    for expected in (True, False):
        async with running(
            make_app(settings=Settings(), memory=recall(), remember=remember), (80, 24)
        ) as (app, _):
            assert ("? help · ctrl+p commands" in said(app)) is expected


async def test_it_names_the_users_keys(frozen: Path, make_app: MakeApp) -> None:
    given = parse({"keys": {"app.help": "f9", "app.palette": "ctrl+o"}}, "config.toml")
    async with running(make_app(settings=given, remember=remember), (80, 24)) as (app, pilot):
        assert "F9 help · ctrl+o commands" in said(app)
        await pilot.press("ctrl+o")
        await until(pilot, lambda: type(app.screen).__name__ == "Palette")


def test_the_settings_are_the_programs(
    terminal: Callable[..., Terminal],
    wait_until: Callable[..., object],
    tmp_path: Path,
    ddptop_home: Path,
) -> None:
    (tmp_path / "ddptop").mkdir()
    (tmp_path / "ddptop" / "config.toml").write_text(
        "[interface]\nmouse = false\nascii = true\n[keys]\n'app.leave' = 'Q'\n"
    )
    one = terminal(env={"XDG_CONFIG_HOME": str(tmp_path), "LC_ALL": "C.UTF-8"})
    wait_until(lambda: one.draws(b"Help"), what="the keys")
    one.type("qQ")
    wait_until(one.ended, what="its end")
    assert one.process.returncode == 0
    assert one.drawn.isascii() and b"\x1b[?1000h" not in one.drawn
    assert recall().greeted
