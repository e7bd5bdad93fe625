"""Explains what is wrong with a job, why, and what to do: its alerts and other findings. Pure."""

from __future__ import annotations

import datetime as dt
import re
from typing import NamedTuple

from ddptop.job.keys import with_keys
from ddptop.job.record import Job
from ddptop.job.status import brief_place, job_state, severity
from ddptop.job.urgency import alerts_of
from ddptop_runner.base import units
from ddptop_runner.model.snapshot import Alert

_HELP = {
    "loss-nan": """\
The loss on these ranks is NaN (not a number), and so are their gradients. In DDP, the all-reduce
spreads them to every rank, so the model is ruined from that step on.

Common causes: a learning rate that is too high, fp16 without a gradient scaler, log(0),
division by zero, bad data. Restart from the last checkpoint before that step;
torch.autograd.set_detect_anomaly identifies the operation that produced
the NaN.""",
    "loss-inf": """\
The loss on these ranks is infinite: a value overflowed its data type. NaN usually follows.

Common causes: fp16 overflow (use a gradient scaler or bf16), a learning rate that is too high, a
sum instead of a mean.""",
    "gpu-lost": """\
The driver can no longer reach this device ("fallen off the bus"). Processes that use it hang or
fail.

Only a reset or a reboot recovers it. Check dmesg for an XID, and check the power supply and the
seating of the card.""",
    "hung": """\
These ranks are running but have not taken a step for longer than this job allows (--hang-timeout).

Start with the rank that is behind the others: check its stack. ddptop saves the stacks of all ranks
before it restarts them.""",
    "paused": """\
These ranks were paused by a signal (SIGSTOP, Ctrl-Z, a debugger). The others are waiting for them.

kill -CONT PID resumes a rank. Collectives may time out in the meantime.""",
    "stalled": """\
This job has gone longer without a step than during any previous pause, or an idle rank has kept
the others waiting for a minute. The job is not considered hung yet; the alert clears at the next
step.

Start with the rank that the others are waiting for: press {job.stacks} to show the stacks.""",
    "stray-context": """\
Ranks are using memory on a device that belongs to another rank. Each CUDA context takes a few
hundred MiB there, so that device runs out of memory first.

Common causes: a rank makes its first CUDA call before torch.cuda.set_device(local_rank), so the
call goes to cuda:0; torch.load(path) without map_location restores every tensor to the device it
was saved from (use map_location="cpu"); a data loader worker or a library uses cuda:0.""",
    "unused-gpu": """\
None of the job's ranks are using this device, although all of them are running.

Common causes: fewer ranks than devices (--nproc), or all ranks on cuda:0 because
torch.cuda.set_device(local_rank) is missing. Release the device or use it.""",
    "node-unreachable": """\
The link from the job's head to these hosts is broken. The screens show their last values. Their
ranks may still be training, so nothing is restarted. The head keeps trying to connect. If the other
ranks fail in the meantime, it continues on the other hosts after 15 s if --nodes allows that;
otherwise it waits for --node-timeout.

Check the network and sshd on the host, for example with ssh HOST true.""",
    "node-lost": """\
These hosts did not come back in time after the other ranks failed. The job continues without them
if enough others are left (--nodes MIN:MAX).
When a host comes back, it ends its old ranks, and the next attempt includes it again.""",
    "straggler": """\
At each step, all ranks wait for the slowest one. Step times are the same on all of them, so ddptop
identifies this rank by what it does before they synchronize.

If it is waiting for data, check its shard, its storage, the number of data loader workers, and
other processes on its cores. If it computes for longer, check its batch sizes, work that only this
rank does (logging, evaluation, checkpoints), and its device: clocks, temperature, other
processes.""",
    "throttled": """\
The driver reports that this device has lowered its clocks because of heat or its power supply. In
DDP, all ranks wait for the slowest one at every step, so the whole job runs at this device's speed,
and step times are the same on all ranks.

Check the fans, airflow, neighboring cards, and the power supply; see nvidia-smi -q -d
PERFORMANCE.""",
    "xid": """\
The driver has reported an error (XID) for this device since monitoring started. Some are faults in
the program (13, 31, 43); others are faults in the device, its memory, or its links (48, 79, 95), in
which case the device needs a reset or a repair. See dmesg and nvidia-smi -q.""",
    "remap": """\
The device has used up its spare memory rows. Take it out of service and replace it: further errors
cannot be repaired.""",
    "other-process": """\
A process outside this job is using memory on the job's device, and possibly compute time. The rank
on that device has less memory than the others and may be slower, and all others wait for it.

It may be a notebook, another user's job, or a process left over from an earlier run; its PID, user,
and command are shown.""",
    "disk-full": """\
The run folder's disk is full. Training continues, but log lines and history are lost until space is
freed, and checkpoints on the same disk fail.

Remove ended jobs (ddptop rm); df -h shows disk usage.""",
    "disk-low": """\
The run folder's disk is almost full. Once it is full, logs and history will have gaps, and
checkpoints on the same disk will fail.

Remove ended jobs (ddptop rm).""",
    "damaged-file": """\
A file in the run folder cannot be read, for example after a power failure or on a full disk. Its
contents are missing from the screens; training is not affected.""",
    "history": """\
Samples could not be written to the job's history, so charts have a gap. The alert shows the reason:
usually a full disk or a file system that was unmounted.""",
    "set-aside": """\
A GPU failed, and the job is continuing without it (--allow-shrink) on fewer ranks.

Have the GPU checked and reset, then run `ddptop restart JOB` to use it again.""",
    "queued": """\
The job is waiting for its GPUs to become free and will start automatically. The alert shows who is
using them; to use busy GPUs, launch with --force.""",
}


