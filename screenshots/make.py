"""Takes the pictures of this folder from real jobs: `python screenshots/make.py [NAME…]`.

Real jobs run on CPUs in a state folder of their own: the bundled training, one of whose ranks is
killed on the way; the same, short, to its end; one that raises on one rank; and three of eight
ranks, for which the stand-in driver of the tests plays eight devices: one with a rank that the
others wait for, one with another learning rate, and one that hangs. Then the real interface is
opened on them. SVG comes from Textual, PNG from headless chromium, where there is one. Takes about
six minutes and leaves nothing running. With names only those pictures are written.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from ddptop.tui.app import DdptopApp
from ddptop.tui.messages import CompareWanted, ReplayWanted
from recording import Frame, animate
from scripts import FINETUNE, PRETRAIN
from world import (
    HERE,
    SIZE,
    Work,
    again_with_driver,
    ddptop,
    only,
    own_world,
    press,
    settle,
    step_of,
    take,
    wait_for,
    without_fonts,
)

TRAIN = HERE.parent / "ddptop" / "demo" / "train.py"
SLOW_RANK = 5
HUNG_RANK = 2

TWO = ("launch", "-d", "--gpus", "none", "--nproc", "2")
EIGHT = ("launch", "-d", "--gpus", "0-7", "--force", "--max-restarts", "0")

RECORDED: tuple[tuple[tuple[str, ...], float], ...] = (
    ((), 1.6),
    ((), 1.6),
    (("enter",), 2.4),
    ((), 1.2),
    (("end",), 1.0),
    (("up", "up"), 1.0),
    (("enter",), 3.0),
    (("escape",), 1.2),
    (("l",), 2.6),
    (("escape", "escape"), 1.6),
    (("v",), 2.6),
    (("escape",), 1.6),
)
"""Keys of the recording, and for how long what they open is seen."""


def train(work: Path) -> None:
    """Have one job training, one finished and one failed."""
    shutil.copy(TRAIN, work / "train.py")
    (work / "finetune.py").write_text(FINETUNE, encoding="utf-8")
    ddptop(*TWO, "--name", "warmup", "train.py", "--steps", "60", "--out", "warmup")
    wait_for("warmup", lambda view: not view.is_live)
    ddptop(*TWO, "--name", "finetune", "--max-restarts", "1", "finetune.py", "--data", "shards/")
    ddptop(*TWO, "--name", "gpt-small", "train.py", "--steps", "900", "--save-every", "50")
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


async def take_two_ranks() -> None:
    """Pictures of the jobs on CPUs."""
    await take("job", DdptopApp("gpt-small"), "ddptop attach gpt-small")
    await take("failed", DdptopApp("finetune"), "ddptop attach finetune")
    await take("story", DdptopApp("finetune"), "ddptop attach finetune", "e")
    form = [*"train.py", "enter", *"--steps 2000 --lr 1e-3", "tab", "2", "tab", "tab", *"gpt-long"]
    keys = ["space" if key == " " else key for key in form]
    await take("launch", DdptopApp(), "ddptop", "n", *keys)
    moment = ReplayWanted("gpt-small")
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


async def record(name: str) -> None:
    """A short recording: what a person sees who looks for the slow rank."""
    app = DdptopApp()
    frames = []
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot, 8)
        for keys, lasts_s in RECORDED:
            await press(pilot, keys)
            await settle(pilot, 3)
            frames.append(Frame(without_fonts(app.export_screenshot(title="ddptop")), lasts_s))
    (HERE / f"{name}.svg").write_text(animate(frames), encoding="utf-8")
    print(f"{name}.svg", flush=True)


def pretrain(work: Path) -> None:
    """Eight ranks on the stand-in's devices: a slow one, another run to compare with, a hang."""
    (work / "pretrain.py").write_text(PRETRAIN, encoding="utf-8")
    ddptop(*EIGHT, "--name", "pretrain", "pretrain.py", "--slow-rank", str(SLOW_RANK))
    with Work("pretrain", slow=SLOW_RANK):
        wait_for("pretrain", lambda view: step_of(view) >= 220)
        asyncio.run(take_eight_ranks())
        if not sys.argv[1:] or "tour" in sys.argv[1:]:
            asyncio.run(record("tour"))
        ddptop("stop", "pretrain")
        wait_for("pretrain", lambda view: not view.is_live)
    ddptop(*EIGHT, "--name", "pretrain-2", "pretrain.py", "--lr", "0.2")
    with Work("pretrain-2"):
        wait_for("pretrain-2", lambda view: step_of(view) >= 220)
        ddptop("stop", "pretrain-2")
        wait_for("pretrain-2", lambda view: not view.is_live)
    both = CompareWanted(("pretrain", "pretrain-2"))
    title = "ddptop compare pretrain pretrain-2"
    asyncio.run(take("compare", DdptopApp(opening=both), title))
    hang = ("--hang-rank", str(HUNG_RANK), "--hang-step", "60")
    ddptop(*EIGHT, "--name", "ablation", "--hang-timeout", "20", "pretrain.py", *hang)
    with Work("ablation", hung=True):
        wait_for("ablation", lambda view: not view.is_live)
    asyncio.run(take("hang", DdptopApp("ablation"), "ddptop attach ablation"))


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
