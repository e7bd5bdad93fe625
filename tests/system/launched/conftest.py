"""Trainings as users start them, launched unchanged, and compared with their own records."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.real_jobs import JOB_TIMEOUT_S, Job

SCRIPTS = Path(__file__).parent / "scripts"
LIGHT = Path(__file__).parents[2] / "support" / "light" / "without_compiler.py"


class Launched(Job):
    """A launched training, and the folder of its notes."""

    def __init__(
        self,
        name: str,
        cli: Callable[..., subprocess.CompletedProcess[str]],
        notes: Path,
        wait: Callable[..., Any],
    ) -> None:
        super().__init__(name, cli)
        self.notes = notes
        self.wait_until = wait

    def note(self, name: str, step: int) -> dict[str, Any]:
        """What the training itself recorded about one step."""

        def find() -> dict[str, Any] | None:
            lines = (self.notes / f"{name}.jsonl").read_text().splitlines(keepends=True)
            told: dict[str, Any] | None = None
            if len(lines) >= step and lines[step - 1].endswith("\n"):
                told = json.loads(lines[step - 1])
            return told

        found: dict[str, Any] = self.wait_until(find, what=f"the note of step {step} of {name}")
        return found

    def told(self, *ranks: int) -> list[dict[str, Any]]:
        """The ranks' rows, once all of them have a loss; there must be no other rank."""

        def look() -> list[dict[str, Any]] | None:
            status = self.status()
            assert status["state"] in ("starting", "running"), self.cli("logs", self.name).stdout
            rows: list[dict[str, Any]] = status["ranks"]
            assert {row["rank"] for row in rows} <= set(ranks), rows
            done = [row["rank"] for row in rows if row["loss"] is not None]
            return rows if done == list(ranks) else None

        rows: list[dict[str, Any]] = self.wait_until(look, what=f"losses of {self.name}")
        return rows


@pytest.fixture
def start(
    tmp_path: Path,
    ddptop_cli: Callable[..., subprocess.CompletedProcess[str]],
    wait_until: Callable[..., Any],
) -> Callable[..., Launched]:
    """`start(*words)` launches with these options, in a folder with the scripts and `notes`."""
    shutil.copytree(SCRIPTS, tmp_path / "scripts")
    shutil.copy(LIGHT, tmp_path / "scripts")

    def wait(condition: Callable[[], Any], what: str) -> Any:
        return wait_until(condition, JOB_TIMEOUT_S, what)

    def go(*words: str) -> Launched:
        notes = tmp_path / "scripts" / "notes"
        notes.mkdir(exist_ok=True)
        answer = ddptop_cli("launch", "-d", "--cwd", str(notes.parent), *words)
        assert answer.returncode == 0, answer.stderr
        return Launched(answer.stdout.strip(), ddptop_cli, notes, wait)

    return go
