"""Folders with training scripts, shared by all hosts, and what the ranks record there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).with_name("scripts")


class Trainer:
    """A folder with `steps.py` (no torch), `ddp.py` (torch), and `fails.py`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "steps.py"
        self.ddp = folder / "ddp.py"
        for script in SCRIPTS.glob("*.py"):
            shutil.copy(script, folder)

    def do(self, rank: int, word: str) -> None:
        """Order a rank to `fail`, `exit STATUS`, `hang`, `skip`, `nan`, or `save`."""
        new = self.folder / f"new-{rank}"
        new.write_text(word)
        new.replace(self.folder / f"do-{rank}")

    def steps(self, attempt: int, rank: int) -> list[dict[str, Any]]:
        """What a rank recorded in an attempt: `step`, `at`, `host`, `is_first`."""
        file = self.folder / f"losses-{attempt}-{rank}.jsonl"
        if not file.exists():
            return []
        return [json.loads(line) for line in file.read_text().split("\n")[:-1]]

    def last_steps(self, attempt: int = -1) -> dict[int, dict[str, Any]]:
        """The last step of each rank, in that attempt or in the latest."""
        files: dict[tuple[int, int], Path] = {}
        for file in self.folder.glob("losses-*.jsonl"):
            _, number, rank = file.stem.split("-")
            files[int(number), int(rank)] = file
        chosen = max((number for number, _ in files), default=0) if attempt < 0 else attempt
        found = {}
        for (number, rank), file in files.items():
            lines = file.read_text().split("\n")[:-1]
            if number == chosen and lines:
                found[rank] = json.loads(lines[-1])
        return found
