"""Takes the pictures of this folder from real jobs: `python screenshots/make.py`.

Three real jobs run on CPUs in a state folder of their own: the bundled training, one of whose
ranks is killed on the way; the same, short, to its end; and one that raises on one rank. Then the
real interface is opened on them. SVG comes from Textual, PNG from headless chromium, where there
is one. Takes about three minutes and leaves nothing running.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ddptop.tui import foreign_source
from ddptop.tui.app import DdptopApp
from textual.pilot import Pilot

from ddptop_runner import commands
from ddptop_runner.foreign.census import CensusTaker
from ddptop_runner.foreign.types import Census
from ddptop_runner.model import GpuSample
from ddptop_runner.paths import run_folder
from ddptop_runner.registry import JobView, all_jobs, read_job

HERE = Path(__file__).resolve().parent
TRAIN = HERE.parent / "ddptop" / "demo" / "train.py"
SIZE = (120, 38)
TIMEOUT_S = 240.0

RAISES = """
import time, torch, torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def batch(step, rank):
    columns = 63 if rank == 1 and step >= 120 else 64
    if columns != 64:
        raise ValueError(f"shard 7 of rank {rank} holds {columns} columns, the model takes 64")
    return torch.randn(32, columns)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(10_000):
        data = batch(step, rank)
        loss = cross_entropy(model(data), (data.sum(1) > 0).long())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.4f}", flush=True)
        time.sleep(0.1)


main()
"""


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
    return (view.snapshot.step or 0) if view.snapshot is not None else 0


@contextlib.contextmanager
def own_world() -> Iterator[Path]:
    """A state folder and a tmux server of our own; nothing is left of them."""
    root = Path(tempfile.mkdtemp(prefix="ddptop-"))
    os.environ |= {
        "DDPTOP_HOME": str(root / "state"),
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


def run_jobs(work: Path) -> None:
    """Have one job training, one finished and one failed."""
    shutil.copy(TRAIN, work / "train.py")
    (work / "finetune.py").write_text(RAISES, encoding="utf-8")
    two = ("launch", "-d", "--gpus", "none", "--nproc", "2")
    ddptop(*two, "--name", "warmup", "train.py", "--steps", "60", "--out", "warmup")
    wait_for("warmup", lambda view: not view.is_live)
    ddptop(*two, "--name", "finetune", "--max-restarts", "1", "finetune.py", "--data", "shards/")
    ddptop(*two, "--name", "gpt-small", "train.py", "--steps", "900", "--save-every", "50")
    wait_for("finetune", lambda view: not view.is_live)
    view = wait_for("gpt-small", lambda view: step_of(view) >= 130)
    assert view.snapshot is not None
    victim = view.snapshot.ranks[1].pid
    assert victim is not None
    os.kill(victim, signal.SIGKILL)  # what an out-of-memory killer does
    wait_for(
        "gpt-small",
        lambda view: (
            view.snapshot is not None and (view.snapshot.attempt or 0) >= 1 and step_of(view) >= 150
        ),
    )


def only(launchers: Sequence[int]) -> None:
    """Of the training that ddptop did not start show only these: none of others' here."""

    class Ours(CensusTaker):
        def take(self, gpus: Sequence[GpuSample] = ()) -> Census:
            census = super().take(gpus)
            jobs = tuple(job for job in census.jobs if job.root_pid in launchers)
            return Census(jobs, (), census.facts)

    foreign_source.CensusTaker = Ours  # type: ignore[misc]


async def settle(pilot: Pilot[None]) -> None:
    """Give the collector some looks."""
    for _ in range(5):
        pilot.app.collector.ask()  # type: ignore[attr-defined]
        await pilot.pause(0.4)


async def take(name: str, job: str | None, *keys: str) -> None:
    """One picture: open on `job`, type `keys`, export."""
    app = DdptopApp(job)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        for key in keys:
            await pilot.press(key)
            await pilot.pause(0.1)
        await settle(pilot)
        title = f"ddptop attach {job}" if job else "ddptop"
        svg = without_fonts(app.export_screenshot(title=title))
    (HERE / f"{name}.svg").write_text(svg, encoding="utf-8")
    rasterise(svg, HERE / f"{name}.png")
    print(f"{name}.svg")


def without_fonts(svg: str) -> str:
    """The picture without fonts to be fetched: it shows in whatever fixed font the viewer has."""
    return re.sub(r"@font-face\s*{[^}]*}\s*", "", svg)


def rasterise(svg: str, target: Path) -> None:
    """PNG by headless chromium, where it is installed."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    if browser is None or box is None:
        return
    width, height = (round(float(size)) for size in box.groups())
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(
            f'<meta charset="utf-8"><body style="margin:0;background:transparent">{svg}</body>',
            encoding="utf-8",
        )
        subprocess.run(
            [
                browser,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-background-networking",
                "--hide-scrollbars",
                "--force-device-scale-factor=1",
                f"--user-data-dir={folder}/profile",
                f"--window-size={width},{height}",
                f"--screenshot={target}",
                str(page),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )


async def take_all() -> None:
    """All pictures."""
    await take("overview", None)
    await take("job", "gpt-small")
    await take("failed", "finetune")
    form = [*"train.py", "enter", *"--steps 2000 --lr 1e-3", "tab", "2", "tab", "tab", *"gpt-long"]
    await take("launch", None, "n", *["space" if key == " " else key for key in form])


def main() -> None:
    """Run jobs, take pictures, end jobs."""
    with own_world() as work:
        run_jobs(work)
        only([])
        asyncio.run(take_all())


if __name__ == "__main__":
    main()
