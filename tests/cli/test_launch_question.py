"""A script whose ranks would start ranks: `launch` asks on a terminal, and refuses without one."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from ddptop.commands.launch import ask
from tests.e2e.terminal import Terminal

from ddptop_runner.base.paths import run_folder
from ddptop_runner.devices import hardware
from ddptop_runner.devices.report import empty_report
from ddptop_runner.devices.words import LIBRARY_MISSING
from ddptop_runner.job.registry import read_job
from ddptop_runner.launch.advice import Advice, QuestionError, Remedy
from ddptop_runner.launch.gpus import choice
from ddptop_runner.launch.request import LaunchRequest
from ddptop_runner.model.words import LIVE_STATES

QUESTION = QuestionError(
    Advice("train.py spawns", Remedy("none", effect="runs it as one process"), asks=True),
    LaunchRequest(kind="script", target="train.py"),
)

SCRIPT = """
import os
if os.environ.get("SPAWNS"):
    import torch.multiprocessing as mp
    mp.spawn(print)
print("ran in run", os.environ.get("TORCHELASTIC_RUN_ID"))
"""
"""Its source looks as if it may start ranks; without the variable, it needs no torch."""


@pytest.fixture
def script(ddptop_home, tmp_path: Path, monkeypatch) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "train.py"


@pytest.mark.torch
def test_without_a_terminal_it_is_refused_with_the_right_command(bad_input, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    line = bad_input(2, "launch", "-d", "train.py", "--lr", "a b")
    assert "train.py starts its own ranks: mp.spawn (line 5); each rank would start more" in line
    assert "`ddptop launch --launcher none train.py --lr 'a b'` runs it as one process" in line
    assert "pass --nproc N to start N ranks anyway" in line


@pytest.mark.torch
def test_who_says_how_many_is_told_only(ddptop_cli, script):
    answer = ddptop_cli("launch", "--nproc", "2", "--dry-run", "train.py")
    assert answer.returncode == 0
    (note,) = [line for line in answer.stdout.splitlines() if line.startswith("note:")]
    assert "each of the 2 ranks would start more" in note and "--launcher none train.py" in note
    assert "ranks:         2" in answer.stdout


@pytest.mark.torch
def test_a_machine_without_nvidia_hardware_needs_no_number_of_ranks(
    ddptop_cli, ddptop_home, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hardware, "exists", lambda: False)
    monkeypatch.setattr(choice, "sample_once", lambda **_: empty_report(LIBRARY_MISSING))
    (tmp_path / "train.py").write_text("import torch")
    answer = ddptop_cli("launch", "--dry-run", "train.py")
    (note,) = [line for line in answer.stdout.splitlines() if "no NVIDIA" in line]
    assert "starting 2 CPU ranks; pass --nproc N to start N" in note
    assert "ranks:         2" in answer.stdout


@pytest.mark.torch
@pytest.mark.tmux
def test_user_chooses_one_process(script, wait_until, ddptop_cli):
    terminal = Terminal.of_ddptop("launch", "-d", "train.py")
    terminal.read_until(b"1 to 3: ")
    assert b"train.py starts its own ranks: mp.spawn (line 5)" in terminal.output
    assert b"1  ddptop launch --launcher none train.py: runs it as one process" in terminal.output
    terminal.type(b"4\n")
    terminal.read_until(b"4\r\nchoose 1 to 3: ")
    terminal.type(b"1\n")
    assert terminal.exit_status(60) == 0
    folder = run_folder("train")
    wait_until(lambda: read_job(folder).state not in LIVE_STATES, what="the job's end")
    view = read_job(folder)
    assert (view.state, view.spec.kind, view.spec.nproc) == ("finished", "command", 0)
    (log,) = folder.path.glob("logs/attempt-0/*.log")
    assert log.read_text() == "ran in run None\n"
    assert ddptop_cli("restart", "train").returncode == 0, "the same command, without a question"
    wait_until(lambda: read_job(folder).state == "finished", what="the second attempt's end")
    (log,) = folder.path.glob("logs/attempt-1/*.log")
    assert log.read_text() == "ran in run None\n"


@pytest.mark.torch
@pytest.mark.parametrize("answer", [b"3\n", b"\x04"])
def test_cancelling_starts_nothing(script, ddptop_home, answer):
    terminal = Terminal.of_ddptop("launch", "train.py")
    terminal.read_until(b"1 to 3: ")
    terminal.type(answer)
    terminal.read_until(b"not launched")
    assert terminal.exit_status() == 1
    assert os.listdir(ddptop_home) == []


@pytest.mark.parametrize(
    ("typed", "launcher"),
    [("1\n", "none"), (" 2 \n", None), ("x\n\n1\n", "none")],
)
def test_an_answer_chooses(monkeypatch, capsys, typed, launcher):
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    chosen = ask(QUESTION)
    assert chosen is not None and (chosen.launcher, chosen.as_asked) == (launcher, True)
    assert capsys.readouterr().out == "", "a question is no data"


@pytest.mark.parametrize("typed", ["", "3\n", "q\n", "no\n", "0\n4\n\u0661\n", "-1\nx\ny\n1\n"])
def test_no_answer_chooses_nothing(monkeypatch, typed):
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert ask(QUESTION) is None
