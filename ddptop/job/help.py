"""Writes the help: the glossary, and an explanation of what is under the cursor."""

from __future__ import annotations

import datetime as dt
from typing import TypeAlias

from ddptop.job import status as job_status
from ddptop.job.figures import devices, jobs, ranks
from ddptop.job.figures.devices import FIGURES
from ddptop.job.figures.ranks import COMPARED
from ddptop.job.findings import explain
from ddptop.job.keys import key, with_keys
from ddptop.job.loss_trend import LossTrend
from ddptop.job.outliers import oddity, state_of, uneven
from ddptop.job.progress import elapsed_s, median_loss, percent_text, progress_of, step_text
from ddptop.job.status import Listed
from ddptop.job.urgency import Need
from ddptop_runner.base import units
from ddptop_runner.devices import codes
from ddptop_runner.judge.balance.imbalance import RankDeviation
from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import GpuSample, NodeSnapshot, RankSample

Words: TypeAlias = tuple[tuple[str, str], ...]
"""Term and meaning."""

STATES: Words = (
    ("queued", "the job is waiting for free GPUs, or for Slurm to start it again"),
    ("starting", "the processes have started, but this attempt has not taken a step yet"),
    ("running", "taking steps, or in another known phase, such as evaluation"),
    ("restarting", "an attempt failed, and all ranks are restarting together"),
    (
        "hung",
        "no progress within the time learned for this phase, and evidence that the ranks "
        "are out of sync",
    ),
    ("stopping", "the job was asked to exit; after a grace period, remaining processes are killed"),
    ("finished", "every rank exited with status 0"),
    ("failed", "a rank exited with an error, and the job will not restart"),
    ("stopped", "someone ended the job with stop or kill"),
    (
        "lost",
        "the job's processes exited without leaving an exit status (for example, because of a "
        "reboot or kill -9)",
    ),
    (
        "gone",
        "a job that ddptop did not start has exited; its exit status is unknown",
    ),
    (
        "no step 25 s",
        "the ranks have gone longer than usual without a step, which can happen during "
        "evaluation or checkpointing",
    ),
    (
        "stalled",
        "no steps for longer than any earlier pause, or waiting for an idle rank; not "
        "considered hung yet",
    ),
    ("quiet", "no steps or collectives for longer than usual; not considered hung yet"),
    ("paused", "stopped by SIGSTOP or a debugger; SIGCONT resumes it"),
    ("exited", "this rank exited with status 0"),
    (
        "exit 1",
        "this rank exited with the status shown; a name such as SIGKILL means that a signal "
        "killed it",
    ),
    ("unknown", "this rank's state is unknown: its values are stale, or it never reported"),
    (
        "blocked",
        "in uninterruptible sleep (D) for a while, waiting for a disk, a mount, or a driver",
    ),
    ("zombie", "the process exited, but its parent has not collected its exit status"),
    ("eval", "evaluation is running instead of training steps"),
    ("compile", "torch.compile is running"),
    ("ckpt", "a checkpoint is being saved or loaded"),
    ("no batch", "training is waiting for its data loader"),
    ("exiting", "the script has finished, and its process is about to exit"),
    ("in a collective", "the rank is waiting for other ranks in a collective"),
)
"""States of jobs and ranks, and what a rank does instead of taking steps."""