def explain(finding_id: str) -> str:
    """Return what an alert means, its usual causes, and what to do; "" for an unknown one.

    `finding_id` is `Alert.id`; numbers at its end (XID and device) and its host are ignored. Each
    paragraph is one line, for the viewer to wrap; empty lines separate paragraphs.
    """
    text = with_keys(_HELP.get(re.sub(r"(-\d+)*(@.*)?$", "", finding_id), ""))
    return "\n\n".join(paragraph.replace("\n", " ") for paragraph in text.split("\n\n"))


SET_BACK = ("restarting", "starting")
"""Job states right after an attempt failed."""


class Guilty(NamedTuple):
    """The rank whose log shows why a job hangs or failed."""

    rank: int
    attempt: int | None
    """The attempt in which it failed; None for the latest."""
    why: str
    """A few words, such as `killed by SIGKILL`."""


def guilty(view: Job) -> Guilty | None:
    """The rank that the others wait for, or that failed first; None if no rank is to blame."""
    state = view.snapshot
    if state is None:
        return None
    pause = view.pause
    if pause is not None and pause.ranks:
        place = next((one.stands_at for one in state.ranks if one.rank == pause.ranks[0]), None)
        where = "" if place is None else f", last seen at {brief_place(place)}"
        return Guilty(pause.ranks[0], None, f"the other ranks wait for it{where}")
    attempt, cause = None, state.cause
    if cause is None and view.is_live and view.state in SET_BACK and state.attempt:
        attempt, cause = state.attempt - 1, state.previous_cause
    if cause is None or cause.rank is None:
        return None
    if cause.kind == "hang":
        why = "stuck"
    elif cause.signal is not None:
        why = f"killed by {cause.signal}"
    elif cause.exception is not None:
        why = cause.exception
    else:
        why = "failed first"
    place = "" if cause.place is None else brief_place(cause.place)
    return Guilty(cause.rank, attempt, f"{why} at {place}" if place else why)


def findings(view: Job | None, now: dt.datetime) -> tuple[str, list[tuple[str, str]]]:
    """A brief summary of the current findings, and a heading and text for each."""
    if view is None:
        return "the job no longer exists; esc closes", []
    if not view.is_live and not view.is_foreign:
        return _ended(view)
    sections = [(_heading(alert, now), _text(alert)) for alert in alerts_of(view)]
    return f"{'worst first' if sections else 'no problems found'}; esc closes", sections


def _ended(view: Job) -> tuple[str, list[tuple[str, str]]]:
    """For an ended job: why it failed, if it did, and the keys that show more."""
    state, _ = job_state(view.state)
    cause = None if view.snapshot is None else view.snapshot.cause
    if view.state == "failed" and cause is not None:
        rank = "" if cause.rank is None else f"   rank {cause.rank}"
        return (
            "why it failed; esc closes",
            [(f"{state}{rank}", f"{cause.summary}\n\n{with_keys(_MORE_OF_FAILED)}")],
        )
    return (
        "findings are available only while a job is running; esc closes",
        [(state, with_keys(_MORE))],
    )


_MORE = (
    "Press esc, then {view.story} for each attempt and why it ended, or {view.logs} for the logs."
)
_MORE_OF_FAILED = (
    "Press esc, then {view.story} for each attempt and its saved evidence, or {view.logs} for the "
    "logs."
)


def _text(alert: Alert) -> str:
    return f"{alert.message}\n\n{help_text}" if (help_text := explain(alert.id)) else alert.message


def _heading(alert: Alert, now: dt.datetime) -> str:
    symbol, _ = severity(alert.severity)
    parts = [f"{symbol} {alert.severity}"]
    if alert.ranks:
        parts.append(units.name_ranks(alert.ranks, compact=True))
    if alert.gpus:
        parts.append(f"{'GPU' if len(alert.gpus) == 1 else 'GPUs'} {units.ranks(alert.gpus)}")
    if alert.host is not None:
        parts.append(f"host {alert.host}")
    if alert.severity != "info":
        parts.append(f"for {units.duration((now - alert.since).total_seconds())}")
    return "   ".join(parts)
