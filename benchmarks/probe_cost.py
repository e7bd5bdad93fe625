"""Measure the cost of the probe, per training step of each framework and per interpreter start.

    python benchmarks/probe_cost.py [--framework torch] [--python PATH] [--windows 40] [--steps 200]
    python benchmarks/probe_cost.py --instructions [--framework torch] [--python PATH]
    python benchmarks/probe_cost.py --start [--python PATH] [--windows 40]

Starts the interpreter of an environment as a rank of a job, with a socket that is read, so that the
sender thread does its work. Within one run, windows with and without the hooks alternate. A small
CPU model keeps the step short; the added cost does not depend on the model. The results are medians
over pairs of windows of (with hooks - without), per optimizer step, for wall time and for the CPU
time of the training thread, which depends less on other load. On a busy machine, compare the
fastest windows: with `--windows 150 --steps 50`, some of them run undisturbed.

With --instructions, the interpreter runs in valgrind, which counts the instructions of the training
thread in each window; other load does not change them. The garbage collector is off, because a
collection would fall into a random window. The sender's interval is as much longer as valgrind is
slower, so that a window contains as much of its work as usual.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import mmap
import os
import platform
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from probe_cost_trainings import TRAININGS

INJECT = Path(__file__).parents[1] / "runner" / "ddptop_runner" / "probe" / "inject"


COUNTED = "DDPTOP_BENCHMARK_COUNTED"
"""Environment variable that is set in a run in valgrind."""

VALGRIND_SLOWS = 50
"""Rough slowdown of a step in valgrind."""

WARM_UP = 100
"""Batches after each switch that are not measured, while the interpreter adapts to the change."""


class Done(Exception):
    """Raised after the last window, to end the training."""


class Windows:
    """Arm or disarm the probe's hooks before each window, and time the window.

    Args:
        pairs: Number of windows with hooks, and of windows without.
        batches: Length of a window in batches.
    """

    def __init__(self, pairs: int, batches: int) -> None:
        # the order within pairs alternates, so that drift cancels out
        self._order = [index % 4 in (0, 3) for index in range(2 * pairs)]
        self._batches, self._left, self._at = batches, WARM_UP, 0
        self._is_measuring = False
        self._is_armed = True
        self._start = (0.0, 0.0)
        self.taken: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        """Wall and CPU seconds of each window, by whether hooks were armed."""

    def tick(self) -> None:
        """Count a batch; switch to the next window if due."""
        self._left -= 1
        if self._left:
            return
        if self._is_measuring:
            self.end(self._order[self._at])
            self._at += 1
            if self._at == len(self._order):
                raise Done
        self._is_measuring = not self._is_measuring
        if self._is_measuring:
            self._left = self._batches
            self.begin()
        else:
            self._left = WARM_UP
            self._switch(self._order[self._at])

    def begin(self) -> None:
        """Start measuring a window."""
        self._start = (time.perf_counter(), time.thread_time())

    def end(self, has_hooks: bool) -> None:
        """Stop measuring a window."""
        now = (time.perf_counter(), time.thread_time())
        self.taken[has_hooks].append((now[0] - self._start[0], now[1] - self._start[1]))

    def _switch(self, is_armed: bool) -> None:
        hooks = sys.modules["_ddptop_probe"].current_session().hooks
        for owner, name, original, patch in hooks.patched[:: 1 if is_armed else -1]:
            setattr(owner, name, patch if is_armed else original)
        if self._is_armed != is_armed:
            self._is_armed = is_armed
            if is_armed:
                hooks.arm_step()
            for handle in hooks.step_handles if not is_armed else ():
                handle.remove()


ZERO, DUMP, START, STOP = 0x43540001, 0x43540003, 0x43540004, 0x43540005
"""Client requests of callgrind."""

CLIENT_REQUEST = bytes.fromhex("4889f8 31d2 48c1c703 48c1c70d 48c1c73d 48c1c733 4887db 4889d0 c3")
"""x86-64 code that passes its argument to valgrind: rotations that otherwise have no effect."""


class CountedWindows(Windows):
    """Let callgrind write the instruction count of each window to a separate file."""

    def __init__(self, pairs: int, batches: int) -> None:
        super().__init__(pairs, batches)
        gc.disable()
        # keep the number of steps between two datagrams the same as without valgrind
        sys.modules["_ddptop_probe"].current_session()
        sys.modules["_ddptop_probe.sender"].INTERVAL_S *= VALGRIND_SLOWS
        self._page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | 4)
        self._page.write(CLIENT_REQUEST)
        self._labels = [ctypes.create_string_buffer(name) for name in (b"without", b"with")]
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        self._call = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(address)

    def _request(self, request: int, argument: int = 0) -> None:
        arguments = (ctypes.c_uint64 * 6)(request, argument)
        self._call(ctypes.addressof(arguments))

    def begin(self) -> None:
        """Start measuring a window."""
        self._request(START)
        self._request(ZERO)

    def end(self, has_hooks: bool) -> None:
        """Stop measuring a window."""
        self._request(DUMP, ctypes.addressof(self._labels[has_hooks]))
        self._request(STOP)


CALLGRIND = (
    *("valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes"),
)


def report_counts(folder: Path, framework: str, steps: int) -> None:
    """Print what callgrind counted in the first thread."""
    counted: dict[str, list[float]] = {"with": [], "without": []}
    for file in folder.glob("counts.*-01"):
        text = file.read_text(encoding="utf-8", errors="replace")
        label = re.search(r"^desc: Trigger: Client Request: (\w+)$", text, re.MULTILINE)
        total = re.search(r"^summary: (\d+)$", text, re.MULTILINE)
        if label and total:
            counted[label[1]].append(int(total[1]) / steps)
    with_hooks, without = (statistics.median(counted[name]) for name in ("with", "without"))
    print(
        f"{framework}: {with_hooks:,.0f} instructions per step with the probe, {without:,.0f} "
        f"without it: {with_hooks - without:+,.0f}, {(with_hooks / without - 1) * 100:.1f}% "
        f"(medians of {len(counted['with'])} windows of {steps} steps each)"
    )


def measure(framework: str, pairs: int, steps: int, accumulate: int) -> None:
    """Train with and without hooks in alternating windows, and print the difference."""
    is_counted = COUNTED in os.environ
    windows = (CountedWindows if is_counted else Windows)(pairs, steps * accumulate)
    try:
        TRAININGS[framework](windows.tick, accumulate)
    except Done:
        pass
    if is_counted:
        return
    columns = [
        [
            (with_hooks[kind] - without[kind]) / steps * 1e6
            for with_hooks, without in zip(windows.taken[True], windows.taken[False], strict=True)
        ]
        for kind in (0, 1)
    ]
    (low, middle, high), (cpu_low, cpu, cpu_high) = (
        statistics.quantiles(column, n=4) for column in columns
    )
    plain_us = statistics.median(taken[0] for taken in windows.taken[False]) / steps * 1e6
    fastest_us, fastest_plain_us = (
        min(taken[0] for taken in windows.taken[has_hooks]) / steps * 1e6
        for has_hooks in (True, False)
    )
    print(
        f"{framework}: probe cost {middle:+.1f} us per step (median of {pairs} pairs of {steps} "
        f"steps of {accumulate} batches; quartiles {low:+.1f} to {high:+.1f}), CPU time "
        f"{cpu:+.1f} us (quartiles {cpu_low:+.1f} to {cpu_high:+.1f}); a step without it takes "
        f"{plain_us:.0f} us; in the fastest windows {fastest_us:.0f} us with it and "
        f"{fastest_plain_us:.0f} us without it"
    )


def free_port() -> int:
    """Return an unused local port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def environment(folder: str, path: Path) -> dict[str, str]:
    """Return the environment of a rank."""
    own = str(Path(__file__).parent)
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(INJECT), own]))
    env.update(DDPTOP_PROBE_SOCK=str(path), DDPTOP_STACKS_DIR=folder)
    env.update(DDPTOP_JOB_ID="benchmark@0", DDPTOP_ATTEMPT="0", OMP_NUM_THREADS="1")
    env.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    env.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), DS_ACCELERATOR="cpu")
    return env