JOBS: Words = (
    ("job", "one training run, with all its attempts, logs, and history"),
    ("attempt", "one run of the worker group, counted from 0"),
    (
        "group restart",
        "all ranks exit and start again together, because DDP cannot replace a single rank",
    ),
    *(one.help for one in jobs.FIGURES if one.help is not None),
    ("restarts left", "how many more times the group may restart before the job fails"),
    ("world size", "the number of ranks across all hosts"),
    ("steps", "steps taken; with /s, /min, or /h, the group's pace over the last minute"),
    ("guarded", "the guardian is running; it restarts the supervisor if the supervisor dies"),
    (
        "launcher",
        "the process that a command (launch -- COMMAND) started; its ranks are discovered "
        "through their probes or its process tree, and its CPU and RSS cover the whole tree",
    ),
    ("imbalance", "largest deviation of a rank or device from the median; 0% is even"),
    ("set aside", "a failed GPU that the job is continuing without (--allow-shrink)"),
    (
        "evidence",
        "stacks, logs, device states, and flight records saved before any signal is sent",
    ),
    ("last 10m", "loss or utilization over the last ten minutes"),
    ("result", "how an attempt ended; for a failure, the rank that failed first"),
    (
        "checkpoint",
        "the last detected checkpoint, with its step in the run or in the named attempt",
    ),
    ("work lost", "steps between the last detected checkpoint and the end of the attempt"),
    ("duration", "how long an attempt ran"),
    ("started", "when the job or attempt started"),
    ("what happened", "events in order: attempts, failures, restarts, alerts, and checkpoints"),
    ("event", "event type, as printed by `ddptop events`"),
)
"""Terms about jobs."""

RANKS: Words = (
    *(one.help for one in ranks.FIGURES if one.help is not None),
    (
        "Σ4  μ4",
        "the loss is the sum (Σ) or the mean (μ) of 4 backward passes (gradient accumulation)",
    ),
    ("vs median", "how far a rank's value is from the median of all ranks; ▲ marks a slow rank"),
    ("vs med", "short for vs median"),
    ("compute", "the part of a step not spent waiting for data or for other ranks"),
    (
        "replicas",
        "devices that one process trains on (DataParallel); there is no separate loss for each "
        "device",
    ),
    ("stacks", "where each rank is in its code right now, captured without pausing it"),
)
"""Terms about ranks."""

DEVICES: Words = (
    ("device", "a GPU, or a MIG instance of one"),
    ("GPU", "device index on the machine, in PCI order"),
    ("GPUs", "indices of the devices that the job uses"),
    (
        "cuda:1",
        "the device's name inside the rank's process; may differ from its index on the machine",
    ),
    *(one.help for one in devices.FIGURES if one.help is not None),
    ("SM", "share of streaming multiprocessor (SM) time used by this process"),
    ("slowed", "the driver is lowering the clocks, and why: heat, power, or the board"),
    ("used by", "the job and rank using the device, or the user and program"),
    ("user", "owner of the process"),
    ("command", "command line of the process"),
    ("use", "whether the device is selected for the job"),
)
"""Terms about devices."""

REST: Words = (
    ("#", "attempt number"),
    ("date", "date of the attempt or event, in local time"),
    ("after", "time since the attempt started"),
    ("why", "the reason, if known"),
    ("different options", "options that differ between the compared jobs"),
    ("ddptop overhead", "CPU used by this viewer and by the sampler"),
    ("read-only", "this viewer cannot stop, kill, restart, launch, or remove anything"),
    ("stale", "the job has sent nothing for several seconds; the values shown are the last known"),
    ("n/a", "not available; never shown as 0"),
)
"""Terms about the interface."""

SECTIONS: tuple[tuple[str, Words], ...] = (
    ("terms: states", STATES),
    ("terms: jobs", JOBS),
    ("terms: ranks", RANKS),
    ("terms: devices", DEVICES),
    ("terms: other", REST),
)
"""Terms by heading, in the order of the help."""

GLOSSARY: Words = tuple(entry for _, words in SECTIONS for entry in words)
"""Every term."""


_RANK_STATES = {
    "starting": "it is running but has not taken a training step yet",
    "running": "it is training",
    "exited": "it exited with status 0",
    "failed": "it exited with a nonzero status or was killed by a signal",
    "stopped": "ddptop ended it (stop, kill, or a group restart)",
    "unknown": "it has not reported its state",
    "blocked": "it has been in uninterruptible sleep (disk or driver) for a while",
}


