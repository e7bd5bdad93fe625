"""The form's command line, and how the command line's own parser understands it."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ddptop.cli import cli
from ddptop.commands.launch import request_of
from ddptop.sources.query import Devices
from ddptop.style import plain
from ddptop.tui import launching
from ddptop.tui.launching import LaunchForm
from ddptop.tui.screens.launch import GpuChoice, LaunchScreen
from ddptop.tui.textual_gaps import key_of_character
from ddptop.tui.widgets.table import Table
from tests.support import fake_home
from tests.support.driving import until
from tests.support.fake_home import NOW
from textual import events
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Input, Label, Static

from ddptop_runner.base import programs
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.start import own_command
from ddptop_runner.devices import hardware
from ddptop_runner.jobs import launch
from ddptop_runner.model.snapshot import GpuProcess, GpuSample
from ddptop_runner.model.spec import Device, JobSpec, NodeSpec, Placement

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
    LaunchForm(script="train.py", gpus=(1,), options="--on-nan restart --env 'A=b c'"),
]


def burst(app: App[None], *keys: str) -> None:
    """Send keys as fast as a terminal passes on pasted or typed-ahead text."""
    for key in keys:
        character = key if len(key) == 1 else None
        app.post_message(events.Key(key_of_character(key) if character else key, character))


@contextlib.asynccontextmanager
async def form_opened() -> AsyncIterator[tuple[App[None], Pilot[None], LaunchScreen]]:
    app: App[None] = App()
    async with app.run_test() as pilot:
        screen = LaunchScreen()
        await app.push_screen(screen)
        await pilot.pause()
        yield app, pilot, screen


def parsed(argv: list[str]) -> tuple[dict[str, Any], Any]:
    """Options and target as parsed by `ddptop launch`."""
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
        from ddptop_runner.launch.gpus.choice import parse_gpus

        assert parse_gpus(options["gpus"]).indices == form.gpus


COMMANDS = {
    "-- ./run.sh 'a b'": ["./run.sh", "a b"],
    "--  x": ["x"],
    "torchrun --nproc-per-node 2 t.py": ["torchrun", "--nproc-per-node", "2", "t.py"],
    "python -u t.py": ["python", "-u", "t.py"],
    "env A=1 mpirun -np 2 ./t": ["env", "A=1", "mpirun", "-np", "2", "./t"],
    "train.py": None,
    "my dir/train.py": None,
    "--odd.py": None,
    "it's.py": None,
}


@pytest.mark.parametrize("script", COMMANDS)
def test_a_command_in_place_of_a_script(script: str) -> None:
    words = COMMANDS[script]
    assert launching.command_words(script) == words
    if words is not None:
        form = LaunchForm(script=script, arguments="--lr '1 2'", gpus=(0, 1))
        _, target = parsed(launching.launch_argv(form)[1:])
        assert (target.kind, target.name) == ("command", words[0])
        assert list(target.args) == [*words[1:], "--lr", "1 2"]
        assert shlex.split(launching.command_line(form))[1:] == launching.launch_argv(form)


@pytest.mark.parametrize(
    ("form", "wrong"),
    [
        (LaunchForm(), "script is required"),
        (LaunchForm(script="a.py"), "number of ranks is required when no GPUs are selected"),
        (
            LaunchForm(script="a.py", gpus=()),
            "number of ranks is required when no GPUs are selected",
        ),
        (LaunchForm(script="a.py", gpus=(0,), nproc="two"), "ranks: two is not a number"),
        (
            LaunchForm(script="a.py", gpus=(0,), max_restarts="x"),
            "max restarts: x is not a number",
        ),
        (LaunchForm(script="a.py", gpus=(0,), arguments="'"), "arguments: unclosed quote"),
        (LaunchForm(script="a.py", gpus=(0,)), None),
        (LaunchForm(script="-- "), "script is required"),
        (LaunchForm(script="-- a '"), "script: unclosed quote"),
        (LaunchForm(script="-- torchrun a.py"), None),
        (
            LaunchForm(script="torchrun a.py", nproc="2"),
            "ranks: a command starts its own ranks; set the number in its arguments",
        ),
    ],
)
def test_problems_are_named_before_launching(form: LaunchForm, wrong: str | None) -> None:
    found = launching.problem(form)
    assert (found and found[1]) == wrong


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

        def run(argv: list[str], _: float) -> subprocess.CompletedProcess[str]:
            seen.append(argv)
            return subprocess.CompletedProcess(argv, 0, "note\ntrain-2\n", "")

        monkeypatch.setattr(programs, "run", run)
        assert launching.launch(LaunchForm(script="train.py", nproc="2")) == "train-2"
        assert seen[0] == own_command("ddptop", "launch", "-d", "--nproc", "2", "train.py")

    def test_a_refusal_is_the_command_s_own_line(self, ddptop_home: Path) -> None:
        with pytest.raises(DdptopError) as refused:
            launching.launch(LaunchForm(script="not-there.py", nproc="2"))
        assert "no script not-there.py" in str(refused.value)
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

    @pytest.mark.parametrize("key", ["tab", "enter"])
    async def test_text_typed_right_after_a_field_is_left_goes_to_the_next(
        self, files: Path, key: str
    ) -> None:
        async with form_opened() as (app, pilot, screen):
            burst(app, *"train.py", key, *"--lr 1", key, "4")
            await until(pilot, lambda: screen.form().nproc == "4")
            form = screen.form()
            assert (form.script, form.arguments) == ("train.py", "--lr 1")
            burst(app, "shift+tab", "x")
            await until(pilot, lambda: screen.form().arguments == "--lr 1x")

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


@pytest.mark.parametrize("is_cpu_machine", [False, True], ids=["no driver", "no hardware"])
async def test_ranks_are_marked_as_required_where_devices_do_not_work(
    monkeypatch: pytest.MonkeyPatch, is_cpu_machine: bool
) -> None:
    monkeypatch.setattr(hardware, "exists", lambda: not is_cpu_machine)
    async with form_opened() as (app, pilot, screen):
        field, after = screen.query_one("#nproc", Input), screen.query_one("#auto", Label)
        automatic, needed = "auto: one per selected GPU", "required: no GPUs selected"
        assert (str(after.content), field.placeholder) == (automatic, "auto")
        screen.show_devices(Devices())
        if is_cpu_machine:
            assert (str(after.content), field.placeholder) == ("auto: 2 on the CPU", "auto")
            assert launching.problem(replace(screen.form(), script="a.py")) is None
            return
        assert (str(after.content), field.placeholder) == (needed, "")
        await pilot.press(*"a.py", "ctrl+l")
        assert app.focused is field
        await pilot.press("2")
        assert str(after.content) == automatic
        field.value = ""
        screen.show_devices(Devices(gpus=(GpuSample(index=0, mem_used_bytes=0, processes=[]),)))
        await pilot.pause()
        assert str(after.content) == automatic


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        (("ctrl+l",), "script"),
        (("a", "tab", "'", "tab", "ctrl+l"), "arguments"),
        (("a", "tab", "tab", "2", "x", "tab", "ctrl+l"), "nproc"),
    ],
)
async def test_a_refusal_leads_to_the_field_at_fault(keys: tuple[str, ...], field: str) -> None:
    async with form_opened() as (app, pilot, screen):
        await pilot.press("tab", "shift+tab", *keys)
        assert app.focused is screen.query_one(f"#{field}")


async def test_devices_are_offered_once_it_is_known_who_holds_them() -> None:
    async with form_opened() as (_, pilot, screen):
        screen.show_devices(Devices(gpus=(GpuSample(index=0), GpuSample(index=1))))
        assert not screen.query_one(GpuChoice).display
        known = tuple(GpuSample(index=i, mem_used_bytes=0, processes=[]) for i in range(2))
        screen.show_devices(Devices(gpus=known))
        await pilot.pause()
        assert screen.form().gpus == (0, 1)


async def test_a_driver_that_answers_late_is_not_called_an_empty_machine() -> None:
    async with form_opened() as (_, pilot, screen):
        said = screen.query_one("#no-gpus", Static)
        screen.show_devices(Devices(note="the driver has not answered for 6 s"))
        assert str(said.content) == "none found: the driver has not answered for 6 s"
        screen.show_devices(Devices())
        assert str(said.content) == "none on this machine"
        free = GpuSample(index=0, mem_used_bytes=0, processes=[])
        screen.show_devices(Devices(gpus=(free,)))
        await pilot.pause()
        assert screen.form().gpus == (0,)


async def test_devices_that_are_known_before_the_form_is_drawn_do_no_harm() -> None:
    app: App[None] = App()
    async with app.run_test() as pilot:
        screen = LaunchScreen()
        pushed = app.push_screen(screen)
        screen.show_devices(Devices())  # an update may end in between
        await pushed
        screen.show_devices(Devices())
        await pilot.pause()
        assert str(screen.query_one("#no-gpus", Static).content) == "none on this machine"


def held(index: int, **fields: Any) -> GpuSample:
    process = GpuProcess(pid=7, user="alice", command="train", mem_used_bytes=2**33)
    return GpuSample(index=index, mem_used_bytes=2**33, processes=[process], **fields)


async def test_a_busy_device_is_offered_with_its_holder_and_not_chosen() -> None:
    async with form_opened() as (_, pilot, screen):
        instance = GpuSample(index=3, uuid="MIG-1", parent_uuid="GPU-3", processes=[])
        divided = GpuSample(
            index=3, uuid="GPU-3", mig_mode=True, mig_instances=["MIG-1"], processes=[]
        )
        unseen = GpuSample(
            index=4, mem_used_bytes=2**34, mem_total_bytes=2**35, processes=[], util_percent=0
        )
        small = GpuProcess(pid=8, user="root", command="Xorg", mem_used_bytes=2**26)
        idle = GpuSample(index=1, mem_used_bytes=2**26, processes=[small], util_percent=0)
        gpus = (GpuSample(index=0, mem_used_bytes=0, processes=[]), idle, held(2), divided)
        screen.show_devices(Devices(gpus=(*gpus, instance, unseen)))
        await pilot.pause()
        assert screen.form().gpus == (0, 1)
        choice = screen.query_one(GpuChoice)
        text = "\n".join(plain(row) for row in choice.build(100, 20))
        assert "alice: train" in text and "busy: unknown process" in text
        assert "in MIG mode; use ddptop launch --gpus MIG-" in text
        for key, chosen in (("3", (0, 1)), ("2", (0, 1, 2))):
            choice.toggle(Table.Chosen(choice, key))
            assert screen.form().gpus == chosen


@pytest.mark.torch
@pytest.mark.parametrize(
    "argv",
    [
        "--nproc 2 --max-restarts 0 --no-replica-check --memory-snapshot train.py --title 'a b'",
        "--nproc 2 --on-nan stop --hang-timeout 60 -m train",
        "--nproc 3 --hang-timeout off --no-zygote --log-limit 65536 --cwd / /bin/true",
        "--nproc 1 --no-probe --allow-shrink train.py",
        "--pty -- sh -c 'exit 3'",
    ],
)
def test_an_ended_job_fills_the_form_in(
    argv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ddptop_home: Path
) -> None:
    def plan(argv: list[str]) -> JobSpec:
        options, target = parsed(["--gpus", "none", "--name", "lm", *argv])
        spec = launch.prepare(request_of(target, options), os.environ).spec
        return msgspec.structs.replace(spec, created_at=NOW, job_id="lm@1")

    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    spec = plan(shlex.split(argv))
    assert spec.memory_snapshot is ("--memory-snapshot" in argv)
    assert spec.replica_check is ("--no-replica-check" not in argv)
    form = replace(launching.form_of(spec), gpus=())
    assert launching.problem(form) is None
    assert plan(launching.launch_argv(form)[1:]) == spec


def test_the_form_names_the_hosts_of_an_ended_job() -> None:
    nodes = [
        NodeSpec(
            host=host,
            address=host,
            nproc=3,
            devices=[Device(index=index, uuid=f"GPU-{index}") for index in (0, 1, 3)],
            python="python",
            command=[],
            ports=[],
        )
        for host in ("a", "me@b")
    ]
    spec = fake_home.spec_of("lm", 6, 0, placement=Placement(by="ssh", nodes=nodes, min_nodes=1))
    form = launching.form_of(spec)
    assert launching.problem(form) is None
    argv = launching.launch_argv(replace(form, gpus=(0,)))
    assert argv[argv.index("--hosts") + 1] == "a:0-1,3,me@b:0-1,3"
    assert argv[argv.index("--nodes") + 1] == "1:2"
    assert not {"--nproc", "--gpus"} & set(argv)
    assert parsed(argv[1:])
