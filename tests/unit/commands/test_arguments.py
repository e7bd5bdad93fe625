"""Command lines: what belongs to ddptop and what to the script, and how bad input is reported."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from ddptop.cli import SCREENS, cli
from ddptop.commands.launch import Target, hang_timeout, request_of, size_bytes, split_arguments
from tests.support.tables import table

from ddptop_runner.base.errors import UsageError
from ddptop_runner.launch.request import LaunchRequest

TAKES_VALUE = {"--gpus", "--nproc", "--name", "--env"}

# --- whose argument is it ----------------------------------------------------------------------


@pytest.mark.parametrize("case", table(__file__, "splits"), ids=lambda case: case[0])
def test_from_the_target_on_everything_is_verbatim(case):
    _, line, options, kind, name, arguments = case
    target = Target(kind, name, tuple(shlex.split(arguments))) if kind else None
    assert split_arguments(shlex.split(line), TAKES_VALUE) == (shlex.split(options), target)


def test_a_module_is_needed_after_m():
    with pytest.raises(UsageError, match="-m requires a module"):
        split_arguments(["-d", "-m"], TAKES_VALUE)


def test_the_real_options_that_take_a_value_are_known():
    command = cli.commands["launch"]
    context = command.make_context("launch", ["--env", "A=1", "--python", "-m", "t.py", "--env"])
    assert context.obj == Target("script", "t.py", ("--env",))
    assert context.params["env"] == ("A=1",)
    assert context.params["python"] == "-m"


def test_times_and_sizes():
    times = {
        "auto": (None, True),
        "off": (None, False),
        "0.5": (0.5, False),
        "1e3": (1000.0, False),
    }
    assert {text: hang_timeout(text) for text in times} == times
    sizes = {None: None, "70000": 70000, "1.5m": 1572864, "1GiB": 2**30, "2TB": 2**41}
    assert {text: size_bytes(text) for text in sizes} == sizes


@pytest.mark.parametrize("text", ["", "0", "-1", "M", "5 apples", "nan", "0.1"])
def test_a_log_limit_that_is_no_size(text):
    with pytest.raises(UsageError, match="not a valid size"):
        size_bytes(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "1e999", "5m", "on", "AUTO"])
def test_a_hang_timeout_that_is_no_time(text):
    with pytest.raises(UsageError, match="not a valid time"):
        hang_timeout(text)


def test_every_option_arrives_in_the_request():
    line = (
        "--dry-run --gpus 0,1 --force --wait-gpus --nproc 2 --name n --max-restarts 5 "
        "--hang-timeout 60 --env A=1 --env A=2 --cwd /w --python /p --on-nan stop --allow-shrink "
        "--log-limit 2M --no-zygote --no-probe --no-replica-check --pty "
        "--memory-snapshot -m pkg.train --lr 1"
    )
    context = cli.commands["launch"].make_context("launch", line.split())
    assert request_of(context.obj, context.params) == LaunchRequest(
        kind="module", target="pkg.train", args=("--lr", "1"), is_dry=True, gpus="0,1", force=True,
        wait_gpus=True, nproc=2, name="n", max_restarts=5, hang_timeout_s=60.0, hang_auto=False,
        env=("A=1", "A=2"), cwd="/w", python="/p", on_nan="stop", allow_shrink=True,
        log_limit_bytes=2 * 1024**2, zygote=False, probe=False, replica_check=False, pty=True,
        memory_snapshot=True,
    )  # fmt: skip


# --- bad input ---------------------------------------------------------------------------------


LAUNCH = ["launch", "-d", "--nproc", "1"]
REFUSED = [
    *table(__file__, "refused"),
    ["a rank of 5,000 digits", 2, f"logs -r {'9' * 5000}", ["not a valid rank"]],
    ["a process of 5,000 digits", 3, f"watch {'9' * 5000}", ["no "]],
    ["a size of 400 digits", 2, f"LAUNCH --log-limit {'9' * 400} train.py", ["not a valid size"]],
    ["bytes that are no text", 2, "LAUNCH train.py a\udcff", [r"b'a\xff'", "not valid UTF-8"]],
]


@pytest.mark.torch
@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[0])
def test_bad_input_gets_one_line_and_leaves_nothing(bad_input, case):
    _, status, line, words = case
    arguments = shlex.split(line.replace("LAUNCH", shlex.join(LAUNCH), 1))
    shown = bad_input(status, *arguments)
    assert [word for word in words if word not in shown] == [], shown


def test_a_refusal_as_a_script_sees_it(ddptop_home):
    command = [sys.executable, "-m", "ddptop", "status", "none"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (3, "")
    (line,) = answer.stderr.splitlines()
    assert line.startswith("ddptop: no job named 'none'")
    assert os.listdir(ddptop_home) == []


def python(path: Path, text: str) -> str:
    path.write_text(f'#!/bin/sh\n{text} exec {sys.executable} -S "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_a_python_without_torch(bad_input, tmp_path):
    line = bad_input(2, *LAUNCH, "--python", python(tmp_path / "python", ""), "train.py")
    assert f"torch is not installed in {tmp_path}/python" in line
    assert "--python PATH" in line and "ddptop[torch]" in line


def python_with_torch(folder: Path, version: str) -> str:
    (folder / "site" / "torch").mkdir(parents=True)
    (folder / "site" / "torch" / "__init__.py").touch()
    (folder / "site" / "torch" / "version.py").write_text(f"__version__ = '{version}'\n")
    return python(folder / "python", f"PYTHONPATH={folder}/site")


def test_a_torch_that_is_newer_than_the_newest_tested_is_noted(ddptop_cli, tmp_path):
    new = python_with_torch(tmp_path, "2.99.0")
    (tmp_path / "train.py").touch()
    answer = ddptop_cli(*LAUNCH, "--dry-run", "--python", new, str(tmp_path / "train.py"))
    assert answer.returncode == 0, answer.stderr
    (note,) = [
        line for line in answer.stdout.splitlines() if "not tested with torch 2.99.0" in line
    ]
    assert note.startswith("note:")


@pytest.mark.torch
def test_a_folder_that_was_deleted(bad_input, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    line = bad_input(2, *LAUNCH, str(tmp_path / "train.py"))
    assert "the working directory was deleted" in line and "--cwd DIR" in line


def test_a_name_in_use(bad_input, ddptop_home):
    (ddptop_home / "runs" / "taken").mkdir(parents=True)
    line = bad_input(2, *LAUNCH, "--name", "taken", "train.py")
    assert "the name 'taken' is in use" in line and "ddptop rm taken" in line


@pytest.mark.torch
@pytest.mark.parametrize("what", ["home", "runs"])
def test_a_state_folder_that_cannot_be_written(bad_input, ddptop_home, monkeypatch, what):
    if what == "home":  # root can write anywhere except into a file
        (ddptop_home / "file").touch()
        monkeypatch.setenv("DDPTOP_HOME", str(ddptop_home / "file"))
    else:
        (ddptop_home / "runs").touch()
    line = bad_input(2, *LAUNCH, "train.py")
    assert str(ddptop_home) in line and "DDPTOP_HOME" in line


def test_a_state_folder_that_is_a_file(bad_input, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DDPTOP_HOME", str(tmp_path / "file"))
    assert f"the state folder {tmp_path}/file is not a directory" in bad_input(2, "ls")


def test_a_dry_run_makes_nothing(ddptop_cli, ddptop_home, tmp_path, monkeypatch):
    (tmp_path / "train.py").touch()
    monkeypatch.setenv("SECRET", "s3cret")
    monkeypatch.chdir(tmp_path)
    options = ["--env", "GIVEN=v4lue", "--dry-run", "--name", "dry", "--max-restarts", "7"]
    answer = ddptop_cli(*LAUNCH, *options, "train.py", "--lr", "a b")
    assert answer.returncode == 0, answer.stderr
    for words in ("dry", "-u train.py --lr 'a b'", str(tmp_path), "up to 7", "GIVEN", "SECRET"):
        assert words in answer.stdout
    assert "s3cret" not in answer.stdout and "v4lue" not in answer.stdout
    assert os.listdir(ddptop_home) == []


def test_help_and_version_are_data(ddptop_cli):
    shown = ddptop_cli("launch", "--help")
    assert shown.returncode == 0 and "--max-restarts" in shown.stdout and shown.stderr == ""
    version = ddptop_cli("--version")
    assert version.returncode == 0 and version.stdout.startswith("ddptop, version ")


@pytest.mark.parametrize("verb", SCREENS)
def test_what_is_said_of_a_screen_can_be_said_behind_its_verb(verb: str) -> None:
    options = {name for option in cli.commands[verb].params for name in option.opts}
    assert {"--readonly", "--ascii"} <= options, "the hint of `ddptop --ascii VERB` names them"