def glossary(*names: str) -> list[tuple[str, str]]:
    """Return these terms from the glossary, in order, skipping unknown ones."""
    known = dict(GLOSSARY)
    return [(name, known[name]) for name in names if name in known]


def explain_state(state: str) -> list[tuple[str, str]]:
    """Return what a state of a rank or job means."""
    meaning = _RANK_STATES.get(state) or dict(GLOSSARY).get(state)
    return [(state, meaning)] if meaning else []


def explain_rank(
    rank: RankSample, apart: RankDeviation, now: dt.datetime, live: bool
) -> list[tuple[str, str]]:
    """Return the rank's state, how it differs from the others, and the terms on its card."""
    symbol = state_of(rank, now, live)[0]
    sections = [(f"rank {rank.rank}: {symbol}", _about(rank))]
    if live and (odd := oddity(rank, apart)) is not None:
        sections.append((odd[0], _far(apart)))
    if rank.loss_state in ("nan", "inf") and (text := explain(f"loss-{rank.loss_state}")):
        sections.append((f"loss {rank.loss_state}", text))
    terms = ("busy", "vs median", "step", "n/a") if apart.is_slow else ("vs median", "step", "n/a")
    return [*sections, *glossary(*terms)]


def _about(rank: RankSample) -> str:
    meaning = dict(explain_state(rank.state)).get(rank.state, rank.state)
    return f"{meaning}; {rank.state_reason}" if rank.state_reason else meaning


def _far(apart: RankDeviation) -> str:
    parts = [
        f"{one.name} {units.deviation(apart.of(figure))}"
        for figure, one in COMPARED.items()
        if apart.of(figure) is not None
    ]
    return (
        f"compared with the median of the job's ranks: {', '.join(parts)}. "
        f"Press {key('rank.open')} for details, such as what the rank is waiting for"
    )


def explain_heat(figure: str) -> list[tuple[str, str]]:
    """Explain what the cells of the map show."""
    return [
        (
            f"map: {figure}",
            "each cell is a rank; a taller block means a higher value (see the legend below). "
            f"A dot means unknown. Press {key('ranks.figure')} for the next metric, or "
            f"{key('ranks.shape')} for cards or the table",
        )
    ]


_JOB_STATES = {
    "queued": "It is waiting for free GPUs, or for Slurm to start it again.",
    "starting": "Its processes are starting; no rank has taken a step yet.",
    "running": "Its ranks are training. Problems are shown under status.",
    "restarting": "An attempt failed, and all ranks are restarting together.",
    "hung": "Its ranks are running but have not taken a step within its hang timeout.",
    "stopping": "It was asked to exit; remaining processes are killed after the grace period.",
    "finished": "Every rank exited with status 0.",
    "failed": "A rank failed, and the job did not restart. Press {view.story} to show its story.",
    "stopped": "Someone stopped it.",
    "lost": "Its processes exited without leaving an exit status (for example, because of a "
    "reboot).",
}
_PAUSES = {
    "no_step": "Its ranks are running, but have gone longer than usual without a step, which "
    "can happen during evaluation.",
    "stalled": "It has gone longer without a step than ever before, or is waiting for an "
    "idle rank.",
}
_NEEDS = {
    Need.FAILED: "It is listed first because it failed and has not been opened since; press "
    "{job.open} to open it.",
    Need.HUNG: "It is listed first because it is not making progress.",
    Need.LOST: "It is listed first because its result is unknown.",
    Need.ERROR: "It is listed near the top because of an error; press {job.findings} to "
    "show the error and what to do.",
    Need.WARNING: "It is listed near the top because of a warning; press {job.findings} to "
    "show the warning and what to do.",
    Need.UNEVEN: "It is listed near the top because one rank is lagging and the others are "
    "waiting for it.",
}
_TRENDS = {
    "falling": "↘: falling",
    "flat": "→: flat (within noise)",
    "rising": "↗: rising",
}


