"""`ddptop launch -- COMMAND`: what is refused, and what would run."""

from __future__ import annotations

import sys

import pytest
from click.shell_completion import ShellComplete
from ddptop.__main__ import main
from ddptop.cli import cli

LAUNCH = ["launch", "-d", "--nproc", "1"]
BAD = {
    # (exit status, arguments, words in the line: the problem and the remedy)
    "ranks of a command": (
        2,
        [*LAUNCH, "--", "torchrun", "x"],
        ["--nproc does not apply to commands", "in the command itself"],
    ),
    "no command": (2, ["launch", "--"], ["-- requires a command", "launch -- torchrun"]),
    "no such program": (2, ["launch", "--", "nosuch-x"], ["no program nosuch-x on PATH"]),
    "a late option": (2, ["launch", "--", "--gpus", "0", "x"], ["--gpus on PATH", "before --"]),
    "no program there": (
        2,
        ["launch", "--", "./nosuch"],
        ["./nosuch is not an ex", "path"],
    ),
    "a folder as a program": (2, ["launch", "--", "./folder.py"], ["./folder.py is not an ex"]),
    "a script as a program": (
        2,
        ["launch", "--", "./train.py"],
        ["./train.py is not an executable file", "-- python ./train.py"],
    ),
    "a script as a program's name": (
        2,
        ["launch", "--", "train.py"],
        ["no program train.py on PATH", "-- python train.py"],
    ),
    "an interpreter for a command": (
        2,
        ["launch", "--python", "/p", "--", "true"],
        ["--python does not apply to commands", "-- /p SCRIPT"],
    ),
    "a smaller command": (
        2,
        ["launch", "--allow-shrink", "--", "true"],
        ["--allow-shrink does not apply to commands", "SCRIPT"],
    ),
    "a launcher by name": (
        2,
        ["launch", "--launcher", "mpi", "train.py"],
        ["--launcher is not supported", "`ddptop launch -- accelerate launch train.py`"],
    ),
    "a terminal for ranks": (2, [*LAUNCH, "--pty", "train.py"], ["--pty works only with commands"]),
}


@pytest.mark.torch
@pytest.mark.parametrize("case", BAD.values(), ids=list(BAD))
def test_what_a_command_cannot_have(bad_input, case):
    status, arguments, words = case
    line = bad_input(status, *arguments)
    for word in words:
        assert word in line


def test_a_dry_run_of_a_command(bad_input, tmp_path, monkeypatch, capfd):
    arguments = ["--", sys.executable, "train.py", "--x", "a b"]
    argv = f"{sys.executable} train.py --x 'a b'"
    monkeypatch.setattr(sys, "argv", ["ddptop", "launch", "--dry-run", *arguments])
    assert main() == 0
    shown = dict(line.split(":", 1) for line in capfd.readouterr().out.splitlines())
    said = {name: value.strip() for name, value in shown.items()}
    assert (said["argv"], said["program"], said["job"]) == (argv, sys.executable, "train")
    assert said["ranks"] == "set by the command" and said["output"] == "its log"
    assert "RANK" not in said["each process"] and said["sets"] == "DDPTOP_JOB_ID"


@pytest.mark.parametrize(
    ("words", "incomplete", "found"),
    [
        (["--"], "acc", "accelerate"),
        (["--gpus", "0", "--"], "torch", "torchrun"),
        (["--", "accelerate"], "l", "launch"),
        (["--"], "tr", None),
        (["--", "x"], "--l", None),
        ([], "--wait", "--wait-gpus"),
    ],
)
def test_launchers_are_completed(words, incomplete, found):
    completer = ShellComplete(cli, {}, "ddptop", "_DDPTOP_COMPLETE")
    items = completer.get_completions(["launch", *words], incomplete)
    assert [item.value for item in items] == [found or incomplete]
    assert items[0].type == ("plain" if found else "file")


@pytest.mark.parametrize("note", ["two\nlines", "x" * 501])
def test_a_note_is_one_line(note: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [*["ddptop", *LAUNCH], "--note", note, "train.py"])
        assert main() == 2
    assert "--note is not valid; use one line of up to 500 characters" in capsys.readouterr().err
