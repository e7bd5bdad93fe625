"""The settings file is that of the program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ddptop.tui.app import DdptopApp
from tests.support.terminal import Terminal

MakeApp = Callable[..., DdptopApp]


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
