"""A launched framework, compared with its script's own record."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.real_jobs import Job

from ddptop_runner.host import procs

STOP_S = 15.0
"""How long a job's processes may still exist after `ddptop stop` if cores are idle."""

STOP_WHEN_BUSY_S = 40.0
"""The same if processes compete for cores: frameworks need, and get, much CPU time to exit."""

FIGURES = 6
"""How many different steps of each rank are compared; a snapshot per second provides one each."""


def _is_alive(process: tuple[int, int]) -> bool:
    pid, start = process
    return procs.start_ticks(pid) == start


class Run(Job):
    """A job, and the notes of its script."""

    def __init__(
        self,
        name: str,
        cli: Callable[..., subprocess.CompletedProcess[str]],
        folder: Path,
        wait_until: Callable[..., Any],
    ) -> None:
        super().__init__(name, cli)
        self.notes_folder = folder
        self.wait_until = wait_until

    def notes(self, rank: int, attempt: int = 0) -> dict[int, dict[str, Any]]:
        """What the script itself computed: {step: {loss, pid, world_size ...}}."""
        file = self.notes_folder / f"{attempt}-{rank}.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]
        return {line["step"]: line for line in lines}

    def note_of(
        self, rank: int, attempt: int, step: int
    ) -> tuple[dict[int, dict[str, Any]], dict[str, Any]]:
        """All notes of a rank, and that of one step, which ddptop may know a moment earlier."""
        deadline = time.monotonic() + 5.0
        while step not in (notes := self.notes(rank, attempt)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return notes, notes[step]

    def told(self) -> str:
        """What to look at if this job does not behave as it should."""
        status = self.status()
        ranks = [(row["rank"], row["pid"], row["state"], row["step"]) for row in status["ranks"]]
        log = self.cli("logs", self.name, "-r", "all", "-n", "20").stdout
        return f"{status['state']}, attempt {status['attempt']}, {ranks}, {status['cause']}\n{log}"

    def until(self, condition: Callable[[], Any], what: str, timeout_s: float = 240.0) -> Any:
        """Wait; if it fails, show the job's state, at once if it has ended."""
        deadline = time.monotonic() + timeout_s
        while not (answer := condition()):
            ended = self.status()["state"] in ("finished", "failed", "stopped", "lost")
            if ended or time.monotonic() > deadline:
                pytest.fail(f"not within {timeout_s:g} s: {what}\n{self.told()}", pytrace=False)
            time.sleep(0.1)
        return answer

    def until_ranks_step(self, world_size: int, attempt: int = 0, step: int = 3) -> None:
        """Wait until every rank of this attempt is training."""

        def do_all() -> bool:
            status = self.status()
            steps = [row["step"] or 0 for row in status["ranks"]]
            there = len(steps) == world_size and min(steps) >= step
            return bool(status["attempt"] == attempt and status["state"] == "running" and there)

        self.until(do_all, f"{world_size} ranks of attempt {attempt} at step {step}")

    def compare(
        self,
        world_size: int,
        *,
        attempt: int = 0,
        figures: int = FIGURES,
        **expected: Any,
    ) -> None:
        """Check every rank repeatedly: each value must be the one that the script computed.

        Args:
            world_size: ranks that must be there, from 0 on.
            attempt: that must be going on.
            figures: how many different steps of each rank are compared.
            expected: values of a rank's keys, such as `loss_parts=2`.
        """
        seen: dict[int, dict[int, float]] = {rank: {} for rank in range(world_size)}

        def look() -> bool:
            asked_at = time.time()
            status = self.status()
            assert [row["rank"] for row in status["ranks"]] == list(range(world_size))
            assert status["world_size"] == world_size
            for row in status["ranks"]:
                notes, note = self.note_of(row["rank"], attempt, row["loss_step"])
                assert row["loss"] == pytest.approx(note["loss"], rel=1e-4), (row, note)
                assert (row["pid"], row["loss_source"]) == (note["pid"], "probe")
                assert note["world_size"] == world_size
                assert row["step"] <= max(notes) + 1
                assert {key: row[key] for key in expected} == expected
                seen[row["rank"]][row["loss_step"]] = row["loss"]
                # no more than 2 s behind what the script has done
                old = [step for step, line in notes.items() if line["at"] < asked_at - 3.0]
                assert row["step"] >= max(old, default=0)
            return all(len(steps) >= figures for steps in seen.values())

        self.until(look, f"{figures} figures of each of {world_size} ranks")

    def kill_rank_and_see_restart(self, rank: int, world_size: int) -> None:
        """kill -9 of one rank: another attempt follows, and the cause names the rank."""
        attempt = self.status()["attempt"]
        pid = self.rank(rank)["pid"]
        os.kill(pid, signal.SIGKILL)
        self.until_ranks_step(world_size, attempt + 1)
        status = self.status()
        assert status["restarts_used"] == attempt + 1
        cause = status["previous_cause"]
        assert cause["rank"] == rank, cause
        assert str(pid) in cause["summary"]
        assert all(row["pid"] != pid for row in status["ranks"])

    def stop_leaves_nothing(self) -> float:
        """Run `ddptop stop`; returns the seconds until no process of the job was left."""
        marked = self.marked_processes()
        assert marked
        began = time.monotonic()
        answer = self.cli("stop", self.name, timeout_s=60)
        took_s = time.monotonic() - began
        assert answer.returncode == 0, answer.stderr
        is_busy = os.getloadavg()[0] > 2 * (os.cpu_count() or 1)
        limit_s = STOP_WHEN_BUSY_S if is_busy else STOP_S
        assert took_s < limit_s, f"stop took {took_s:.1f} s"
        self.wait_until(
            lambda: not self.marked_processes() and not any(map(_is_alive, marked.items())),
            timeout_s=limit_s - took_s,
            what="every process of the job to be gone",
        )
        assert self.status()["state"] == "stopped"
        return took_s

    def marked_processes(self) -> dict[int, int]:
        """{pid: start} of every process with this job's ID."""
        found = {}
        for pid in procs.all_pids():
            variables = procs.environ_of(pid)
            ticks = procs.start_ticks(pid)
            is_its = variables.get("DDPTOP_JOB_ID", "").startswith(f"{self.name}@")
            is_here = variables.get("DDPTOP_HOME") == os.environ["DDPTOP_HOME"]
            if is_its and is_here and ticks is not None:
                found[pid] = ticks
        return found
