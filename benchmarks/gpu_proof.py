"""Try ddptop on a real NVIDIA GPU, and print a Markdown table of what was seen.

    python benchmarks/gpu_proof.py [--device cpu] [--picture overview.svg]

One device is enough. Each check has a time limit, and one that fails leaves the others running; all
of them take about five minutes. `--device cpu` rehearses the same on CPU ranks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KILLS = 3
LIMIT_S = 120.0
NVIDIA_SMI = ("name", "driver_version", "utilization.gpu", "memory.used", "power.draw")

TRAINER = """
import os, sys, time
import torch
import torch.distributed as dist
device, stamps, mode = sys.argv[1:]
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1024, 1024).to(device))
optimizer = torch.optim.AdamW(model.parameters())
held, attempt = [], os.environ["TORCHELASTIC_RESTART_COUNT"]
for step in range(1_000_000):
    loss = (model(torch.randn(64, 1024, device=device)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step < 5:
        with open(stamps, "a") as file:
            file.write(f"{attempt} {loss.item()} {time.time()}\\n")
    if mode == "oom" and step > 20:
        held.append(torch.empty(2**31, device=device).fill_(1))
    time.sleep(0.01)
"""

ABOUT = """
import torch
print(torch.__version__)
print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else "")
"""


def ddptop(*arguments: str) -> str:
    """Run a command of ddptop and return its output."""
    argv = [sys.executable, "-m", "ddptop", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr.strip() or done.stdout.strip())
    return done.stdout


def status_of(job: str) -> dict[str, Any]:
    """The record of a job."""
    record: dict[str, Any] = json.loads(ddptop("status", job, "--json"))
    return record


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition, up to the limit.

    Raises:
        TimeoutError: it did not come true in time.
    """
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"no {what} within {LIMIT_S:.0f} s")
        time.sleep(0.05)


@contextmanager
def training(
    device: str, ranks: int, *options: str, mode: str = "endless"
) -> Iterator[tuple[str, Path]]:
    """A running job and the file of its first steps: attempt, loss, and time."""
    with tempfile.TemporaryDirectory() as folder:
        script, stamps = Path(folder, "train.py"), Path(folder, "stamps")
        script.write_text(TRAINER)
        gpus, where = ("none", "cpu") if device == "cpu" else ("0", "cuda:0")
        given = ("--gpus", gpus, "--nproc", str(ranks), "--max-restarts", "9", *options)
        job = ddptop("launch", "-d", *given, str(script), where, str(stamps), mode).strip()
        try:
            wait_until(lambda: steps_of(stamps, 0), "first step")
            yield job, stamps
        finally:
            ddptop("stop", job)


def steps_of(stamps: Path, attempt: int) -> list[tuple[float, float]]:
    """(loss, Unix time) of each of an attempt's first steps so far."""
    lines = [line.split() for line in stamps.read_text().splitlines()] if stamps.exists() else []
    return [(float(loss), float(at)) for number, loss, at in lines if number == str(attempt)]


# --- the checks ------------------------------------------------------------------------------


def run_tests() -> str:
    """The tests that need a device."""
    argv = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    done = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_S * 2
    )
    return done.stdout.strip().rpartition("\n")[2]


def compare_readings() -> str:
    """What NVML tells ddptop, beside nvidia-smi, while a job trains."""
    with training("cuda", 1):
        time.sleep(5)
        gpu = json.loads(ddptop("gpus", "--json"))["gpus"][0]
        argv = ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(NVIDIA_SMI)}", "--format=csv"]
        smi = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    own = f"{gpu['util_percent']} %, {gpu['mem_used_bytes']} bytes, {gpu['power_w']} W"
    return f"{own}; nvidia-smi: {smi.stdout.splitlines()[-1]}"


def train_and_kill(device: str, ranks: int, *options: str) -> str:
    """Train, and kill a rank several times: seconds from the signal to the next step."""
    taken = []

    def progresses() -> bool:
        return all((rank["step"] or 0) > 5 for rank in status_of(job)["ranks"])

    with training(device, ranks, *options) as (job, stamps):
        for attempt in range(1, KILLS + 1):
            wait_until(progresses, "progress")
            killed_at = time.time()
            os.kill(status_of(job)["ranks"][-1]["pid"], signal.SIGKILL)
            wait_until(partial(steps_of, stamps, attempt), f"step of attempt {attempt}")
            taken.append(steps_of(stamps, attempt)[0][1] - killed_at)
        wait_until(progresses, "progress")
        rank = status_of(job)["ranks"][0]
    seconds = ", ".join(f"{one:.2f}" for one in sorted(taken))
    memory, loss = rank["gpu_mem_used_bytes"], rank["loss"]
    used = "memory n/a" if memory is None else f"{memory >> 20} MiB of its device"
    shown = "loss n/a" if loss is None else f"loss {loss:.3g} by {rank['loss_source']}"
    return f"{seconds} s to the next step; {shown}, {used}"


