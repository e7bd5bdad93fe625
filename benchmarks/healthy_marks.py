"""Count false alerts on real training: small CPU jobs, all but one healthy, polled every second.

    python benchmarks/healthy_marks.py [--seconds 90] [NAME ...]

No rank of a healthy job should be marked. The last job is not healthy: rank 1 gets random labels.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRAINING = """
import os, sys, time
import torch
import torch.distributed as dist

kind, seconds = sys.argv[1], float(sys.argv[2])
began = time.monotonic()
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
torch.manual_seed(0)
wide = torch.nn.Linear(20, 32)
model = torch.nn.Sequential(wide, torch.nn.ReLU(), torch.nn.Linear(32, 4))
critic = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
truth = torch.randn(20, 4)
torch.manual_seed(rank + 1)


def batch(size):
    x = torch.randn(size, 20)
    y = (x @ truth + torch.randn(size, 4)).argmax(1)
    if kind == "harder-shard" and rank == 1:
        is_wrong = torch.rand(size) < 0.4
        y = torch.where(is_wrong, torch.randint(0, 4, (size,)), y)
    if kind == "labels-at-random" and rank == 1 and time.monotonic() - began > seconds / 3:
        y = torch.randint(0, 4, (size,))
    return x, y


def reduced(parameters):
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


entropy = torch.nn.functional.cross_entropy
adam = torch.optim.Adam(model.parameters(), 1e-3)
if kind == "lbfgs":
    adam = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
if kind == "critic":
    adam = torch.optim.Adam(critic.parameters(), 1e-4)
whole = batch(200)
step = 0
over = torch.zeros(1)
while not over:
    step += 1
    if kind == "bursty-loader" and step % 200 < 60:
        until = time.monotonic() + 0.05
        while time.monotonic() < until and rank == step // 200 % dist.get_world_size():
            sum(range(1000))  # prepare data in the training thread
    if kind == "evaluation" and step % 300 == 0 and rank == 0:
        until = time.monotonic() + 12
        while time.monotonic() < until:
            model(torch.randn(512, 20))
    if kind == "lbfgs":
        def closure():
            adam.zero_grad()
            loss = entropy(model(whole[0]), whole[1])
            loss.backward()
            reduced(model.parameters())
            shared = loss.detach().clone()  # if line searches differ, ranks wait for each other
            dist.all_reduce(shared)
            return shared
        adam.step(closure)
        time.sleep(0.2)
    else:
        adam.zero_grad()
        if kind == "critic":
            real, fake = torch.randn(16, 20) + 0.05, torch.randn(16, 20)
            loss = critic(fake).mean() - critic(real).mean()
            loss.backward()
            reduced(critic.parameters())
        else:
            size = 256 if kind == "labels-at-random" else 64 if "shard" in kind else 2
            x, y = batch(size)
            loss = entropy(model(x), y)
            loss.backward()
            reduced(model.parameters())
        adam.step()
        time.sleep(0.02)
    over[0] = float(time.monotonic() - began > seconds)
    dist.broadcast(over, 0)
dist.destroy_process_group()
"""

KINDS = {
    "small-batches": 2,
    "small-batches-4": 4,
    "lbfgs": 2,
    "critic": 2,
    "bursty-loader": 2,
    "evaluation": 2,
    "harder-shard": 2,
    "labels-at-random": 2,
}
"""Number of ranks of each job."""
UNHEALTHY = "labels-at-random"


def ddptop(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a ddptop command in the folder of the training script."""
    command = [str(Path(sys.executable).parent / "ddptop"), *words]
    return subprocess.run(command, cwd=cwd, text=True, capture_output=True, check=False)


def marks(kind: str, seconds: float, folder: Path) -> tuple[dict[str, float], int, int]:
    """Run one job; return the alerts that marked ranks and when, polls, and training steps."""
    from ddptop_runner.judge.balance.imbalance import MARKED_BY

    job = f"marks-{kind}"
    words = ("launch", "--name", job, "-d", "--nproc", str(KINDS[kind]))
    started = ddptop(*words, "train.py", kind, str(seconds), cwd=folder)
    if started.returncode:
        raise SystemExit(started.stderr)
    found: dict[str, float] = {}
    began, polls, steps = time.monotonic(), 0, 0
    while time.monotonic() - began < seconds + 60:
        status = json.loads(ddptop("status", job, "--json", cwd=folder).stdout)
        if status["state"] not in ("starting", "running", "queued"):
            break
        polls += 1
        steps = max(steps, status["step"] or 0)
        for alert in status["alerts"]:
            if alert["id"] in MARKED_BY:
                found.setdefault(f"{alert['id']} of {alert['ranks']}", time.monotonic() - began)
        time.sleep(1.0)
    ddptop("kill", job, cwd=folder)
    return found, polls, steps


def main() -> None:
    """Run the jobs one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(KINDS))
    parser.add_argument("--seconds", type=float, default=90.0)
    options = parser.parse_args()
    marked = 0
    with tempfile.TemporaryDirectory(prefix="ddptop-marks-") as place:
        folder = Path(place)
        (folder / "train.py").write_text(TRAINING)
        os.environ.update(DDPTOP_HOME=str(folder / "home"), TMUX_TMPDIR=place)
        for kind in options.names:
            found, polls, steps = marks(kind, options.seconds, folder)
            marked += bool(found) and kind != UNHEALTHY
            text = ", ".join(f"{what} after {at:.0f} s" for what, at in found.items()) or "no marks"
            print(f"{kind:18} {KINDS[kind]} ranks  {steps:6} steps  {polls:4} polls  {text}")
    print(f"{marked} of {sum(kind != UNHEALTHY for kind in options.names)} healthy jobs marked")


if __name__ == "__main__":
    main()
