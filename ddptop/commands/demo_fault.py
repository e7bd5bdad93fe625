"""`ddptop demo --fault KIND`: inject a fault into a live job and show the result."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddptop.commands.demo import request_of
from ddptop.commands.launch import size_bytes, start_plan
from ddptop.faults import kinds, places
from ddptop.faults.kinds import Fault
from ddptop.output import put, say
from ddptop_runner.base.errors import UsageError
from ddptop_runner.base.start import own_command
from ddptop_runner.job.registry import JobView
from ddptop_runner.jobs import launch
from ddptop_runner.launch.request import LaunchRequest

LIST = "list"
PLACES = ("disk", "device")
"""Faults that need a temporary disk or driver."""
SMALL = (
    *("--layers", "2", "--width", "64", "--context", "64"),
    *("--steps", "600", "--pause", "0.05", "--save-every", "20"),
    *("--record", "record", "--fault-file", "fault"),
)
"""Half a minute of training; the user's own arguments follow and take precedence."""


def run(name: str, rank: int, arguments: list[str], detach: bool, watch: bool) -> int:
    """Launch the bundled training, inject the fault once it trains, and show what follows.

    On a terminal, this opens the job's screen; otherwise it prints the story, and the exit status
    is 0 if everything went as expected.

    Raises:
        UsageError: the fault is unknown or cannot be injected here.
    """
    if name == LIST:
        for line in kinds.in_lines():
            put(line)
        return 0
    fault = kinds.fault_of(name)
    if detach and fault.place in PLACES:
        raise UsageError(f"--fault {name} cannot be used with --detach", "remove --detach")
    if fault.place == "device" and places.STUB_STATE not in os.environ:
        return _again_with_driver(name, rank, arguments)
    with _place_for(fault) as out:
        request = _request_of(fault, [*SMALL, *out, *arguments])
        plan = launch.prepare(request, os.environ)
        if not 0 <= rank < plan.spec.nproc:
            raise UsageError(
                f"--rank {rank} does not exist", f"ranks are 0 to {plan.spec.nproc - 1}"
            )
        view = start_plan(plan)
        if not watch and not detach:
            from ddptop.faults.show import tell_all

            say(
                f"ddptop: {view.job} is running; attach from another terminal with "
                f"ddptop attach {view.job}"
            )
            return tell_all(view.folder, fault, rank, _put_now)
        told = view.folder.path / "fault.log"
        child = _commit_in_background(view, fault, rank, told)
        if detach:
            put(view.job)
            return 0
        subprocess.run(own_command("ddptop", "attach", view.job), check=False)
        return _after_the_screen(view, fault, child, told)


def _put_now(line: str) -> None:
    put(line)
    sys.stdout.flush()


def _request_of(fault: Fault, arguments: list[str]) -> LaunchRequest:
    return dataclasses.replace(
        request_of(arguments),
        hang_timeout_s=fault.hang_timeout_s,
        hang_auto=fault.hang_timeout_s is None,
        on_nan=fault.on_nan,
        allow_shrink=fault.allow_shrink,
        log_limit_bytes=size_bytes(fault.log_limit),
    )


def _again_with_driver(name: str, rank: int, arguments: list[str]) -> int:
    """Run the command again: the loader reads the driver's path only when a process starts."""
    with tempfile.TemporaryDirectory(prefix="ddptop-demo-") as folder:
        driver = places.stand_in_driver(Path(folder), 2)
        say("ddptop: using a simulated driver with two GPUs; the ranks run on the CPU")
        command = own_command("ddptop", "demo", "--fault", name, "--rank", str(rank), *arguments)
        again = subprocess.run(command, env={**os.environ, **driver}, check=False)
        return again.returncode


@contextmanager
def _place_for(fault: Fault) -> Iterator[list[str]]:
    """Set up what the fault needs, and yield more arguments for the script."""
    if fault.name == "tmux-killed":  # other jobs keep their panes
        os.environ["DDPTOP_TMUX_SOCKET"] = f"ddptop-demo-{uuid.uuid4().hex[:8]}"
    if fault.place != "disk":
        yield []
        return
    with tempfile.TemporaryDirectory(prefix="ddptop-demo-") as name:
        folder = Path(name)
        with places.small_disk(folder / "disk") as disk:
            os.environ["DDPTOP_HOME"] = str(disk)
            say(f"ddptop: the run folder is on a small temporary disk: {disk}")
            yield ["--out", str(folder / "out"), "--record", str(folder / "record")]


def _commit_in_background(
    view: JobView, fault: Fault, rank: int, told: Path
) -> subprocess.Popen[bytes]:
    with told.open("wb") as log:
        return subprocess.Popen(
            own_command("ddptop.faults", view.job, fault.name, str(rank)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _after_the_screen(
    view: JobView, fault: Fault, child: subprocess.Popen[bytes], told: Path
) -> int:
    """Print what was recorded meanwhile; the verdict follows once the job has ended."""
    if fault.place in PLACES and child.poll() is None:
        say(f"ddptop: waiting for {view.job} to end, because it uses a temporary {fault.place}")
        child.wait()
    status = child.poll()
    put(told.read_text(encoding="utf-8", errors="replace").rstrip())
    if status is None:
        child.returncode = 0  # it stays with the job and outlives this process
        put(f"{view.job} is still running; the result will be in {told}")
        return 0
    return status