def explain_job(one: Listed, trend: LossTrend | None, now: dt.datetime) -> list[tuple[str, str]]:
    """Return headings and texts for the job's state, status, and figures."""
    view, snapshot = one.view, one.view.snapshot
    state, _ = job_status.state_of(view, now)
    pause = view.pause
    meaning = _JOB_STATES.get(view.state, "This version of ddptop does not recognize this state.")
    if pause is not None and pause.state in _PAUSES:
        meaning, trend = _PAUSES[pause.state], None
    if view.is_foreign:
        meaning = "ddptop did not start it and can see only its processes and devices."
    found = [
        (
            f"{view.name}: {state}",
            with_keys(f"{meaning} {_NEEDS.get(one.attention.need, '')}".strip()),
        ),
        ("status", one.attention.sentence),
    ]
    if snapshot is None:
        return found
    found += [
        (f"alert: {alert.id}", text)
        for alert in snapshot.alerts
        if view.is_live and (text := explain(alert.id))
    ]
    progress = progress_of(view)
    done, eta_s = percent_text(progress), progress.eta_s if progress else None
    how_far = f"step {step_text(run_step.of_snapshot(snapshot), progress, view.is_live)}"
    how_far += f", {done} of the run" if done else "; the total is unknown"
    if view.is_live:
        how_far += (
            f", {units.duration(eta_s)} left at the current pace" if eta_s is not None else ""
        )
    found.append(("progress", f"{how_far}. Elapsed: {units.duration(elapsed_s(view, now))}."))
    found.append(("loss", _loss(snapshot, trend)))
    if view.is_live:
        found.append(("uneven", _uneven(snapshot)))
    return found


def _loss(snapshot: NodeSnapshot, trend: LossTrend | None) -> str:
    value, state = median_loss(snapshot)
    if value is None and state is None:
        return "n/a: no loss found in probe reports or rank output."
    text = f"{units.loss(value, state)}, the median across ranks."
    if trend is not None:
        text += f" {_TRENDS[trend.way]} over the last {trend.span}."
    return text


def _uneven(snapshot: NodeSnapshot) -> str:
    known = uneven(snapshot)
    if not known:
        return "n/a: needs values from at least two ranks or devices."
    parts = ", ".join(f"{one.name} {text}" for one, (text, _) in known)
    return f"{parts}: largest deviation from the median of all ranks; 0% is even."


def slowed_by(gpu: GpuSample) -> list[str]:
    """Why its clocks are lowered, except for harmless reasons."""
    return [
        reason for reason in gpu.throttle_reasons or [] if codes.throttle(reason).weight != "usual"
    ]


def explain_device(gpu: GpuSample) -> list[tuple[str, str]]:
    """Return headings and texts for the device and each of its figures."""
    part = ", MIG instance" if gpu.parent_uuid is not None else ""
    name = f"{gpu.name}{part}" if gpu.name else f"unnamed device{part}"
    found = [(f"GPU {gpu.index}", f"{name}. Devices are numbered in PCI order, as in nvidia-smi.")]
    if gpu.lost:
        text = "The driver can no longer reach the device. Only a reset or a reboot can recover it."
        return [*found, ("lost", f"{gpu.note}. {text}" if gpu.note else text)]
    if gpu.note:
        found.append(("note", gpu.note))
    found += [
        (f"slowed: {reason}", _sentence(codes.throttle(reason).remedy))
        for reason in gpu.throttle_reasons or []
    ]
    for code in gpu.xid or []:
        xid = codes.xid(code)
        found.append((f"XID {code}", f"{_sentence(xid.meaning)} {_sentence(xid.remedy)}"))
    found += [(f"{one.key} {one.text(gpu)}", one.explain(gpu)) for one in FIGURES if one.explain]
    if gpu.unknown:
        text = "; ".join(f"{field.replace('_', ' ')}: {why}" for field, why in gpu.unknown.items())
        found.append(("n/a", f"Not available: {text}."))
    return found


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
