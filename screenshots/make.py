"""Takes the pictures of this folder from real jobs: `python screenshots/make.py [NAME…]`.

Real jobs run on CPUs in a state folder of their own: the bundled training, one of whose ranks is
killed on the way; the same, short, to its end; one that raises on one rank; and three of eight
ranks, for which the stand-in driver of the tests plays eight devices: one with a rank that the
others wait for, one with another learning rate, and one that hangs. Then the real interface is
opened on them. Takes about six minutes and leaves nothing running. With names only those pictures
are written.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from pathlib import Path

from ddptop.tui.app import DdptopApp
from ddptop.tui.messages import ScreenWanted
from recording import Frame, animate
from scripts import FINETUNE, PRETRAIN
from world import (
    HERE,
    SIZE,
    TIMEOUT_S,
    Work,
    again_with_driver,
    ddptop,
    only,
    own_world,
    settle,
    step_of,
    take,
    wait_for,
    without_fonts,
)

from ddptop_runner.base.paths import run_folder
from ddptop_runner.job.registry import JobView, read_job

TRAIN = HERE.parent / "ddptop" / "demo" / "train.py"
SLOW_RANK = 5
HUNG_RANK = 2

TWO = ("launch", "-d", "--gpus", "none", "--nproc", "2")
EIGHT = ("launch", "-d", "--gpus", "0-7", "--force", "--max-restarts", "0")


def train(work: Path) -> None:
    """Have one job training, one finished and one failed."""
    shutil.copy(TRAIN, work / "train.py")
    (work / "finetune.py").write_text(FINETUNE, encoding="utf-8")
    ddptop(*TWO, "--name", "warmup", "train.py", "--steps", "60", "--out", "warmup")
    wait_for("warmup", lambda view: not view.is_live)
    ddptop(*TWO, "--name", "finetune", "--max-restarts", "1", "finetune.py", "--data", "shards/")
    ddptop(*TWO, "--name", "gpt-small", "train.py", "--steps", "900", "--save-every", "50")
    wait_for("finetune", lambda view: not view.is_live)
    wait_for("gpt-small", lambda view: step_of(view) >= 130)
    asyncio.run(record_recovery("gpt-small"))


async def record_recovery(job: str) -> None:
    """Kill a rank under the open screen, and record how the group restarts and resumes."""
    frames: list[Frame] = []
    app = DdptopApp(job)
    async with app.run_test(size=SIZE) as pilot:

        async def look(lasts_s: float, command: str = "") -> None:
            await settle(pilot, 2)
            title = f"ddptop attach {job}" + (f"      $ {command}" if command else "")
            frames.append(Frame(without_fonts(app.export_screenshot(title=title)), lasts_s))

        await settle(pilot, 8)
        await look(2.5)
        view = read_job(run_folder(job))
        assert view.snapshot is not None
        victim = view.snapshot.ranks[1].pid
        assert victim is not None
        os.kill(victim, signal.SIGKILL)  # what an out-of-memory killer does
        command, deadline = f"kill -9 {victim}", time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            await look(1.0, command)
            view = read_job(run_folder(job))
            if view.snapshot is not None and view.snapshot.attempt and step_of(view) >= 20:
                break
        for _ in range(3):
            await look(1.5, command)
    (HERE / "recovery.svg").write_text(animate(_thinned(frames)), encoding="utf-8")
    print("recovery.svg", flush=True)


def _thinned(frames: list[Frame], most: int = 14) -> list[Frame]:
    """Evenly chosen frames: however long the restart took, the recording stays short."""
    step = max(1, -(-len(frames) // most))
    return [*frames[:-1:step], frames[-1]]


async def take_two_ranks() -> None:
    """Pictures of the jobs on CPUs."""
    await take("job", DdptopApp("gpt-small"), "ddptop attach gpt-small")
    await take("failed", DdptopApp("finetune"), "ddptop attach finetune")
    await take("story", DdptopApp("finetune"), "ddptop attach finetune", "e")
    form = [*"train.py", "enter", *"--steps 2000 --lr 1e-3", "tab", "tab", "2"]
    keys = ["space" if key == " " else key for key in [*form, "tab", "tab", *"gpt-long"]]
    await take("launch", DdptopApp(), "ddptop", "n", *keys)
    moment = ScreenWanted("replay", "gpt-small")
    await take("replay", DdptopApp(opening=moment), "ddptop replay gpt-small", *["right"] * 38)


async def take_eight_ranks() -> None:
    """Pictures of the job with a slow rank, beside the others."""
    app = DdptopApp
    await take("overview", app(), "ddptop", wait_s=20.0)
    await take("straggler", app("pretrain"), "ddptop attach pretrain", wait_s=5.0)
    slow = ["right"] * SLOW_RANK
    await take("rank", app("pretrain"), "ddptop attach pretrain", *slow, "enter", wait_s=5.0)
    await take("logs", app("pretrain"), "ddptop attach pretrain", "l", "m")
    await take("devices", app(), "ddptop", "v", *["down"] * SLOW_RANK, wait_s=40.0)


def pretrain(work: Path) -> None:
    """Eight ranks on the stand-in's devices: a slow one, another run to compare with, a hang."""
    (work / "pretrain.py").write_text(PRETRAIN, encoding="utf-8")
    ddptop(*EIGHT, "--name", "pretrain", "pretrain.py", "--slow-rank", str(SLOW_RANK))
    with Work("pretrain", slow=SLOW_RANK):
        wait_for("pretrain", lambda view: step_of(view) >= 220)
        asyncio.run(take_eight_ranks())
        ddptop("stop", "pretrain")
        wait_for("pretrain", lambda view: not view.is_live)
    ddptop(*EIGHT, "--name", "pretrain-2", "pretrain.py", "--lr", "0.2")
    with Work("pretrain-2"):
        wait_for("pretrain-2", lambda view: step_of(view) >= 220)
        ddptop("stop", "pretrain-2")
        wait_for("pretrain-2", lambda view: not view.is_live)
    both = ScreenWanted("compare", ("pretrain", "pretrain-2"))
    title = "ddptop compare pretrain pretrain-2"
    asyncio.run(take("compare", DdptopApp(opening=both), title))
    hang = ("--hang-rank", str(HUNG_RANK), "--hang-step", "60")
    limits = ("--hang-timeout", "20", "--max-restarts", "1")
    ddptop(*EIGHT, "--name", "ablation", *limits, "pretrain.py", *hang)
    with Work("ablation", hung=True):
        wait_for("ablation", lambda view: has_hung(view) and step_of(view) >= 20)
        asyncio.run(take("hang", DdptopApp("ablation"), "ddptop attach ablation"))
        ddptop("kill", "ablation")


def has_hung(view: JobView) -> bool:
    """Whether an attempt ended by a hang, and the next one runs."""
    return view.snapshot is not None and view.snapshot.previous_cause is not None


def main() -> None:
    """Run jobs, take pictures, end jobs."""
    again_with_driver(8)
    began = time.monotonic()
    with own_world() as work:
        only([])
        train(work)
        asyncio.run(take_two_ranks())
        pretrain(work)
    print(f"{time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