def measure_start(python: str, pairs: int, env: dict[str, str]) -> None:
    """Start an interpreter that does nothing, alternately with and without the probe."""
    without = {name: value for name, value in env.items() if name != "DDPTOP_PROBE_SOCK"}
    del without["PYTHONPATH"]
    differences, plain = [], []
    for index in range(pairs + 1):
        taken = {}
        for has_probe in (index % 2 == 0, index % 2 == 1):
            start_s = time.perf_counter()
            subprocess.run([python, "-c", "pass"], env=env if has_probe else without, check=True)
            taken[has_probe] = time.perf_counter() - start_s
        if index:  # the first pair fills the caches
            differences.append((taken[True] - taken[False]) * 1e3)
            plain.append(taken[False] * 1e3)
    low, middle, high = statistics.quantiles(differences, n=4)
    print(
        f"start: probe cost {middle:+.1f} ms (median of {pairs} pairs; quartiles {low:+.1f} to "
        f"{high:+.1f}); a start without it takes {statistics.median(plain):.1f} ms"
    )


def main() -> int:
    """Run the measurement in a process that loads the probe."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", choices=sorted(TRAININGS), default="torch")
    parser.add_argument("--python", default=sys.executable, help="interpreter of an environment")
    parser.add_argument("--windows", type=int, help="pairs of windows (40; 2 in valgrind)")
    parser.add_argument("--steps", type=int, help="optimizer steps per window (200; 60)")
    parser.add_argument("--accumulate", type=int, default=1, help="batches per step")
    parser.add_argument("--start", action="store_true", help="measure interpreter start")
    parser.add_argument("--instructions", action="store_true", help="count with valgrind")
    options = parser.parse_args()
    valgrind = shutil.which("valgrind")
    if options.instructions and (valgrind is None or platform.machine() != "x86_64"):
        print("cannot count instructions: this requires valgrind and an x86-64 processor")
        return 0
    options.windows = options.windows or (2 if options.instructions else 40)
    options.steps = options.steps or (60 if options.instructions else 200)
    if "DDPTOP_PROBE_SOCK" in os.environ:
        measure(options.framework, options.windows, options.steps, options.accumulate)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "probe.sock"
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        receiver.bind(str(path))
        sizes: list[int] = []

        def read() -> None:
            while data := receiver.recv(4096):
                sizes.append(len(data))

        thread = threading.Thread(target=read)
        thread.start()
        env, status = environment(folder, path), 0
        if options.start:
            measure_start(options.python, options.windows, env)
        else:
            argv = [options.python, *sys.argv]
            if options.instructions:
                env[COUNTED] = "1"
                argv[:0] = [*CALLGRIND, f"--callgrind-out-file={folder}/counts"]
            status = subprocess.run(argv, env=env, cwd=folder, check=False).returncode
            if options.instructions and not status:
                report_counts(Path(folder), options.framework, options.steps)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(b"", str(path))
        thread.join()
        receiver.close()
    if not options.start:
        print(f"datagrams: {len(sizes)}, largest {max(sizes, default=0)} bytes")
    return status


if __name__ == "__main__":
    sys.argv[0] = str(Path(sys.argv[0]).absolute())
    sys.exit(main())
