"""`ddptop launch -- COMMAND`: what would run, and what is completed."""

from __future__ import annotations

import sys

import pytest
from click.shell_completion import ShellComplete
from ddptop.__main__ import main
from ddptop.cli import cli


def test_a_dry_run_of_a_command(bad_input, tmp_path, monkeypatch, capfd):
    arguments = ["--", sys.executable, "train.py", "--x", "a b"]
    argv = f"{sys.executable} train.py --x 'a b'"
    monkeypatch.setattr(sys, "argv", ["ddptop", "launch", "--dry-run", *arguments])
    assert main() == 0
    shown = dict(line.split(":", 1) for line in capfd.readouterr().out.splitlines())
    said = {name: value.strip() for name, value in shown.items()}
    assert (said["argv"], said["program"], said["job"]) == (argv, sys.executable, "train")
    assert said["ranks"] == "set by the command" and said["output"] == "its log"
    assert said["sets"] == "DDPTOP_JOB_ID"


@pytest.mark.parametrize(
    ("words", "incomplete", "found"),
    [(["--"], "tr", None), (["--", "x"], "--l", None), ([], "--wait", "--wait-gpus")],
)
def test_options_and_files_are_completed(words, incomplete, found):
    completer = ShellComplete(cli, {}, "ddptop", "_DDPTOP_COMPLETE")
    items = completer.get_completions(["launch", *words], incomplete)
    assert [item.value for item in items] == [found or incomplete]
    assert items[0].type == ("plain" if found else "file")


@pytest.mark.parametrize("note", ["two\nlines", "x" * 501])
def test_a_note_is_one_line(note: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ddptop", "launch", "--note", note, "train.py"])
        assert main() == 2
    assert "--note is not valid; use one line of up to 500 characters" in capsys.readouterr().err
