"""A script's record of its steps: one line per optimizer step and rank."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


class Notes:
    """The file `<attempt>-<rank>.jsonl` in a folder; each line contains step, loss, and PID."""

    def __init__(self, folder: str, rank: int, world_size: int, pause_s: float) -> None:
        attempt = os.environ.get("DDPTOP_ATTEMPT") or os.environ["TORCHELASTIC_RESTART_COUNT"]
        self.rank = rank
        self.world_size = world_size
        self.pause_s = pause_s
        self.parts: list[float] = []
        self.step = 0
        self.path = Path(folder, f"{attempt}-{rank}.jsonl")

    def part(self, loss: float) -> None:
        """One backward pass has this loss, as computed by the script."""
        self.parts.append(loss)

    def stepped(self) -> None:
        """The optimizer has taken a step with the parts since the last one."""
        self.step += 1
        line = {
            "step": self.step,
            "loss": sum(self.parts) / len(self.parts),
            "parts": len(self.parts),
            "pid": os.getpid(),
            "world_size": self.world_size,
            "at": time.time(),
        }
        self.parts.clear()
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        time.sleep(self.pause_s)


def arguments() -> tuple[int, float, str]:
    """Optimizer steps, pause after each in seconds, folder for the notes."""
    words = [word for word in sys.argv[1:] if not word.startswith("--local")]
    return int(words[0]), float(words[1]), words[2]
