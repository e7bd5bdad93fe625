"""Measure the share of a fault-free run's steps that remain with six faults at random times.

    python benchmarks/useful_time.py [--minutes 10] [--faults 6] [--seed 1]

ddptop, torchrun, and a run without faults train at the same time with two CPU ranks each. They
sleep for most of each step, so that none lacks CPU. Each saves a checkpoint every ten seconds and
resumes from it. Both launchers get the same faults at the same times; a fault that is due while a
launcher is still restarting is delayed until it trains again. The result is the number of steps
that remain at the end.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import psutil
from common import TORCHRUN

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # `tests` is not installed

from benchmarks.faults.record import Step, read_record
from benchmarks.faults.table import PG_TIMEOUT_S, TRAIN, pid_of_rank, processes_with

KINDS = ("kill", "raise", "exit-7", "hang-collective")
PAUSE_S = 0.1
SAVE_EVERY_S = 10.0
READY_STEPS = 3
"""Steps that every rank must have taken in an attempt before the next fault."""
SCRIPT = [
    *["--layers", "1", "--width", "64", "--context", "32", "--batch-size", "4"],
    *["--steps", "1000000", "--pause", str(PAUSE_S), "--save-every"],
    *[str(int(SAVE_EVERY_S / PAUSE_S)), "--record", "record", "--out", "out"],
    *["--fault-file", "fault"],
]
RESTARTS = "20"
"""Restart budget of torchrun, which is never refilled; ddptop uses its default of 3."""


@dataclass(frozen=True)
class Fault:
    """A fault and its time."""

    at_s: float
    kind: str
    rank: int


def plan_faults(count: int, seconds: float, seed: int) -> list[Fault]:
    """Return random faults, none in the first and last 20 s."""
    rng = random.Random(seed)
    times = sorted(rng.uniform(20.0, seconds - 20.0) for _ in range(count))
    return [Fault(at, rng.choice(KINDS), rng.randrange(2)) for at in times]


class Contender:
    """One launcher and its folder."""

    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self.name, self.folder = name, folder / name
        self.folder.mkdir()
        self.mark = uuid.uuid4().hex
        self.socket = f"useful-{self.mark[:8]}"
        env = {
            **os.environ,
            "FAULTS_MARK": self.mark,
            "OMP_NUM_THREADS": "1",
            "DDPTOP_HOME": str(self.folder / "home"),
            "DDPTOP_TMUX_SOCKET": self.socket,
        }
        with (self.folder / "output").open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.began: float | None = None

    def steps(self) -> dict[int, list[Step]]:
        """Return the steps that the script recorded, by rank."""
        return read_record(self.folder / "record")

    def trains(self, after: float) -> bool:
        """Return whether both ranks took at least READY_STEPS steps after a given time."""
        record = self.steps()
        recent = [[one for one in steps if one.at > after] for steps in record.values()]
        return len(record) == 2 and all(len(steps) >= READY_STEPS for steps in recent)

    def run(self, faults: list[Fault], seconds: float) -> None:
        """Inject each fault at its time, until `seconds` have passed."""
        while not self.trains(0.0):
            time.sleep(0.2)
        self.began = time.time()
        ready_after = 0.0
        for fault in faults:
            while time.time() < self.began + fault.at_s or not self.trains(ready_after):
                if time.time() > self.began + seconds:
                    return
                time.sleep(0.2)
            print(
                f"{time.time() - self.began:6.1f} {self.name}: {fault.kind} {fault.rank}",
                flush=True,
            )
            pid = pid_of_rank(self.mark, fault.rank)
            if fault.kind == "kill" and pid is not None:
                os.kill(pid, signal.SIGKILL)
            else:
                (self.folder / "fault.new").write_text(fault.kind)
                (self.folder / "fault.new").replace(self.folder / f"fault.{fault.rank}")
            time.sleep(1.0)
            ready_after = time.time()
        time.sleep(max(0.0, self.began + seconds - time.time()))

    def kept(self, seconds: float) -> int:
        """Return the steps from the start that every rank had completed at the end."""
        assert self.began is not None
        over = self.began + seconds
        return min(
            max(one.step for one in steps if one.at <= over) for steps in self.steps().values()
        ) - min(
            one.step for steps in self.steps().values() for one in steps if one.at >= self.began
        )

    def lost(self) -> tuple[int, float]:
        """Return the repeated steps of rank 0 and the seconds without a step, over all restarts."""
        steps = sorted(self.steps()[0], key=lambda one: one.at)
        restarts = [
            (before, after)
            for before, after in itertools.pairwise(steps)
            if after.attempt != before.attempt
        ]
        repeated = sum(before.step - after.step + 1 for before, after in restarts)
        return repeated, sum(after.at - before.at for before, after in restarts)

    def attempts(self) -> int:
        """Return the number of attempts."""
        return 1 + max(one.attempt for steps in self.steps().values() for one in steps)

    def close(self) -> None:
        """Kill all processes that carry the mark."""
        for _ in range(50):
            processes = processes_with(self.mark)
            for process in processes:
                try:
                    process.kill()
                except psutil.Error:
                    continue
            if not processes:
                break
            time.sleep(0.1)
        self.process.wait()


def main() -> None:
    """Run all three at the same time, and print their steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--faults", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    seconds = options.minutes * 60
    faults = plan_faults(options.faults, seconds, options.seed)
    for fault in faults:
        print(f"at {fault.at_s:5.1f} s: {fault.kind} on rank {fault.rank}")
    script = [str(TRAIN), *SCRIPT]
    torchrun = [*TORCHRUN, "--max-restarts", RESTARTS, *script, "--pg-timeout", str(PG_TIMEOUT_S)]
    ddptop = [sys.executable, "-m", "ddptop", "launch", "-d", "--nproc", "2"]
    ddptop += ["--hang-timeout", str(PG_TIMEOUT_S), *script]
    with tempfile.TemporaryDirectory(prefix="ddptop-useful-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        contenders = [
            Contender("ddptop", ddptop, folder),
            Contender("torchrun", torchrun, folder),
            Contender("faultless", [*TORCHRUN, *script], folder),
        ]
        try:
            threads = [
                threading.Thread(
                    target=one.run, args=([] if one.name == "faultless" else faults, seconds)
                )
                for one in contenders
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            best = contenders[-1].kept(seconds)
            for one in contenders:
                kept = one.kept(seconds)
                repeated, still_s = one.lost()
                print(
                    f"{one.name}: {kept} steps of {best}: {kept / best:.2f}, "
                    f"{one.attempts()} attempts; {repeated} steps repeated, "
                    f"{still_s:.1f} s without a step"
                )
        finally:
            for one in contenders:
                one.close()


if __name__ == "__main__":
    main()
