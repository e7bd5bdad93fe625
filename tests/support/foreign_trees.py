"""Processes and process trees, made up or read from `trees/`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddptop_runner.foreign.recognize import find_jobs
from ddptop_runner.foreign.types import ForeignJob, ProcessFacts, Unreadable

TREES = Path(__file__).parents[1] / "unit" / "foreign" / "trees"
_SETS = ("threads", "libraries")


@dataclass(frozen=True)
class Recorded:
    """A file in `trees/`."""

    processes: list[ProcessFacts]
    ranks: dict[int, int]
    """PID by rank, as reported by the ranks themselves."""
    devices: dict[int, list[str]]


def read_tree(name: str) -> Recorded:
    content = json.loads((TREES / f"{name}.json").read_text(encoding="utf-8"))
    processes = []
    for values in content["processes"]:
        for key in _SETS:
            if key in values:
                values[key] = frozenset(values[key])
        processes.append(ProcessFacts(**{**values, "argv": tuple(values["argv"])}))
    return Recorded(
        processes,
        {int(rank): pid for rank, pid in content["ranks"].items()},
        {int(pid): uuids for pid, uuids in content.get("devices", {}).items()},
    )


def process(pid: int, ppid: int, command: str | Sequence[str], **values: Any) -> ProcessFacts:
    """A process of user 1000; `command` is split at spaces."""
    argv = tuple(command.split() if isinstance(command, str) else command)
    defaults: dict[str, Any] = {
        "start_ticks": pid * 10,
        "is_zombie": False,
        "session": ppid,
        "uid": 1000,
        "comm": argv[0].rpartition("/")[2][:15] if argv else "",
        "environ": {},
    }
    for key in _SETS:
        if key in values:
            values[key] = frozenset(values[key])
    return ProcessFacts(pid=pid, ppid=ppid, argv=argv, **{**defaults, **values})


def torch_process(pid: int, ppid: int, command: str, **values: Any) -> ProcessFacts:
    return process(pid, ppid, command, **{"libraries": {"torch"}, **values})


def rank_environ(rank: int, size: int = 2, port: int = 29500, **more: str) -> dict[str, str]:
    """The variables that torchrun sets for each rank on one host."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        **more,
    }


def torchrun(agent: int, *ranks: int, port: int = 29500, **more: Any) -> list[ProcessFacts]:
    """An agent with its ranks, whose PIDs follow its own."""
    python = "/venv/bin/python"
    found = [torch_process(agent, 1, f"{python} /venv/bin/torchrun train.py", comm="pt_elastic")]
    size = more.pop("size", len(ranks))
    for index, rank in enumerate(ranks):
        environ = rank_environ(rank, size, port, LOCAL_RANK=str(index), **more)
        environ["LOCAL_WORLD_SIZE"] = str(len(ranks))
        pid = agent + 1 + index
        found.append(torch_process(pid, agent, f"{python} -u train.py", environ=environ))
    return found


def spawned(pid: int, ppid: int, **values: Any) -> ProcessFacts:
    """What multiprocessing starts with the `spawn` method."""
    code = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=4, pipe_handle=6)"
    return process(pid, ppid, ("python", "-c", code, "--multiprocessing-fork"), **values)


def find(
    processes: Iterable[ProcessFacts],
    devices: Mapping[int, Sequence[str]] | None = None,
    own: Sequence[int] = (),
    **more: Any,
) -> tuple[list[ForeignJob], list[Unreadable]]:
    return find_jobs(
        processes,
        devices or {},
        own,
        boot_unix_s=1_700_000_000.0,
        **{"uid": 1000, "user_of": lambda uid: f"user{uid}", **more},
    )


def find_one(processes: Iterable[ProcessFacts], *args: Any, **more: Any) -> ForeignJob:
    jobs, unreadable = find(processes, *args, **more)
    assert len(jobs) == 1, jobs
    assert unreadable == []
    return jobs[0]


def pid_by_rank(job: ForeignJob) -> dict[int, int]:
    return {rank.rank: rank.pid for rank in job.ranks}
