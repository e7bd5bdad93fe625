"""Faults that the bundled training injects on request, to show how a launcher handles them."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

KINDS = (
    *("raise", "gpu", "oom", "exit-0", "exit-7", "kill"),
    *("hang-python", "hang-collective", "nan", "log-flood"),
)
FLOOD_LINES = 100_000


class Faults:
    """What one rank is asked to commit, each once.

    `--fault` is committed in the first attempt at `--fault-step`. A fault whose name is found in
    the file `<--fault-file>.<rank>` is committed at once, and the file is taken away.
    """

    def __init__(self, options: argparse.Namespace, rank: int) -> None:
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        self.kind = options.fault if first and rank == options.fault_rank else None
        self.step = options.fault_step
        self.file = Path(f"{options.fault_file}.{rank}") if options.fault_file else None
        self.aside = dist.new_group()
        if options.fault not in (None, *KINDS):
            raise SystemExit(
                f"--fault {options.fault} is not a known fault; choose from {', '.join(KINDS)}"
            )

    def happen(self, step: int) -> bool:
        """Commit what is due at this step; True: its loss is to become NaN."""
        kind = self.kind if step == self.step else None
        if self.file is not None and self.file.exists():
            kind = self.file.read_text(encoding="utf-8")
            self.file.unlink()
        if kind is not None:
            sys.stdout.write(f"step {step}: injecting fault {kind}\n")
            sys.stdout.flush()
            self._commit(kind)
        return kind == "nan"

    def _commit(self, kind: str) -> None:
        if kind == "raise":
            raise RuntimeError("injected fault")
        if kind == "gpu":
            raise RuntimeError("CUDA error: unknown error")
        if kind == "oom":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if kind.startswith("exit-"):
            sys.exit(int(kind.removeprefix("exit-")))
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "hang-collective":  # waits here for ranks that wait for it elsewhere
            dist.barrier(group=self.aside)
        while kind == "hang-python":
            time.sleep(1.0)
        if kind == "log-flood":
            for number in range(FLOOD_LINES):
                sys.stdout.write(f"flood {number} of {FLOOD_LINES} {'~' * 60}\n")
