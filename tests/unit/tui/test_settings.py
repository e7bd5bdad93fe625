"""What a user can write in config.toml, and the messages for invalid values."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddptop.tui.settings import Interface, Memory, Settings, parse, read_settings, recall, remember

FILE = "config.toml"
ALL_OF_IT = """
[interface]
theme = "nord"
ascii = true
refresh_s = 2
mouse = false

[keys]
"job.stop" = "X"
"""


def test_without_a_file_everything_is_as_it_is(tmp_path: Path) -> None:
    assert read_settings(tmp_path / "none.toml") == Settings()


def test_everything_that_can_be_set(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(ALL_OF_IT)
    settings = read_settings(tmp_path / FILE)
    assert settings.problems == ()
    assert settings.interface == Interface("nord", True, 2.0, False)
    assert settings.keys == {"job.stop": ("X",)}


@pytest.mark.parametrize("text", ["[keys", "keys = \xff"])
def test_invalid_toml_is_reported_and_kept(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_bytes(text.encode("latin-1"))
    settings = read_settings(tmp_path / FILE)
    assert settings.interface == Interface()
    (problem,) = settings.problems
    assert str(tmp_path / FILE) in problem and "ix or remove it" in problem


def test_a_file_that_is_nested_too_deeply_is_one_problem(tmp_path):
    (tmp_path / FILE).write_text("x = " + "[" * 100_000)
    (problem,) = read_settings(tmp_path / FILE).problems
    assert str(tmp_path / FILE) in problem


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"them": "nord"}, "unknown field `them`"),
        ({"refresh_s": 0.01}, "`float` >= 0.2 - at `$.refresh_s`"),
        ({"mouse": "no"}, "Expected `bool`, got `str` - at `$.mouse`"),
        ({"ascii": "yes"}, "at `$.ascii`"),
    ],
)
def test_a_wrong_value_is_named_and_the_defaults_are_taken(
    given: dict[str, object], problem: str
) -> None:
    settings = parse({"interface": given}, FILE)
    (found,) = settings.problems
    assert found.startswith("config.toml, [interface]: ") and problem in found
    assert settings.interface == Interface()


def test_what_rings_the_bell_is_read_from_the_table_of_messages() -> None:
    assert not parse({"notify": {"bell": False}}, FILE).notify.bell
    settings = parse({"notify": {"bell": 3}}, FILE)
    assert settings.notify.bell
    assert "[notify]" in settings.problems[0]


def test_a_section_that_is_misspelled() -> None:
    settings = parse({"key": {}, "runs": {}, "somebody-elses": {}, "keys": 3}, FILE)
    assert settings.problems == (
        'config.toml: unknown section [key]; did you mean "keys"?',
        "config.toml: keys is not a section; write [keys]",
    )


def test_all_that_is_wrong_is_gathered() -> None:
    settings = parse(
        {
            "interface": {"theme": "nordd"},
            "keys": {"job.stopp": "s"},
        },
        FILE,
    )
    assert settings.problems == (
        'config.toml, [keys]: "job.stopp" is not an action; did you mean "job.stop"?',
        'config.toml, [interface]: theme = "nordd" is not a known theme; did you mean "nord"?',
    )


class TestMemory:
    def test_it_is_kept(self, ddptop_home: Path) -> None:
        assert recall() == Memory()
        remember(Memory(theme="nord"))
        assert recall() == Memory(theme="nord")
        assert (ddptop_home / "interface.json").stat().st_mode & 0o077 == 0

    @pytest.mark.parametrize("content", [b"", b"[]", b'{"theme": 3}', b"\xff"])
    def test_what_cannot_be_read_is_none(self, ddptop_home: Path, content: bytes) -> None:
        (ddptop_home / "interface.json").write_bytes(content)
        assert recall() == Memory()

    def test_a_home_that_cannot_be_written_does_no_harm(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DDPTOP_HOME", "/proc/nowhere")
        remember(Memory(theme="nord"))
        assert recall() == Memory()

    def test_the_theme_of_the_settings_beats_the_choice_in_the_palette(self) -> None:
        chosen = Memory(theme="dracula")
        for asked, begins in (("nord", "nord"), (None, "dracula")):
            settings = parse({"interface": {"theme": asked} if asked else {}}, FILE)
            assert settings.theme(chosen) == begins

    def test_a_remembered_theme_that_is_gone_is_no_problem(self) -> None:
        assert Settings().theme(Memory(theme="was mine")) == "ddptop"
