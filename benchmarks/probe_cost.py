"""What the probe costs a training step: hooks in and out, in alternating windows of one run.

    python benchmarks/probe_cost.py [--windows 40] [--steps 200]

Starts itself once more as a rank of a job with a socket that is really read, so that the sender's
thread does its share. A small CPU model keeps the step short: what is added to it is the same for
any model. The figures are medians over the windows of (with hooks - without), per step: of the time
that passed, and of the CPU time of the training's thread, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

INJECT = Path(__file__).parents[1] / "runner" / "ddptop_runner" / "probe" / "inject"


def train(windows: int, steps: int) -> None:
    """Time windows of training with and without the hooks, and print the difference."""
    import torch

    hooks = sys.modules["_ddptop_probe"].current_session().hooks
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.utils.data.TensorDataset(torch.randn(steps, 16), torch.randn(steps, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=1)

    def window_us() -> tuple[float, float]:
        start_s, cpu_start_s = time.perf_counter(), time.thread_time()
        for inputs, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
        passed_s, cpu_s = time.perf_counter() - start_s, time.thread_time() - cpu_start_s
        return passed_s / steps * 1e6, cpu_s / steps * 1e6

    window_us()
    passed, cpu, plain = [], [], []
    for index in range(windows):
        taken = {}
        # which of the two comes first alternates, so that a drift cancels out
        for has_hooks in (index % 2 == 0, index % 2 == 1):
            hooks.disarm()
            if has_hooks:
                hooks.arm()
            taken[has_hooks] = window_us()
        passed.append(taken[True][0] - taken[False][0])
        cpu.append(taken[True][1] - taken[False][1])
        plain.append(taken[False][0])
    low, middle, high = statistics.quantiles(passed, n=4)
    print(
        f"probe cost: {middle:+.1f} us per step (median of {windows} pairs of "
        f"{steps} steps; quartiles {low:+.1f} to {high:+.1f}), CPU time "
        f"{statistics.median(cpu):+.1f} us; a step without it takes "
        f"{statistics.median(plain):.0f} us"
    )


def main() -> int:
    """Run the measurement in a process that the probe is in."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--windows", type=int, default=40)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    if "DDPTOP_PROBE_SOCK" in os.environ:
        train(options.windows, options.steps)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "probe.sock"
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        receiver.bind(str(path))
        heard: list[int] = []

        def read() -> None:
            while data := receiver.recv(4096):
                heard.append(len(data))

        thread = threading.Thread(target=read)
        thread.start()
        env = dict(os.environ, PYTHONPATH=str(INJECT), DDPTOP_PROBE_SOCK=str(path))
        env.update(DDPTOP_JOB_ID="benchmark@0", DDPTOP_ATTEMPT="0", OMP_NUM_THREADS="1")
        env.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", DDPTOP_STACKS_DIR=folder)
        status = subprocess.run([sys.executable, *sys.argv], env=env, check=False).returncode
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(b"", str(path))
        thread.join()
        receiver.close()
    print(f"datagrams: {len(heard)}, the largest of {max(heard, default=0)} bytes")
    return status


if __name__ == "__main__":
    sys.exit(main())
