"""Measure the time from `kill -9` of a rank to the next step, under ddptop and torchrun.

    python benchmarks/kill_rank.py [--kills 20] [--plain] [--stale] [--stages]
        [--ft-python VENV/bin/python]

Both jobs run at the same time and mostly sleep; their ranks are killed alternately. torchrun runs
with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, which makes its restarts clean. --stale adds torchrun
without it; a restart may then use the store of the dead attempt and fail again. --plain adds ddptop
with --no-zygote, so that each rank imports torch. --ft-python adds ft_launcher from another
environment with the same torch (`pip install nvidia-resiliency-ext`). --stages prints how ddptop
spends the time, based on `ddptop events --json`, the evidence, and times recorded by the script.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import psutil
from common import TORCHRUN, booted_at, bootstrap_median, report_stages, started_at

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # `tests` is not installed

from benchmarks.faults.table import command_of

STEP_TIMEOUT_S = 90.0
CLEAN = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
SETTLE_S = 1.0
"""Pause between a restart and the next kill, so that neither job is still busy restarting."""
TRAINER = """
import datetime, os, sys, time
began = time.time()
import torch
import torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
rank, attempt = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100000):
    model(torch.randn(2, 4)).mean().backward()
    optimizer.step()
    if step == 0:
        name = f"up-{attempt}-{rank}"
        open(name + ".new", "w").write(f"{os.getpid()} {began!r} {time.time()!r}")
        os.replace(name + ".new", name)
    time.sleep(0.05)
