"""A world of our own for pictures: state folder, tmux server, stand-in driver, drawing."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the stand-in driver belongs to the tests

from ddptop.sources import foreign as foreign_source
from ddptop.tui.app import DdptopApp
from tests.support.nvml_stub import GIB, StubDriver, StubProcess
from textual.pilot import Pilot

from ddptop_runner.base.paths import run_folder
from ddptop_runner.foreign.census import HostCensus
from ddptop_runner.foreign.types import Census
from ddptop_runner.job.registry import JobView, all_jobs, read_job
from ddptop_runner.jobs import commands
from ddptop_runner.model.snapshot import GpuSample

HERE = Path(__file__).resolve().parent
SIZE = (120, 38)
TIMEOUT_S = 300.0


def ddptop(*arguments: str) -> None:
    """Run the command line."""
    subprocess.run([sys.executable, "-m", "ddptop", *arguments], check=True, timeout=60)


def wait_for(job: str, condition: Callable[[JobView], bool]) -> JobView:
    """The job's view once `condition` holds."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition(view := read_job(run_folder(job))):
        if time.monotonic() > deadline:
            raise SystemExit(f"{job} is still {view.state} after {TIMEOUT_S:g} s")
        time.sleep(0.2)
    return view


def step_of(view: JobView) -> int:
    """The slowest rank's step; 0 before the first."""
    ranks = [] if view.snapshot is None else view.snapshot.ranks
    return min((rank.step or 0 for rank in ranks), default=0)


@contextlib.contextmanager
def own_world() -> Iterator[Path]:
    """A folder to work in, a state folder and a tmux server; nothing is left of them."""
    root = Path(tempfile.mkdtemp(prefix="ddptop-"))
    os.environ |= {
        "DDPTOP_HOME": str(root / "state"),
        "XDG_CONFIG_HOME": str(root / "config"),
        "DDPTOP_TMUX_SOCKET": f"{root.name}-shots",
        "OMP_NUM_THREADS": "1",
    }
    here = Path.cwd()
    work = root / "code"
    work.mkdir()
    os.chdir(work)
    try:
        yield work
    finally:
        for view in all_jobs():
            if view.is_live:
                commands.kill(view)
                commands.wait_until_ended(view, timeout_s=30)
        socket = os.environ["DDPTOP_TMUX_SOCKET"]
        subprocess.run(["tmux", "-L", socket, "kill-server"], capture_output=True, check=False)
        os.chdir(here)
        shutil.rmtree(root)


def again_with_driver(devices: int) -> None:
    """Start this program again where it finds a stand-in driver; returns in that program only.

    The library of the driver is looked for once in a process, so that it must be there before.
    """
    if "DDPTOP_SHOTS_DRIVER" in os.environ:
        return
    with tempfile.TemporaryDirectory(prefix="ddptop-driver-") as folder:
        driver = StubDriver(Path(folder), devices)
        env = driver.env(dict(os.environ), log=False)
        env["DDPTOP_SHOTS_DRIVER"] = folder
        done = subprocess.run([sys.executable, *sys.argv], env=env, check=False)
    raise SystemExit(done.returncode)


class Work:
    """Has the stand-in driver say that a job's ranks work on its devices, second by second."""

    def __init__(self, job: str, *, slow: int | None = None, hung: bool = False) -> None:
        """`slow` is the rank that the others wait for; `hung`: they spin, and burn little power."""
        self._job, self._slow, self._hung = job, slow, hung
        self._driver = StubDriver(Path(os.environ["DDPTOP_SHOTS_DRIVER"]), 8)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Work:
        self._free()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._free()

    def _free(self) -> None:
        with self._driver.together():
            for index in range(8):
                gpu = self._driver.gpu(index)
                gpu.mem_used, gpu.util, gpu.power_mw, gpu.processes = 0, 0, 70_000, []

    def _run(self) -> None:
        chance = random.Random(7)
        while not self._over.wait(1.0):
            snapshot = read_job(run_folder(self._job)).snapshot
            ranks = [] if snapshot is None else snapshot.ranks
            with self._driver.together():
                for rank in ranks:
                    if rank.pid is not None:
                        self._say(rank.rank, rank.pid, chance)

    def _say(self, rank: int, pid: int, chance: random.Random) -> None:
        gpu = self._driver.gpu(rank)
        is_slow = rank == self._slow
        used = (61.2 if rank else 66.8) * GIB  # the first rank also keeps the averaged weights
        gpu.processes = [StubProcess(pid, int(used), sm_util=96)]
        gpu.mem_used = int(used)
        gpu.util = chance.randint(52, 61) if is_slow else chance.randint(96, 100)
        watts = 128 if self._hung else 348 if is_slow else 602
        gpu.power_mw = chance.randint(watts - 9, watts + 9) * 1000
        gpu.temperature = chance.randint(44, 47) if self._hung else chance.randint(58, 66)
        gpu.sm_clock = 1980 if is_slow else 1755


def only(launchers: Sequence[int]) -> None:
    """Of the training that ddptop did not start show only these: none of others' here."""

    class Ours(HostCensus):
        def scan(self, gpus: Sequence[GpuSample] = ()) -> Census:
            census = super().scan(gpus)
            jobs = tuple(job for job in census.jobs if job.root_pid in launchers)
            return Census(jobs, (), census.facts)

    foreign_source.HostCensus = Ours  # type: ignore[misc]


async def settle(pilot: Pilot[None], looks: int = 5) -> None:
    """Give the collector some looks."""
    for _ in range(looks):
        pilot.app.collector.ask()  # type: ignore[attr-defined]
        await pilot.pause(0.4)


async def press(pilot: Pilot[None], keys: Sequence[str]) -> None:
    """Type keys, one after the other."""
    for key in keys:
        await pilot.press(key)
        await pilot.pause(0.15)


async def take(name: str, app: DdptopApp, title: str, *keys: str, wait_s: float = 0.0) -> None:
    """One picture: open, type `keys`, wait, export. Not where other pictures were asked for."""
    if sys.argv[1:] and name not in sys.argv[1:]:
        return
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await press(pilot, keys)
        await pilot.pause(wait_s)
        await settle(pilot)
        svg = without_fonts(app.export_screenshot(title=title))
    write(name, svg)


def write(name: str, svg: str) -> None:
    """Store a picture."""
    (HERE / f"{name}.svg").write_text(svg, encoding="utf-8")
    print(f"{name}.svg", flush=True)


def without_fonts(svg: str) -> str:
    """The picture without fonts to be fetched: it shows in whatever fixed font the viewer has."""
    return re.sub(r"@font-face\s*{[^}]*}\s*", "", svg)
