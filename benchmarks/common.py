"""Helpers of the benchmarks: a small DDP script for either launcher, and programs in a pty."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import random
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

TOY = """
import os, sys, time
began = time.time()
import torch
import torch.distributed as dist
steps, pause, stamp = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo")
joined = time.time()
torch.manual_seed(dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(steps):
    loss = model(torch.randn(32, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 0 and dist.get_rank() == 0:
        open(stamp + ".first", "w").write(f"{time.time()!r} {began!r} {joined!r} {os.getpid()}")
    if pause:
        time.sleep(pause)
if dist.get_rank() == 0:
    open(stamp + ".last", "w").write(repr(time.time()))
dist.barrier()
time.sleep(0.2)  # torch 2.13 may abort if the interpreter exits right after a gloo collective
dist.destroy_process_group()
"""

BARE = """
import os, sys, time
open(sys.argv[3] + "." + os.environ["RANK"], "w").write(repr(time.time()))
"""
"""Imports nothing slow; each rank writes the time at which it runs."""

TORCHRUN = [
    *[sys.executable, "-m", "torch.distributed.run"],
    *["--standalone", "--nproc-per-node", "2"],
]


@dataclass(frozen=True)
class Run:
    """Times of one run, in seconds since the command was started."""

    first_step_s: float
    last_step_s: float
    wall_s: float


class Home:
    """A separate state folder and tmux socket for the benchmark's jobs.

    Args:
        ranks: number of ranks per job.
        is_bare: run BARE instead of TOY; the first and last steps are then the times of the first
            and the last rank to run.
    """

    def __init__(self, ranks: int = 2, is_bare: bool = False) -> None:
        self.ranks = ranks
        self._stamps = ranks if is_bare else 2
        self._folder = tempfile.TemporaryDirectory(prefix="ddptop-bench-")
        self.path = Path(self._folder.name)
        self.script = self.path / "toy.py"
        self.script.write_text(BARE if is_bare else TOY, encoding="utf-8")
        self.env = {
            **os.environ,
            "DDPTOP_HOME": str(self.path / "home"),
            "DDPTOP_TMUX_SOCKET": f"bench-{uuid.uuid4().hex[:8]}",
            "OMP_NUM_THREADS": "1",
        }
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)  # as when installed: imports are compiled

    def close(self) -> None:
        """Delete it, once its jobs have ended."""
        self._folder.cleanup()

    def ddptop(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run one ddptop command and wait for it to exit."""
        return subprocess.run(
            [sys.executable, "-m", "ddptop", *arguments],
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=check,
        )

    def status(self, job: str) -> dict[str, object]:
        """Return the output of `status --json`."""
        answer: dict[str, object] = json.loads(self.ddptop("status", job, "--json").stdout)
        return answer

    def run_torchrun(self, steps: int, pause_s: float = 0.0) -> Run:
        """Run the script under torchrun."""
        stamp = self.path / uuid.uuid4().hex
        started = time.time()
        subprocess.run(
            [
                *TORCHRUN[:-1],
                str(self.ranks),
                str(self.script),
                str(steps),
                str(pause_s),
                str(stamp),
            ],
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
        )
        return _times(stamp, started)

    def run_ddptop(
        self,
        steps: int,
        pause_s: float = 0.0,
        *options: str,
        on_trained: Callable[[float, list[str]], None] | None = None,
    ) -> Run:
        """Run the script under `ddptop launch`, and wait until the job has ended.

        Args:
            steps: number of training steps.
            pause_s: pause after each step.
            options: extra options of `launch`.
            on_trained: called after the last step, while the ranks are usually still running, with
                the start time and the fields that rank 0 wrote at its first step.
        """
        stamp = self.path / uuid.uuid4().hex
        started = time.time()
        launched = self.ddptop(
            *["launch", "-d", "--nproc", str(self.ranks), *options],
            *[str(self.script), str(steps), str(pause_s), str(stamp)],
        )
        while len(list(self.path.glob(f"{stamp.name}.*"))) < self._stamps:
            time.sleep(0.01)
        if on_trained is not None:
            on_trained(started, _first(stamp))
        self.ddptop("wait", launched.stdout.strip())
        return _times(stamp, started)


def _times(stamp: Path, started: float) -> Run:
    ended = time.time()
    texts = [path.read_text(encoding="utf-8") for path in stamp.parent.glob(f"{stamp.name}.*")]
    times = [float(text.split()[0]) for text in texts]
    return Run(min(times) - started, max(times) - started, ended - started)


def _first(stamp: Path) -> list[str]:
    return Path(f"{stamp}.first").read_text(encoding="utf-8").split()


def started_at(pid: int) -> float:
    """Return the Unix time at which a process was forked, to the nearest 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
    return booted_at() + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def booted_at() -> float:
    """Return the Unix time at which this machine's CLOCK_BOOTTIME was 0."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def report_stages(names: Sequence[str], found: Sequence[Sequence[float]]) -> None:
    """Print the median end and the median duration of each stage.

    Args:
        names: names of the stages.
        found: per run, the end of each stage in seconds.
    """
    before: Sequence[float] = [0.0] * len(found)
    for name, ends in zip(names, zip(*found, strict=True), strict=True):
        took = statistics.median(end - start for end, start in zip(ends, before, strict=True))
        print(f"  {name:20} {statistics.median(ends):.3f} s  ({took:+.3f} s)")
        before = ends


def bootstrap_median(
    values: Sequence[float], rounds: int = 4000, seed: int = 0
) -> tuple[float, float, float]:
    """Return the median and its 2.5 % and 97.5 % quantiles by resampling."""
    generator = random.Random(seed)
    medians = sorted(
        statistics.median(generator.choices(values, k=len(values))) for _ in range(rounds)
    )
    return statistics.median(values), medians[rounds // 40], medians[-rounds // 40]


class Screen:
    """A program in its own pty, 120x40 by default."""

    def __init__(
        self,
        command: Sequence[str],
        env: dict[str, str],
        rows: int = 40,
        columns: int = 120,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=env,
            start_new_session=True,
            pass_fds=pass_fds,
        )
        os.close(slave)
        self.pid = self._process.pid

    def type(self, keys: str) -> None:
        """Send keys to the program."""
        os.write(self._master, keys.encode())

    def drain(self, seconds: float, until: bytes | None = None) -> int:
        """Read output for `seconds`, or until `until` appears; return the number of bytes."""
        count, recent, deadline = 0, b"", time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self._master], [], [], left)[0]:
                try:
                    data = os.read(self._master, 1 << 16)
                except OSError:  # the program has exited
                    raise SystemExit(f"exited: {recent.decode('utf-8', 'replace')}") from None
                count += len(data)
                recent = recent[-2000:] + data
                if until is not None and until in recent:
                    break
        return count

    def drain_until(self, marks: Sequence[bytes], seconds: float) -> list[bytes]:
        """Read until all `marks` appeared, for at most `seconds`; return the missing ones."""
        drawn, deadline = b"", time.monotonic() + seconds
        missing = list(marks)
        while missing and (left := deadline - time.monotonic()) > 0:
            if select.select([self._master], [], [], left)[0]:
                try:
                    drawn += os.read(self._master, 1 << 16)
                except OSError:  # the program has exited
                    break
                missing = [mark for mark in missing if mark not in drawn]
        return missing

    def rss_bytes(self) -> int:
        """Return the resident memory of the program and its children."""
        return sum(p.memory_info().rss for p in _tree(self.pid))

    def close(self) -> None:
        """Kill the program and its children."""
        processes = _tree(self.pid)
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        os.close(self._master)


def _tree(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def cpu_s_of_tree(pid: int) -> float:
    """Return the CPU time of a process, its live descendants, and the children it has reaped."""
    total = 0.0
    for process in _tree(pid):
        times = process.cpu_times()
        total += times.user + times.system
        if process.pid == pid:
            total += times.children_user + times.children_system
    return total
