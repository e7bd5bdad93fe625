"""The launch form, which shows the equivalent command line as it is filled in."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen
from textual.suggester import Suggester
from textual.widget import Widget
from textual.widgets import Button, Input, Label, Static

from ddptop.draw.devices import holder_text
from ddptop.draw.panels import short_name
from ddptop.job.help import about
from ddptop.job.keys import EXIT, HELP
from ddptop.job.record import Job
from ddptop.sources.query import Devices
from ddptop.style import Column, Row, line
from ddptop.tui import launching
from ddptop.tui.keymap import bindings
from ddptop.tui.launching import LaunchForm
from ddptop.tui.screens.base import VERTICAL
from ddptop.tui.widgets.table import HEAD_LINES, Table
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.units import ranks, size_of
from ddptop_runner.devices import hardware
from ddptop_runner.launch.gpus.choice import CPU_RANKS, is_instance
from ddptop_runner.launch.gpus.usage import (
    DeviceUse,
    in_mig_mode,
    use_of,
)
from ddptop_runner.model.snapshot import GpuSample
from ddptop_runner.model.spec import Device

COLUMNS = (
    Column("use", "use", 3),
    Column("index", "", 3, ">"),
    Column("name", "device", 16),
    Column("memory", "memory", 14, ">"),
    Column("who", " used by", 14, flex=True),
)

IN_MIG_MODE = "in MIG mode; use ddptop launch --gpus MIG-..."


def is_free(gpu: GpuSample) -> bool:
    """Whether it is usable and has no known user."""
    known = gpu.processes is not None
    return known and not gpu.lost and not in_mig_mode(gpu) and not _use(gpu).busy


def _use(gpu: GpuSample) -> DeviceUse:
    return use_of(Device(index=gpu.index, uuid=gpu.uuid), gpu)


class GpuChoice(Table[GpuSample]):
    """A list of devices; space or a click selects or deselects one."""

    BINDINGS = [Binding("space", "choose", "Choose", show=False, id="gpus.choose")]

    class Changed(Message):
        """The selection changed."""

    def __init__(self) -> None:
        super().__init__("GPUs", COLUMNS, id="gpus")
        self._chosen: set[int] = set()

    @property
    def selected(self) -> tuple[int, ...]:
        """Indices of the selected devices on this machine."""
        return tuple(sorted(self._chosen))

    def offer(self, gpus: Sequence[GpuSample], chosen: Collection[int] | None = None) -> None:
        """List devices and select those with the given indices, or the free ones."""
        self.items = [gpu for gpu in gpus if not is_instance(gpu)]
        self._chosen = {
            gpu.index
            for gpu in self.items
            if (is_free(gpu) if chosen is None else gpu.index in chosen)
        }
        self._show()

    @on(Table.Chosen)
    def toggle(self, message: Table.Chosen) -> None:
        """Select or deselect the device."""
        message.stop()
        if any(in_mig_mode(gpu) for gpu in self.items if gpu.index == int(message.key)):
            return
        self._chosen ^= {int(message.key)}
        self._show()
        self.post_message(self.Changed())

    def _show(self) -> None:
        note = f"{ranks(list(self.selected))} selected" if self._chosen else "none selected"
        rows = [(str(gpu.index), self._row(gpu)) for gpu in self.items]
        self.set_rows(rows, line((f"{note}; space toggles", "dim")))

    def _row(self, gpu: GpuSample) -> Row:
        used = gpu.index in self._chosen
        held = line(IN_MIG_MODE) if in_mig_mode(gpu) else holder_text(gpu, brief=True)
        return {
            "use": (" ✓", "ok") if used else (" ·", "dim"),
            "index": (str(gpu.index), "strong"),
            "name": (short_name(gpu.name), "" if used else "dim"),
            "memory": (size_of(gpu.mem_used_bytes, gpu.mem_total_bytes), ""),
            "who": line(" ", *held),
        }


class PathSuggester(Suggester):
    """Completes paths of Python files; reads the file system in a thread."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        """The completed value, or None."""
        return await asyncio.to_thread(launching.complete_path, value)


PATIENCE_POLLS = 5
"""How many updates without device figures to ignore before offering the devices anyway."""


class LaunchScreen(ModalScreen[str | None]):
    """The launch form; dismissed with the new job's name, or None."""

    DEFAULT_CSS = """
    LaunchScreen { align: center middle; background: $background 60%; }
    LaunchScreen > Vertical {
        width: 84; max-width: 98%; height: auto; max-height: 98%;
        background: $surface; border: round $panel; padding: 0 2;
        border-title-color: $secondary; border-subtitle-color: $secondary;
    }
    LaunchScreen VerticalScroll { height: auto; scrollbar-size: 1 1; }
    LaunchScreen .row { height: 1; margin-top: 1; }
    LaunchScreen .row Label { width: 14; color: $foreground 62%; }
    LaunchScreen .row .after { width: auto; padding-left: 2; color: $foreground 62%; }
    LaunchScreen .row .-needed { color: $error; }
    LaunchScreen Input { width: 1fr; height: 1; border: none; padding: 0 1; background: $panel; }
    LaunchScreen Input:focus { border: none; background-tint: $primary 12%; }
    LaunchScreen .short Input { width: 10; }
    LaunchScreen #no-gpus-row { height: auto; }
    LaunchScreen #gpus { width: 1fr; height: auto; max-height: 11; margin-top: 1; }
    LaunchScreen #no-gpus { width: 1fr; color: $foreground 62%; }
    LaunchScreen #command { margin-top: 1; padding: 0 1; color: $accent; height: auto; }
    LaunchScreen #error {
        color: $error; text-style: bold; height: auto; min-height: 1; padding: 0 1;
    }
    LaunchScreen.-short .row { margin-top: 0; }
    LaunchScreen.-short #command, LaunchScreen.-short #gpus { margin-top: 0; }
    LaunchScreen #buttons { height: 1; align-horizontal: right; }
    LaunchScreen #buttons Button { margin-left: 2; }
    """

    VERTICAL_BREAKPOINTS = VERTICAL
    BINDINGS = [
        Binding("escape", "cancel", "Cancel", id="launch.cancel"),
        Binding("ctrl+l", "launch", "Launch", id="launch.go", tooltip="launch the job"),
        # with priority, the focus moves before Textual handles the next key
        Binding("tab", "app.focus_next", show=False, priority=True),
        Binding("enter", "next_field", show=False, priority=True),
        Binding("shift+tab", "app.focus_previous", show=False, priority=True),
        *bindings((HELP, EXIT)),
    ]

    def __init__(self, again: Job | None = None) -> None:
        """Open an empty form, or one with the values of an ended job."""
        super().__init__()
        self._spec = None if again is None else again.spec
        self._before = None if self._spec is None else launching.form_of(self._spec)
        self._gpus: tuple[GpuSample, ...] | None = None
        self._patience = PATIENCE_POLLS
        self._busy = False
        self._has_asked = False
        self._is_cpu_machine = False

    def compose(self) -> ComposeResult:
        """Fields, the command line, the error, and the buttons."""
        with Vertical() as box:
            before = self._before or LaunchForm()
            box.border_title = f"relaunch {before.name}" if self._before else "launch a job"
            # one that a text field does not take
            help_key = next((key for key in HELP.keys if len(key) > 1), None)
            box.border_subtitle = f"{help_key} help" if help_key else ""
            with VerticalScroll(can_focus=False):
                yield _row(
                    "script",
                    Input(
                        before.script,
                        id="script",
                        placeholder=f"train.py, or -- COMMAND, in {_here()}",
                        suggester=PathSuggester(),
                        select_on_focus=False,
                    ),
                )
                yield _row(
                    "arguments", _text("arguments", before.arguments, "--lr 3e-4 --epochs 10")
                )
                yield GpuChoice()
                none = Static("querying the driver", id="no-gpus", markup=False)
                yield _row("GPUs", none, id="no-gpus-row")
                auto = Label("auto: one per selected GPU", id="auto", classes="after")
                nproc = _text("nproc", before.nproc, "auto")
                yield _row("ranks", nproc, auto, classes="row short")
                restarts = _text("max-restarts", before.max_restarts)
                note = Label("group restarts allowed after failures", classes="after")
                yield _row("max restarts", restarts, note, classes="row short")
                yield _row("name", _text("name", before.name, "derived from the script"))
                yield _row(
                    "options",
                    _text("options", before.options, "--wait-gpus --on-nan restart"),
                )
            yield Static(id="command", markup=False)
            yield Static(id="error", markup=False)
            with Horizontal(id="buttons"):
                yield Button("Cancel  (esc)", id="cancel", compact=True)
                yield Button("Launch  (ctrl+l)", id="go", variant="primary", compact=True)

    def explain(self) -> list[tuple[str, str]]:
        """Help on each field."""
        return about("launch form")

    def on_mount(self) -> None:
        """Focus the script."""
        self.query_one(GpuChoice).display = False
        self.query_one("#script" if self._before is None else "#arguments", Input).focus()
        self._show_command()

    def show_devices(self, devices: Devices) -> None:
        """List the devices once they are known, and select the free ones."""
        if self._gpus is not None or not self.is_mounted:
            return
        if not devices.gpus and devices.note == "querying the driver":
            return
        if not devices.gpus:  # the driver may still report some when it answers
            known = f"none found: {devices.note}" if devices.note else "none on this machine"
            self.query_one("#no-gpus", Static).update(known)
            self._has_asked = True
            self._is_cpu_machine = not hardware.exists()
            self._show_ranks()
            return
        silent = any(
            gpu.processes is None and gpu.mem_used_bytes is None and not gpu.lost
            for gpu in devices.gpus
        )
        if silent and self._patience > 0:  # a sampler that has just started knows no holders
            self._patience -= 1
            return
        self._gpus = devices.gpus
        self._is_cpu_machine = False
        self._has_asked = True
        choice = self.query_one(GpuChoice)
        choice.display = True
        self.query_one("#no-gpus-row").display = False
        rows = len(devices.gpus) + HEAD_LINES
        choice.styles.height = min(rows, max(5, self.size.height - 13))
        if self._spec is None or self._before is None or self._spec.queue is not None:
            choice.offer(devices.gpus)
        else:
            used = tuple(device.index for device in self._spec.devices or ())
            choice.offer(devices.gpus, used)
            self._before = replace(self._before, gpus=used)
        self._show_command()

    def form(self) -> LaunchForm:
        """The form's values."""
        value = {field.id: field.value for field in self.query(Input)}
        return LaunchForm(
            script=value["script"],
            arguments=value["arguments"],
            gpus=self.query_one(GpuChoice).selected if self._gpus else None,
            is_cpu_machine=self._is_cpu_machine,
            nproc=value["nproc"],
            name=value["name"],
            max_restarts=value["max-restarts"],
            options=value["options"],
        )

    @on(Input.Changed)
    @on(GpuChoice.Changed)
    def _show_command(self) -> None:
        form = self.form()
        line = launching.command_line(form, self._before)
        self.query_one("#command", Static).update(f"$ {line}{self._meaning(line)}")
        self.query_one("#error", Static).update("")
        self._show_ranks()

    def _show_ranks(self) -> None:
        """Show how many ranks an empty field means, once it is known whether there are GPUs."""
        is_needed = self._has_asked and launching.needs_ranks(self.form())
        after = self.query_one("#auto", Label)
        automatic = f"{CPU_RANKS} on the CPU" if self._is_cpu_machine else "one per selected GPU"
        after.update("required: no GPUs selected" if is_needed else f"auto: {automatic}")
        after.set_class(is_needed, "-needed")
        self.query_one("#nproc", Input).placeholder = "" if is_needed else "auto"

    def _meaning(self, line: str) -> str:
        if self._spec is None:
            return ""
        job = self._spec.job
        if line.startswith("ddptop restart "):
            return f"\nunchanged: a new attempt of {job}, in its run folder"
        missing = sorted(set(self._spec.env_overrides) - set(os.environ))
        again = f"; values of --env are not saved: {', '.join(missing)}" if missing else ""
        return f"\na new job; {job} keeps its logs{again}"

    @on(Button.Pressed, "#cancel")
    def action_cancel(self) -> None:
        """Close without launching."""
        self.dismiss(None)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave enter to buttons and devices."""
        return action != "next_field" or isinstance(self.focused, Input)

    def action_next_field(self) -> None:
        """Move on from a text field."""
        self.focus_next()

    @on(Button.Pressed, "#go")
    def action_launch(self) -> None:
        """Launch the job, unless something is missing."""
        if self._busy:
            return
        form = self.form()
        wrong = launching.problem(form)
        if wrong is not None:
            field, line = wrong
            self.query_one("#error", Static).update(line)
            self.set_focus(self.query_one(f"#{field}"))
            return
        self._busy = True
        self.query_one("#error", Static).update("launching")
        self._launch(form)

    @work(thread=True, group="launch")
    def _launch(self, form: LaunchForm) -> None:
        try:
            job = launching.launch(form, self._before)
        except (DdptopError, OSError) as error:
            self.app.call_from_thread(self._fail, str(error))
        else:
            self.app.call_from_thread(self.dismiss, job)

    def _fail(self, error: str) -> None:
        self._busy = False
        for label in self.query("#error").results(Static):  # none if the form was closed meanwhile
            label.update(error)


def _row(label: str, *widgets: Widget, id: str | None = None, classes: str = "row") -> Horizontal:
    return Horizontal(Label(label), *widgets, id=id, classes=classes)


def _text(id: str, value: str, placeholder: str = "") -> Input:
    return Input(value, id=id, placeholder=placeholder, select_on_focus=False)


def _here() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return "a deleted directory"
