"""Useful time: how many of a fault-free run's steps are kept when six faults come at random times.

    python benchmarks/useful_time.py [--minutes 10] [--faults 6] [--seed 1]

ddptop, torchrun and a run without faults train side by side, two CPU ranks each, mostly asleep
between steps, so that none is short of CPU. Each saves every ten seconds and goes on from there.
The same faults come at the same times to both launchers; one that comes while a launcher is not
back yet waits until it trains again. Kept: the furthest step of the training at the end.
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

from tests.faults.record import Step, read_record
from tests.faults.table import PG_TIMEOUT_S, TRAIN, pid_of_rank, processes_with

KINDS = ("kill", "raise", "exit-7", "hang-collective")
PAUSE_S = 0.1
SAVE_EVERY_S = 10.0
READY_STEPS = 3
"""A fault comes when every rank took so many steps of the attempt."""
SCRIPT = [
    *["--layers", "1", "--width", "64", "--context", "32", "--batch-size", "4"],
    *["--steps", "1000000", "--pause", str(PAUSE_S), "--save-every"],
    *[str(int(SAVE_EVERY_S / PAUSE_S)), "--record", "record", "--out", "out"],
    *["--fault-file", "fault"],
]
RESTARTS = "20"
"""For torchrun, whose budget is never filled again; ddptop has its default of 3."""


@dataclass(frozen=True)
class Plan:
    """A fault and when it comes."""

    at_s: float
    kind: str
    rank: int


def plan(count: int, seconds: float, seed: int) -> list[Plan]:
    """Faults at times from a seed, none in the first and last 20 s."""
    chance = random.Random(seed)
    times = sorted(chance.uniform(20.0, seconds - 20.0) for _ in range(count))
    return [Plan(at, chance.choice(KINDS), chance.randrange(2)) for at in times]


class Contender:
    """One launcher with its own folder."""

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
        """The script's own record."""
        return read_record(self.folder / "record")

    def trains(self, after: float) -> bool:
        """Whether both ranks took steps of their present attempt after a moment."""
        record = self.steps()
        recent = [[one for one in steps if one.at > after] for steps in record.values()]
        return len(record) == 2 and all(len(steps) >= READY_STEPS for steps in recent)

    def run(self, faults: list[Plan], seconds: float) -> None:
        """Commit each fault when its time has come, until all time is over."""
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
        """The furthest step that every rank had reached when the time was over."""
        assert self.began is not None
        over = self.began + seconds
        return min(
            max(one.step for one in steps if one.at <= over) for steps in self.steps().values()
        ) - min(
            one.step for steps in self.steps().values() for one in steps if one.at >= self.began
        )

    def lost(self) -> tuple[int, float]:
        """(steps of rank 0 that were taken again, seconds without a step) at all restarts."""
        steps = sorted(self.steps()[0], key=lambda one: one.at)
        restarts = [
            (before, after)
            for before, after in itertools.pairwise(steps)
            if after.attempt != before.attempt
        ]
        again = sum(before.step - after.step + 1 for before, after in restarts)
        return again, sum(after.at - before.at for before, after in restarts)

    def attempts(self) -> int:
        """How many there were."""
        return 1 + max(one.attempt for steps in self.steps().values() for one in steps)

    def close(self) -> None:
        """End all that carries the mark."""
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
    """All three side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--faults", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    seconds = options.minutes * 60
    faults = plan(options.faults, seconds, options.seed)
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
                again, still_s = one.lost()
                print(
                    f"{one.name}: {kept} steps of {best}: {kept / best:.2f}, "
                    f"{one.attempts()} attempts; {again} steps since checkpoints were taken again, "
                    f"{still_s:.1f} s passed without a step"
                )
        finally:
            for one in contenders:
                one.close()


if __name__ == "__main__":
    main()
