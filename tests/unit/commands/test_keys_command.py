"""`ddptop keys`, and what doctor reports about the settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ddptop.commands import doctor, keys
from ddptop.job.keys import TABLES


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user's settings would be."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "ddptop").mkdir()
    return tmp_path / "ddptop" / "config.toml"


def test_every_action_of_every_screen_is_listed(
    settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.write_text('[keys]\n"job.stop" = ["X", "ctrl+x"]\n"job.kill" = ""\n')
    assert keys.run_keys(True) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["problems"] == [] and report["file"] == str(settings)
    listed = {(line["screen"], line["id"]) for line in report["keys"]}
    assert listed == {(place, one.id) for place, table in TABLES.items() for one in table}
    stop = next(line for line in report["keys"] if line["id"] == "job.stop")
    assert (stop["keys"], stop["default_keys"]) == (["X", "ctrl+x"], ["s"])
    assert stop["help"].startswith("send SIGTERM")
    assert keys.run_keys(False) == 0
    text = capsys.readouterr().out
    assert all(f"\n{place}\n" in f"\n{text}" for place in TABLES)
    assert "X ctrl+x" in text and "(changed)" in text and "  none" in text


def test_what_is_wrong_is_told_by_both(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.settings_check() is None
    settings.write_text('[keys]\n"job.stopp" = "s"\n')
    problem = 'config.toml, [keys]: "job.stopp" is not an action; did you mean "job.stop"?'
    assert keys.run_keys(False) == 1
    assert f"!  {problem}" in capsys.readouterr().out
    check = doctor.settings_check()
    assert check is not None and check.status == "warning"
    assert problem in check.detail
    assert check.remedy is not None and str(settings) in check.remedy
    settings.write_text('[keys]\n"job.stop" = "X"\n')
    check = doctor.settings_check()
    assert check is not None and check.status == "ok" and check.remedy is None
