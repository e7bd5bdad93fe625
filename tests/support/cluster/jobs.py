"""A job on several hosts, according to its status, its events, and its own script."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support import real_jobs
from tests.support.cluster.machines import Head, Host
from tests.support.cluster.training import Trainer


class Job(real_jobs.Job):
    """A job that a head has launched."""

    def __init__(self, head: Head, name: str, trainer: Trainer) -> None:
        super().__init__(name, head.cli)
        self.head = head
        self.trainer = trainer

    def folder(self) -> Path:
        """Its run folder on the head."""
        return self.head.home / "runs" / self.name

    def last(self, type_: str) -> str:
        """The message of the last event of this type; empty if there is none."""
        events = self.events(type_)
        return str(events[-1]["message"]) if events else ""

    def node(self, host: str) -> dict[str, Any]:
        """The status of one node."""
        nodes = self.status().get("nodes") or []
        return next((node for node in nodes if node["host"] == host), {})

    def attempt(self) -> int:
        """The number of the current attempt."""
        return int(self.status()["attempt"])

    def trains(  # type: ignore[override]
        self, hosts: Sequence[str], since: float | None = None, attempt: int = -1
    ) -> bool:
        """Whether one rank on each of `hosts` has taken a step since then, in the latest attempt.

        Args:
            hosts: in the order of their ranks.
            since: Unix seconds; None: at all.
            attempt: that one, where it matters.
        """
        found = self.trainer.last_steps(attempt)
        return set(found) == set(range(len(hosts))) and all(
            step["host"] == host and (since is None or step["at"] > since)
            for host, step in ((host, found[rank]) for rank, host in enumerate(hosts))
        )

    def stop(self) -> None:
        """End it, whatever its state."""
        self.head.cli("kill", self.name, timeout_s=60)


def launch(
    head: Head, trainer: Trainer, *options: str, hosts: str = "h1,h2", script: str = "steps.py"
) -> Job:
    """Launch one of the training scripts detached, with a rank on each host."""
    words = list(options)
    arguments: list[str] = []
    if "--" in words:
        words, arguments = words[: words.index("--")], words[words.index("--") + 1 :]
    said = head.cli(
        *["launch", "-d", "--hosts", hosts, "--nproc", "1", "--gpus", "none", *words],
        *[str(trainer.folder / script), str(trainer.folder), *arguments],
    )
    assert said.returncode == 0, said.stderr
    return Job(head, said.stdout.strip().splitlines()[-1], trainer)


def now() -> float:
    """Unix seconds, as the training scripts record them."""
    return time.time()


def part_of(job: Job, host: Host) -> list[int]:
    """PIDs of the job's processes on a host, without those of links."""
    return [pid for role in ("guardian", "supervisor", "agent") for pid in host.of(role, job.name)]
