"""Command lines: what belongs to ddptop and what to the script, and how bad input is reported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ddptop.cli import SCREENS, cli
from ddptop.commands.launch import Target, hang_timeout, request_of, size_bytes, split_arguments

from ddptop_runner.base.errors import UsageError
from ddptop_runner.jobs import launch

TAKES_VALUE = {"--gpus", "--nproc", "--name", "--env"}

# --- whose argument is it ----------------------------------------------------------------------

SPLITS = {
    "options, script, its arguments": (
        ["--nproc", "2", "train.py", "--nproc", "3", "-d"],
        (["--nproc", "2"], Target("script", "train.py", ("--nproc", "3", "-d"))),
    ),
    "a value after =": (
        ["--gpus=0", "train.py"],
        (["--gpus=0"], Target("script", "train.py", ())),
    ),
    "a value that looks like an option": (
        ["--env", "-m", "train.py"],
        (["--env", "-m"], Target("script", "train.py", ())),
    ),
    "a value that looks like the end": (
        ["--name", "--", "train.py"],
        (["--name", "--"], Target("script", "train.py", ())),
    ),
    "flags take no value": (["-d", "train.py"], (["-d"], Target("script", "train.py", ()))),
    "a module and its arguments": (
        ["-d", "-m", "pkg.train", "--lr", "1", "-m", "x"],
        (["-d"], Target("module", "pkg.train", ("--lr", "1", "-m", "x"))),
    ),
    "a module may look like an option": (["-m", "-d"], ([], Target("module", "-d", ()))),
    "-- begins a command": (
        ["-d", "--", "torchrun", "--nproc", "2", "--", "x"],
        (["-d"], Target("command", "torchrun", ("--nproc", "2", "--", "x"))),
    ),
    "-- and nothing": (["--"], ([], Target("command", "", ()))),
    "-- after the script is the script's": (
        ["train.py", "--", "-x", ""],
        ([], Target("script", "train.py", ("--", "-x", ""))),
    ),
    "words are not touched": (
        ["train.py", "a b", "$HOME", "*", "", "'", "日"],
        ([], Target("script", "train.py", ("a b", "$HOME", "*", "", "'", "日"))),
    ),
    "an empty script": ([""], ([], Target("script", "", ()))),
    "standard input is no option": (["-"], ([], Target("script", "-", ()))),
    "nothing": ([], ([], None)),
    "options only": (["-d", "--nproc", "2"], (["-d", "--nproc", "2"], None)),
    "a value is missing": (["--nproc"], (["--nproc"], None)),
}


@pytest.mark.parametrize("case", SPLITS.values(), ids=list(SPLITS))
def test_from_the_target_on_everything_is_verbatim(case):
    arguments, expected = case
    assert split_arguments(arguments, TAKES_VALUE) == expected


def test_a_module_is_needed_after_m():
    with pytest.raises(UsageError, match="-m requires a module"):
        split_arguments(["-d", "-m"], TAKES_VALUE)


def test_the_real_options_that_take_a_value_are_known():
    command = cli.commands["launch"]
    context = command.make_context("launch", ["--env", "A=1", "--python", "-m", "t.py", "--env"])
    assert context.obj == Target("script", "t.py", ("--env",))
    assert context.params["env"] == ("A=1",)
    assert context.params["python"] == "-m"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("auto", (None, True)),
        ("off", (None, False)),
        ("30", (30.0, False)),
        ("0.5", (0.5, False)),
        ("1e3", (1000.0, False)),
    ],
)
def test_hang_timeout(text, meant):
    assert hang_timeout(text) == meant


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (None, None),
        ("70000", 70000),
        ("64K", 65536),
        ("1.5m", 1572864),
        ("1GiB", 2**30),
        ("2TB", 2**41),
    ],
)
def test_a_log_limit(text, size):
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "M", "5 apples", "nan", "0.1"])
def test_a_log_limit_that_is_no_size(text):
    with pytest.raises(UsageError, match="not a valid size"):
        size_bytes(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "1e999", "5m", "on", "AUTO"])
def test_a_hang_timeout_that_is_no_time(text):
    with pytest.raises(UsageError, match="not a valid time"):
        hang_timeout(text)


OPTIONS = {
    "dry_run": False,
    "gpus": "0,1",
    "force": True,
    "wait_gpus": True,
    "nproc": 2,
    "name": "n",
    "max_restarts": 5,
    "hang_timeout": "60",
    "env": ["A=1", "A=2"],
    "cwd": "/w",
    "python": "/p",
    "no_probe": False,
    "no_replica_check": False,
    "on_nan": "stop",
    "allow_shrink": True,
    "log_limit": "2M",
    "no_zygote": False,
    "launcher": None,
    "pty": False,
}


def test_every_option_arrives_in_the_request():
    request = request_of(Target("module", "pkg.train", ("--lr", "1")), OPTIONS)
    assert (request.kind, request.target, request.args) == ("module", "pkg.train", ("--lr", "1"))
    assert (request.gpus, request.nproc, request.name) == ("0,1", 2, "n")
    assert (request.force, request.wait_gpus) == (True, True)
    assert (request.max_restarts, request.hang_timeout_s) == (5, 60.0)
    assert (request.env, request.cwd, request.python) == (("A=1", "A=2"), "/w", "/p")
    assert (request.on_nan, request.allow_shrink) == ("stop", True)
    assert request.zygote is True
    assert (request.hang_auto, request.log_limit_bytes) == (False, 2 * 1024**2)
    assert request.probe is True
    silent = request_of(
        Target("script", "t.py", ()), {**OPTIONS, "no_probe": True, "no_zygote": True}
    )
    assert (silent.probe, silent.zygote) == (False, False)


# --- bad input ---------------------------------------------------------------------------------


LAUNCH = ["launch", "-d", "--nproc", "1"]
BAD = {
    # (exit status, arguments, words in the line: the problem and the remedy)
    "nodes on one machine": (2, [*LAUNCH, "--nodes", "1:2", "train.py"], ["--nodes requires"]),
    "a check of one machine": (2, [*LAUNCH, "--check", "train.py"], ["--check requires --hosts"]),
    "a command on hosts": (2, ["launch", "--hosts", "a", "--", "true"], ["--hosts", "commands"]),
    "a queue on hosts": (
        2,
        [*LAUNCH, "--hosts", "a", "--wait-gpus", "train.py"],
        ["--wait-gpus works on one machine only", "remove --wait-gpus"],
    ),
    "fewer ranks on hosts": (
        2,
        [*LAUNCH, "--hosts", "a", "--allow-shrink", "train.py"],
        ["--allow-shrink works on one machine only", "use --nodes MIN:MAX"],
    ),
    "a file of hosts that is not there": (
        2,
        [*LAUNCH, "--hostfile", "/none/such", "train.py"],
        ["--hostfile /none/such cannot be read (No such file or directory)"],
    ),
    "hosts twice": (
        2,
        [*LAUNCH, "--hosts", "a", "--hostfile", "b", "train.py"],
        ["--hosts and --hostfile cannot be used together"],
    ),
    "no time for a node": (
        2,
        [*LAUNCH, "--hosts", "a", "--node-timeout", "-1", "train.py"],
        ["--node-timeout -1 is not a valid time"],
    ),
    "a digit that is no number": (2, ["logs", "-r", "\N{SUPERSCRIPT TWO}"], ["not a valid rank"]),
    "a rank of 5,000 digits": (2, ["logs", "-r", "9" * 5000], ["not a valid rank"]),
    "a process of 5,000 digits": (3, ["watch", "9" * 5000], ["no "]),
    "a size of 400 digits": (
        2,
        [*LAUNCH, "--log-limit", "9" * 400, "train.py"],
        ["is not a valid size"],
    ),
    "no script": (2, ["launch"], ["nothing to launch", "SCRIPT"]),
    "no such script": (2, [*LAUNCH, "none.py"], ["no script none.py in /", "--cwd"]),
    "a mistyped script": (2, [*LAUNCH, "trian.py"], ["no script trian.py in /", "check the path"]),
    "a launcher without --": (
        2,
        [*LAUNCH, "env", "train.py"],
        ["no script env in /", "to run a program, use `ddptop launch -- env ...`"],
    ),
    "a shell script": (
        2,
        [*LAUNCH, "three.sh"],
        ["three.sh is not a Python script", "ddptop launch -- bash three.sh"],
    ),
    "a folder": (2, [*LAUNCH, "folder.py"], ["no script folder.py in /"]),
    "an empty script": (2, [*LAUNCH, ""], ["the script name is empty"]),
    "no such folder": (
        2,
        [*LAUNCH, "--cwd", "/none/such", "train.py"],
        ["--cwd /none/such: no such directory"],
    ),
    "no ranks": (2, ["launch", "--nproc", "0", "train.py"], ["--nproc 0", "use 1 to "]),
    "more ranks than any job has": (
        2,
        ["launch", "--nproc", "1000000000", "train.py"],
        ["--nproc 1000000000 is not a valid number of ranks"],
    ),
    "no time to wait": (2, ["wait", "x", "--timeout", "nan"], ["nan is not a number of seconds"]),
    "no grace period": (2, ["stop", "x", "--grace", "inf"], ["inf is not a number of seconds"]),
    "a grace of 300 years": (
        2,
        ["stop", "x", "--grace", "1e10"],
        ["1e10 is more than 1000000000 seconds"],
    ),
    "fewer than no ranks": (2, ["launch", "--nproc", "-3", "train.py"], ["--nproc -3"]),
    "ranks in words": (
        2,
        ["launch", "--nproc", "two", "train.py"],
        ["'two'", "ddptop launch --help"],
    ),
    "no number of ranks": (
        2,
        ["launch", "train.py"],
        ["this job has no GPUs (libnvidia-ml.so.1 not found: ", "pass --nproc N"],
    ),
    "bytes that are no text": (
        2,
        [*LAUNCH, "train.py", "a\udcff"],
        [r"b'a\xff'", "not valid UTF-8"],
    ),
    "negative restarts": (2, [*LAUNCH, "--max-restarts", "-1", "train.py"], ["--max-restarts -1"]),
    "no GPUs given": (2, [*LAUNCH, "--gpus", "", "train.py"], ["--gpus is empty", "0-3"]),
    "malformed GPUs": (2, [*LAUNCH, "--gpus", "0-", "train.py"], ["'0-'", "0-3"]),
    "GPUs backwards": (2, [*LAUNCH, "--gpus", "3-1", "train.py"], ["reversed", "use 1-3"]),
    "a GPU twice": (2, [*LAUNCH, "--gpus", "0,0", "train.py"], ["lists 0 twice"]),
    "a GPU where there is none": (
        2,
        [*LAUNCH, "--gpus", "0", "train.py"],
        ["no GPUs found", "--nproc N"],
    ),
    "idle GPUs": (2, [*LAUNCH, "--gpus", "auto:1", "train.py"], ["no GPU", "remove --gpus"]),
    "both ways with busy GPUs": (
        2,
        [*LAUNCH, "--force", "--wait-gpus", "train.py"],
        ["--force and --wait-gpus", "use one of them"],
    ),
    "nothing to wait for": (
        2,
        [*LAUNCH, "--wait-gpus", "--nproc", "1", "train.py"],
        ["this job uses no GPU", "remove --wait-gpus"],
    ),
    "acting on NaN without a probe": (
        2,
        [*LAUNCH, "--on-nan", "stop", "--no-probe", "train.py"],
        ["--on-nan stop requires the probe", "remove one"],
    ),
    "too small a log limit": (
        2,
        [*LAUNCH, "--log-limit", "63K", "train.py"],
        ["--log-limit 63K", "64K or more"],
    ),
    "no log limit": (
        2,
        [*LAUNCH, "--log-limit", "0", "train.py"],
        ["--log-limit 0", "not a valid size"],
    ),
    "no hang timeout": (2, [*LAUNCH, "--hang-timeout", "0", "train.py"], ["not a valid time"]),
    "a hang timeout without a probe": (
        2,
        [*LAUNCH, "--hang-timeout", "9", "--no-probe", "train.py"],
        ["requires the probe", "remove one"],
    ),
    "a name for no session": (2, [*LAUNCH, "--name", "a.b", "train.py"], ["'a.b'", "letters"]),
    "an empty name": (2, [*LAUNCH, "--name", "", "train.py"], ["the job name is empty"]),
    "a variable without =": (2, [*LAUNCH, "--env", "KEY", "train.py"], ["KEY", "NAME=VALUE"]),
    "a variable without a name": (2, [*LAUNCH, "--env", "=1", "train.py"], ["NAME=VALUE"]),
    "no such interpreter": (
        2,
        [*LAUNCH, "--python", "/none/python", "train.py"],
        ["--python /none/python", "no such interpreter"],
    ),
    "no interpreter": (
        2,
        [*LAUNCH, "--python", "/bin/false", "train.py"],
        ["/bin/false is not a working Python interpreter (exit status 1)", "--python PATH"],
    ),
    "an unknown option": (2, ["launch", "--frobnicate", "train.py"], ["--frobnicate", "--help"]),
    "an unknown verb": (2, ["frobnicate"], ["frobnicate", "--help"]),
    "a missing argument": (2, ["stop"], ["JOB", "--help"]),
    "no job to stop": (3, ["stop", "none"], ["no job named 'none'", "ddptop ls"]),
    "no job to wait for": (3, ["wait", "none"], ["no job named 'none'"]),
    "no job to remove": (3, ["rm", "none"], ["no job named 'none'"]),
    "no job at all": (2, ["status"], ["no active jobs", "ddptop ls --all"]),
    "no rank": (2, ["logs", "x", "-r", "one"], ["-r one", "all"]),
    "no terminal for the overview": (2, [], ["needs a terminal", "ddptop ls"]),
    "no such training to watch": (
        3,
        ["watch", "none"],
        ["no training run named 'none'", "ddptop ps"],
    ),
    "no screen to be read-only": (2, ["--readonly", "ls"], ["--readonly before ls"]),
}


@pytest.mark.torch
@pytest.mark.parametrize("case", BAD.values(), ids=list(BAD))
def test_bad_input_gets_one_line_and_leaves_nothing(bad_input, case):
    status, arguments, words = case
    line = bad_input(status, *arguments)
    for word in words:
        assert word in line


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


def test_a_python_with_an_old_torch(bad_input, tmp_path):
    old = python_with_torch(tmp_path, "2.5.1+cu124")
    line = bad_input(2, *LAUNCH, "--python", old, "train.py")
    assert f"torch 2.5.1+cu124 in {old} is too old; install torch 2.6 or newer" in line


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


@pytest.mark.torch
@pytest.mark.parametrize("own", [True, False])
def test_working_folder_appears_in_the_plan(ddptop_home, tmp_path, own):
    (tmp_path / "train.py").touch()
    request = launch.LaunchRequest(
        kind="script", target=str(tmp_path / "train.py"), nproc=1, work_in_run_folder=own
    )
    assert launch.prepare(request, os.environ).work_in_run_folder is own


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