def run_out_of_memory(*options: str) -> str:
    """The cause that is named when the device's memory is full."""

    def cause() -> dict[str, Any] | None:
        status = status_of(job)
        found: dict[str, Any] | None = status["previous_cause"] or status["cause"]
        return found

    with training("cuda", 1, *options, mode="oom") as (job, _):
        wait_until(cause, "failure")
        found = cause() or {}
    return str(found["summary"])


def find_what_holds_memory() -> str:
    """The same with the line that fills the memory, and a snapshot for torch's viewer."""
    summary = run_out_of_memory("--memory-snapshot")
    line = TRAINER[: TRAINER.index("held.append")].count("\n") + 1
    if f"GiB from train.py:{line} in <module>" not in summary:
        raise RuntimeError(f"line {line} is not named: {summary}")
    snapshot, *_ = Path(os.environ["DDPTOP_HOME"]).glob("runs/*/evidence/*/memory-rank-0.pickle")
    return f"{summary} {snapshot.name}: {snapshot.stat().st_size >> 10} KiB"


def probe_cost(device: str) -> str:
    """The probe's cost per step of a small model."""
    framework = "torch" if device == "cpu" else "cuda"
    argv = [sys.executable, str(ROOT / "benchmarks" / "probe_cost.py"), "--framework", framework]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LIMIT_S * 2)
    return (done.stdout or done.stderr).strip().splitlines()[0]


def take_picture(device: str, file: Path) -> str:
    """The overview while a job trains, as an SVG."""
    from ddptop.tui.app import DdptopApp

    async def export() -> None:
        app = DdptopApp()
        async with app.run_test(size=(120, 40)) as pilot:
            await asyncio.sleep(8)
            await pilot.pause()
            file.write_text(app.export_screenshot(), encoding="utf-8")

    with training(device, 2):
        asyncio.run(export())
    return f"written to {file.name}"


def main() -> int:
    """Run all checks and print the table; 1 if one of them failed, 2 without a GPU."""
    parser = argparse.ArgumentParser(description="Try ddptop on a real GPU.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--picture", type=Path, default=Path("gpu-overview.svg"))
    options = parser.parse_args()
    device, home = options.device, tempfile.mkdtemp(prefix="ddptop-proof-")
    os.environ["DDPTOP_HOME"] = home
    asked = subprocess.run(
        [sys.executable, "-c", ABOUT], capture_output=True, text=True, check=True
    )
    version, name = asked.stdout.splitlines()
    if device == "cuda" and not name:
        print("torch sees no CUDA device; --device cpu rehearses on CPU ranks", file=sys.stderr)
        return 2
    on_gpus: Sequence[tuple[str, Callable[[], str]]] = (
        ("tests that need a GPU", run_tests),
        ("`ddptop gpus` beside nvidia-smi", compare_readings),
        ("out of memory", run_out_of_memory),
        ("out of memory, `--memory-snapshot`", find_what_holds_memory),
    )
    anywhere: Sequence[tuple[str, Callable[[], str]]] = (
        ("one rank, `kill -9`", lambda: train_and_kill(device, 1)),
        ("one rank, `--no-zygote`, `kill -9`", lambda: train_and_kill(device, 1, "--no-zygote")),
        ("two ranks on one device, gloo, `kill -9`", lambda: train_and_kill(device, 2)),
        ("the probe's cost", lambda: probe_cost(device)),
        ("overview", lambda: take_picture(device, options.picture.resolve())),
    )
    where = name if device == "cuda" else "CPU ranks: a rehearsal"
    print(f"{where}, torch {version}\n\n| Check | Result |\n|---|---|", flush=True)
    failed = 0
    for what, check in (*(on_gpus if device == "cuda" else ()), *anywhere):
        try:
            result = check()
        except Exception as error:  # the other checks still count
            failed += 1
            result = f"FAILED: {error}"
        print(f"| {what} | {' '.join(result.split())} |", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
