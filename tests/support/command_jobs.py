"""Helpers for tests of jobs that run a command."""

from __future__ import annotations

from typing import Any

from tests.support.real_jobs import Job

from ddptop_runner.host import procs


def pids_of(job: Job) -> list[int]:
    return [rank["pid"] for rank in job.status()["ranks"]]


def steps_of(job: Job) -> list[int]:
    return [rank["step"] or 0 for rank in job.status()["ranks"]]


def launcher_of(job: Job) -> dict[str, Any]:
    launcher: dict[str, Any] = job.status()["launcher"]
    return launcher


def gone(pids: list[int]) -> bool:
    return all(procs.state_letter(pid) in (None, "Z", "X") for pid in pids)
