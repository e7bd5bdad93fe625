"""The form's command line, and what it means to the command line's own parser."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ddptop.cli import cli
from ddptop.tui import launching
from ddptop.tui.launching import LaunchForm
from ddptop.tui.screens.launch import LaunchScreen
from ddptop.tui.snapshot import Devices
from ddptop.tui.widgets.gpu_choice import GpuChoice
from textual.app import App

from ddptop_runner.errors import DdptopError
from ddptop_runner.model import GpuSample

FORMS = [
    LaunchForm(script="train.py", gpus=(0, 1, 2, 3)),
    LaunchForm(script="train.py", gpus=(), nproc="2"),
    LaunchForm(script="train.py", gpus=None, nproc="4", name="run-1", max_restarts="0"),
    LaunchForm(
        script="my dir/träin [1].py",
        arguments="--lr 3e-4 --title 'a \"b\" c' -d --name x",
        gpus=(0, 2, 3),
        name="x_1",
    ),
    LaunchForm(script="-odd.py", arguments="-- --gpus 1", gpus=(7,)),
]


def parsed(argv: list[str]) -> tuple[dict[str, Any], Any]:
    """Options and target as `ddptop launch` understands them."""
    command = cli.commands["launch"]
    context = command.make_context("launch", argv)
    return context.params, context.obj


@pytest.mark.parametrize("form", FORMS)
def test_the_line_shown_is_the_line_that_is_run(form: LaunchForm) -> None:
    line = launching.command_line(form)
    assert shlex.split(line) == ["ddptop", *launching.launch_argv(form)]


@pytest.mark.parametrize("form", FORMS)
def test_the_command_line_understands_what_the_form_said(form: LaunchForm) -> None:
    options, target = parsed(launching.launch_argv(form)[1:])
    assert target.kind == "script"
    assert target.name in (form.script, f"./{form.script}")
    assert list(target.args) == shlex.split(form.arguments)
    assert options["name"] == (form.name or None)
    assert options["nproc"] == (int(form.nproc) if form.nproc else None)
    assert options["max_restarts"] == int(form.max_restarts or 3)
    assert not options["detach"]
    if form.gpus is None:
        assert options["gpus"] is None
    elif not form.gpus:
        assert options["gpus"] == "none"
    else:
        from ddptop_runner.gpu_select import parse_gpus

        assert parse_gpus(options["gpus"]).indices == form.gpus


@pytest.mark.parametrize(
    ("form", "wrong"),
    [
        (LaunchForm(), "which script?"),
        (LaunchForm(script="a.py"), "how many ranks? (no GPU is chosen)"),
        (LaunchForm(script="a.py", gpus=()), "how many ranks? (no GPU is chosen)"),
        (LaunchForm(script="a.py", gpus=(0,), nproc="two"), "ranks: two is not a number"),
        (LaunchForm(script="a.py", gpus=(0,), arguments="'"), "arguments: a quote is not closed"),
        (LaunchForm(script="a.py", gpus=(0,)), None),
    ],
)
def test_problems_are_named_before_launching(form: LaunchForm, wrong: str | None) -> None:
    assert launching.problem(form) == wrong


def test_an_unfinished_form_shows_what_is_missing() -> None:
    assert launching.command_line(LaunchForm(gpus=(0, 1))) == "ddptop launch --gpus 0-1 SCRIPT"
    assert launching.command_line(LaunchForm(arguments="'")) == "ddptop launch ..."


def test_a_home_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    form = LaunchForm(script="~/train.py", nproc="1")
    assert launching.launch_argv(form)[-1] == "/home/ada/train.py"


class TestRunning:
    def test_launching_runs_the_command_line_detached(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[list[str]] = []

        def run(argv: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
            seen.append(argv)
            assert options["stdin"] is subprocess.DEVNULL
            return subprocess.CompletedProcess(argv, 0, "note\ntrain-2\n", "")

        monkeypatch.setattr(subprocess, "run", run)
        assert launching.launch(LaunchForm(script="train.py", nproc="2")) == "train-2"
        assert seen[0][1:] == ["-m", "ddptop", "launch", "-d", "--nproc", "2", "train.py"]

    def test_a_refusal_is_the_command_s_own_line(self, ddptop_home: Path) -> None:
        with pytest.raises(DdptopError) as refused:
            launching.launch(LaunchForm(script="not-there.py", nproc="2"))
        assert "there is no script not-there.py" in str(refused.value)
        assert "ddptop:" not in str(refused.value)


class TestCompletion:
    @pytest.fixture
    def files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        for name in ("train.py", "train_big.py", "notes.txt", ".hidden.py"):
            (tmp_path / name).touch()
        (tmp_path / "trainers").mkdir()
        (tmp_path / "data").mkdir()
        monkeypatch.chdir(tmp_path)
        return tmp_path

    @pytest.mark.parametrize(
        ("typed", "completed"),
        [
            ("tr", "train.py"),
            ("train_", "train_big.py"),
            ("traine", "trainers/"),
            ("da", "data/"),
            ("notes", None),
            ("train.py", None),
            ("", None),
            ("./t", "./train.py"),
            (".h", ".hidden.py"),
            ("nowhere/t", None),
        ],
    )
    def test_scripts_before_folders(self, files: Path, typed: str, completed: str | None) -> None:
        assert launching.complete_path(typed) == completed

    def test_absolute_and_home_paths_keep_their_beginning(
        self, files: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(files))
        assert launching.complete_path(f"{files}/tra") == f"{files}/train.py"
        assert launching.complete_path("~/tra") == "~/train.py"

    def test_a_folder_that_cannot_be_read_completes_nothing(self, files: Path) -> None:
        if os.geteuid() == 0:
            pytest.skip("root reads everything")
        (files / "data").chmod(0)
        assert launching.complete_path("data/x") is None


async def test_devices_are_offered_once_it_is_known_who_holds_them() -> None:
    app: App[None] = App()
    async with app.run_test() as pilot:
        screen = LaunchScreen()
        await app.push_screen(screen)
        screen.show_devices(Devices(gpus=(GpuSample(index=0), GpuSample(index=1))))
        assert not screen.query_one(GpuChoice).display
        known = tuple(GpuSample(index=i, mem_used_bytes=0, processes=[]) for i in range(2))
        screen.show_devices(Devices(gpus=known))
        await pilot.pause()
        assert screen.form().gpus == (0, 1)
