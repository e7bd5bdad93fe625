"""The values of jobs that a filter compares."""

from __future__ import annotations

import datetime as dt

from ddptop.view.filter import Facts, Vocabulary
from ddptop.view.host_words import hosts_of
from ddptop.view.jobs import elapsed_s, median_loss
from ddptop.view.progress import progress_of
from ddptop_runner.foreign.types import ForeignView
from ddptop_runner.job.registry import AnyJob, pause_of
from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import NodeSnapshot

JOB_WORDS = Vocabulary(
    ("state", "user", "gpu", "by", "host", "name"),
    {
        "loss": "",
        "step": "",
        "done": "%",
        "ranks": "",
        "gpus": "",
        "restarts": "",
        "alerts": "",
        "eta": "s",
        "elapsed": "s",
        "util": "%",
        "mem": "bytes",
    },
)
"""Of the table of jobs; `util` is the least of a job's devices, `mem` the most."""


def job_facts(view: AnyJob, user: str, now: dt.datetime, said: str = "") -> Facts:
    """Of a job.

    Args:
        view: the job.
        user: whose it is.
        now: for what has passed.
        said: what the table says of it besides.
    """
    snapshot = view.snapshot
    by = view.launcher if isinstance(view, ForeignView) else f"ddptop {view.launcher}"
    state = "gone" if isinstance(view, ForeignView) and view.state == "lost" else view.state
    pause = pause_of(view)
    fields: dict[str, tuple[str, ...]] = {
        "state": (state, *(() if pause is None else (pause.state.replace("_", " "),))),
        "user": (user,),
        "by": tuple(by.split()),
        "host": tuple(dict.fromkeys((view.host, *hosts_of(snapshot)))),
        "name": (view.job,),
        "gpu": (),
    }
    text = " ".join((view.job, state, user, by, view.host, view.command, said))
    if snapshot is None:
        return Facts(text, fields, {"ranks": view.world_size})
    held = held_by(snapshot)
    fields["gpu"] = tuple(str(index) for _, index in sorted(held))
    progress = progress_of(view)
    fraction = None if progress is None else progress.fraction
    utils = [gpu.util_percent for gpu in snapshot.gpus if gpu.util_percent is not None]
    memory = [gpu.mem_used_bytes for gpu in snapshot.gpus if gpu.mem_used_bytes is not None]
    figures: dict[str, float | None] = {
        "loss": _loss(snapshot),
        "step": None if (run := run_step.of_snapshot(snapshot)) is None else run.step,
        "done": None if fraction is None else 100 * fraction,
        "ranks": snapshot.world_size or view.world_size,
        "gpus": len(held),
        "restarts": snapshot.restarts_used,
        "alerts": len(snapshot.alerts) if view.is_live else 0,
        "eta": progress.eta_s if progress is not None and view.is_live else None,
        "elapsed": elapsed_s(view, now),
        "util": min(utils, default=None),
        "mem": max(memory, default=None),
    }
    return Facts(text, fields, figures)


def held_by(snapshot: NodeSnapshot) -> set[tuple[str, int]]:
    """Host and machine index of a job's devices."""
    own = {(rank.host, rank.gpu) for rank in snapshot.ranks if rank.gpu is not None}
    return own | {(gpu.host or snapshot.host, gpu.index) for gpu in snapshot.gpus}


def _loss(snapshot: NodeSnapshot) -> float | None:
    return median_loss(snapshot)[0]