"""


@dataclass
class Contender:
    """One launcher and its job."""

    name: str
    command: list[str]
    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    times_s: list[float] = field(default_factory=list)
    attempts: int = 0
    seen: set[int] = field(default_factory=set)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def start(self) -> None:
        """Launch the job."""
        self.folder.mkdir()
        (self.folder / "train.py").write_text(TRAINER, encoding="utf-8")
        env = {
            **os.environ,
            **self.variables,
            "KILL_RANK_MARK": self.mark,
            "OMP_NUM_THREADS": "1",
            "DDPTOP_HOME": str(self.folder / "home"),
            "DDPTOP_TMUX_SOCKET": f"kills-{self.mark[:8]}",
        }
        subprocess.Popen(
            [*self.command, "train.py"],
            cwd=self.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def up(self) -> tuple[int, float] | None:
        """Wait for a new attempt; return rank 1's pid and the slower rank's first step time."""
        deadline = time.monotonic() + STEP_TIMEOUT_S
        while time.monotonic() < deadline:
            for file in self.folder.glob("up-*-1"):
                attempt = int(re.findall(r"\d+", file.name)[0])
                other = self.folder / f"up-{attempt}-0"
                if attempt not in self.seen and other.exists():
                    self.seen.add(attempt)
                    self.attempts = max(self.attempts, attempt)
                    pid, _, at = file.read_text(encoding="utf-8").split()
                    return int(pid), max(float(at), float(other.read_text().split()[2]))
            time.sleep(0.02)
        return None

    def end(self) -> int:
        """Kill all processes that carry the mark; return how many there were."""
        count = 0
        for _ in range(50):
            left = [one for one in psutil.process_iter() if self._is_mine(one)]
            count = max(count, len(left))
            for process in left:
                try:
                    process.kill()
                except psutil.Error:
                    continue
            if not left:
                break
            time.sleep(0.1)
        return count

    def _is_mine(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get("KILL_RANK_MARK") == self.mark
        except psutil.Error:
            return False


STAGES = (
    *("exit detected", "evidence kept", "other rank ended", "cause found", "restart decided"),
    *("ranks forked", "script running", "first step"),
)


def stages(one: Contender, attempt: int, killed: float) -> list[float]:
    """Return when each stage between the kill and the next first step ended, in seconds."""
    ddptop = [sys.executable, "-m", "ddptop", "events", "train", "--json"]
    env = {**os.environ, "DDPTOP_HOME": str(one.folder / "home")}
    printed = subprocess.run(ddptop, env=env, capture_output=True, text=True, check=True).stdout
    events = [json.loads(line) for line in printed.splitlines()]
    exits, at = {}, {}
    for event in events:
        if event["attempt"] == attempt and event["type"] == "rank_exited":
            exits[event["rank"]] = booted_at() + event["data"]["at_s"]
        elif event["attempt"] == attempt:
            at[event["type"]] = datetime.fromisoformat(event["ts"]).timestamp()
    kept = one.folder / "home" / "runs" / "train" / "evidence" / f"attempt-{attempt}-failure"
    files = (file for file in kept.iterdir() if file.name != "summary.txt")
    ups = [
        (one.folder / f"up-{attempt + 1}-{rank}").read_text(encoding="utf-8").split()
        for rank in (0, 1)
    ]
    ends = [
        *(exits[1], max(file.stat().st_mtime for file in files), exits[0]),
        *(at["failure"], at["group_restart"]),
        max(started_at(int(pid)) for pid, _, _ in ups),
        *(max(float(up[which]) for up in ups) for which in (1, 2)),
    ]
    return [end - killed for end in ends]


def kill_alternately(contenders: list[Contender], kills: int, *, wants_stages: bool) -> None:
    """Kill rank 1 of each job alternately, and record when both ranks took a step again."""
    pids = {}
    found_stages = []
    for one in contenders:
        found = one.up()
        if found is None:
            raise SystemExit(f"{one.name} did not train")
        pids[one.name] = found[0]
    for number in range(kills):
        order = contenders if number % 2 == 0 else contenders[::-1]
        for one in order:
            if one.name not in pids:
                continue
            time.sleep(SETTLE_S)
            killed = time.time()
            os.kill(pids.pop(one.name), signal.SIGKILL)
            found = one.up()
            if found is not None:
                pids[one.name] = found[0]
                one.times_s.append(found[1] - killed)
                if wants_stages and one is contenders[0]:
                    found_stages.append(stages(one, one.attempts - 1, killed))
    if found_stages:
        report_stages(STAGES, found_stages)


def main() -> None:
    """Run the jobs, kill ranks, and compare the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--stale", action="store_true")
    parser.add_argument("--stages", action="store_true")
    parser.add_argument("--ft-python", help="interpreter of an environment with ft_launcher")
    options = parser.parse_args()
    ddptop = [sys.executable, "-m", "ddptop", "launch", "-d", "--nproc", "2"]
    ddptop += ["--max-restarts", str(options.kills)]
    torchrun = [*TORCHRUN, "--max-restarts", str(options.kills)]
    with tempfile.TemporaryDirectory(prefix="ddptop-kills-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        contenders = [
            Contender("ddptop", ddptop, folder / "ddptop"),
            Contender("torchrun", torchrun, folder / "torchrun", CLEAN),
        ]
        if options.plain:
            contenders.append(
                Contender("ddptop --no-zygote", [*ddptop, "--no-zygote"], folder / "plain")
            )
        if options.stale:
            contenders.append(Contender("torchrun, shared store", torchrun, folder / "stale"))
        if options.ft_python:
            fault_tolerant = command_of("ft_launcher", 2, options.ft_python, options.kills)
            contenders.append(Contender("ft_launcher", fault_tolerant, folder / "ft"))
        try:
            for one in contenders:
                one.start()
            kill_alternately(contenders, options.kills, wants_stages=options.stages)
            report(contenders, options.kills)
        finally:
            for one in contenders:
                one.end()


def report(contenders: list[Contender], kills: int) -> None:
    """Print a line per launcher, with the ratio to torchrun's clean restart."""
    clean = statistics.median(contenders[1].times_s)
    for one in contenders:
        if not one.times_s:
            print(f"{one.name}: no restart succeeded")
            continue
        median, low, high = bootstrap_median(one.times_s)
        print(
            f"{one.name}: recovered from {len(one.times_s)} of {kills} kills in {one.attempts} "
            f"restarts; kill to step {median:.2f} s ({low:.2f} to {high:.2f}), "
            f"{median / clean:.2f} x clean"
        )
    print(json.dumps({one.name: [round(t, 3) for t in one.times_s] for one in contenders}))


if __name__ == "__main__":
    main()
