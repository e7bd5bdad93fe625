"""The long explanation of each alert: meaning, usual causes, remedy."""

from __future__ import annotations

import re

_HELP = {
    "loss-nan": """\
The loss of these ranks is not a number, and neither are their gradients. In DDP the all-reduce
passes them to every rank, so the model is lost from the first such step on.

Usual causes: a learning rate that is too high, fp16 without a gradient scaler, a logarithm or
division of zero, broken data. Restart from the last checkpoint before it;
torch.autograd.set_detect_anomaly names the operation.""",
    "loss-inf": """\
The loss of these ranks is infinite: a number overflowed its type. NaN usually follows.

Usual causes: fp16 overflow (use a gradient scaler or bf16), a learning rate that is too high, a sum
instead of a mean.""",
    "loss-diverged": """\
Ranks see different batches, some of them harder, so their losses differ. But this rank's loss
moved while the others did not: it rose from its own minimum, dropped away from the others, or
stayed where it started while the others learned. Reported after 20 s, if the change exceeds the
noise of this job.

Usual causes: broken or different data in one rank's shard, a rank that skips the gradient
all-reduce (no_sync, a parameter without a gradient), weights that differ from the start, a faulty
device. Compare a checksum of the parameters between ranks.""",
    "uneven-memory": """\
This rank has used far more or less memory than the median rank for 20 s. The batch has to fit the
fullest device, and a rank whose memory keeps growing ends in an out-of-memory error.

Usual causes: outputs or losses kept with their graph (append(loss) instead of
append(loss.item())), gathering or evaluating on one rank only, a cache without a limit, different
batch sizes.""",
    "uneven-load": """\
Over the last minute of training, this rank's device (or its CPU, in a job without devices) was far
busier or less busy than the median rank's. Time without steps does not count.

If a device is less busy: check what its rank waits for, data first. If a CPU is busier: look for
work that only this rank does, and for spinning threads.""",
    "uneven-power": """\
Over the last minute of training, this rank's device drew far more or less power than the median
rank's. A device that draws less usually does less work: check its clocks, its throttle reasons, and
what its rank waits for.""",
    "gpu-lost": """\
The driver can no longer reach this device ("fallen off the bus"). Processes on it hang or fail.

Only a reset or a reboot brings it back. Check dmesg for an XID, the power supply, and the
seating of the card.""",
    "hung": """\
These ranks are running but have not taken a step for longer than this job allows (--hang-timeout).

Start with the rank that is behind the others: look at its stack. ddptop saves the stacks of all
ranks before it restarts the group.""",
    "paused": """\
These ranks were stopped by a signal (SIGSTOP, ctrl+z, a debugger). The others wait for them.

kill -CONT PID resumes a rank. Collectives may time out in the meantime.""",
    "quiet": """\
These ranks have not taken a step for much longer than usual. They are not considered hung yet: an
evaluation, a checkpoint, or slow data look the same. The alert clears with the next step.""",
    "stalled": """\
No rank has taken a step for longer than this job has ever paused, or an idle rank has kept the
others waiting for a minute. It is not considered hung yet; the alert clears with the next step.

Start with the rank that the others wait for: t shows the stacks.""",
    "stray-context": """\
Ranks use memory on a device that belongs to another rank. Each CUDA context takes some hundred MiB
there, so that device runs out of memory first.

Usual causes: the first CUDA call of a rank comes before torch.cuda.set_device(local_rank) and goes
to cuda:0; torch.load(path) without map_location restores every tensor to the device it was saved
from (use map_location="cpu"); a data loader worker or a library that uses cuda:0.

A rank's own device is the one where it uses the most memory.""",
    "data-parallel": """\
One process uses several devices, and the first of them uses more memory than the others, as with
torch.nn.DataParallel: at every step it copies the model to each device, scatters the batch, gathers
all outputs on the first device, and computes the loss there. The first device limits the batch, and
one Python process drives all of them.

DistributedDataParallel runs one process per device: nothing is copied or gathered, and gradients
are reduced while backward is still running. Start one rank per GPU (ddptop launch --gpus 0-3), call
torch.cuda.set_device(local_rank) and init_process_group, wrap the model in
DistributedDataParallel, and give the data loader a DistributedSampler.""",
    "unused-gpu": """\
The job has a device that none of its ranks use, although all of them are running.

Usual causes: fewer ranks than devices (--nproc), or all ranks on cuda:0 because
torch.cuda.set_device(local_rank) is missing. Release the device, or use it.""",
    "no-gpu-work": """\
Most ranks have a CUDA context, but this one has none on any device of the job. It probably computes
on the CPU, and the others wait for it at every step.

Check its log for a CUDA warning at startup, print torch.cuda.is_available() and
CUDA_VISIBLE_DEVICES in it, and check how the script chooses its device.""",
    "idle-gpu": """\
A rank's own device is idle while the others compute. Either the rank takes steps but computes
elsewhere (the model or batch was not moved to its device), or it has no work.

Not shown while all other ranks only wait for it, as during a checkpoint.""",
    "stuck": """\
The devices show 100 % utilization but draw little more than idle power, and there is no progress.
A collective kernel that waits for another rank looks like this. It is likely but not proven:
utilization means that a kernel is running, not that it computes.

Usual causes: ranks that take different branches (one skips a batch, or runs out of data first), a
rank that failed or is stuck elsewhere, a network or NVLink fault. Suspect a rank whose device is at
0 % first. Compare the ranks' stacks; torch's flight recorder, if enabled, tells who is behind.

Shown after at least a minute without progress and after three times the longest pause so far; where
progress is unknown, only after power has been low for minutes.""",
    "straggler": """\
At each step all ranks wait for the slowest one. Step times are alike on all of them, so ddptop
identifies this rank by what it does before they meet.

If it waits for its data: check its shard, its storage, the number of data loader workers, and other
processes on its cores. If it computes for longer: check its batch sizes, work that only this rank
does (logging, evaluation, checkpoints), and its device: clocks, heat, other processes.""",
    "throttled": """\
A device lowers its clocks because of heat or its power supply, as the driver reports. In DDP all
ranks wait for the slowest at every step, so the whole job runs at this device's speed, and step
times are alike on all ranks.

Check fans, airflow, neighboring cards, and the power supply; see nvidia-smi -q -d PERFORMANCE.""",
    "xid": """\
The driver reported an error of this device (an XID) since monitoring started. Some are faults of
the program (13, 31, 43), others of the device, its memory, or its links (48, 79, 95 ...): it then
needs a reset or a technician. See dmesg and nvidia-smi -q.""",
    "ecc": """\
The device has had uncorrectable memory errors since its driver was loaded, possibly before this
job. A process that used that memory was killed or computed with corrupt data.

If the count grows, have the device checked.""",
    "remap": """\
The device has used up its spare memory rows. Take it out of service and replace it: further errors
cannot be repaired.""",
    "other-process": """\
A process outside the job uses memory on the job's device, and possibly its time. The rank there has
less memory than the others and may be slower, and all others wait for it.

It may be a notebook, somebody else's job, or a leftover of an earlier run; its pid, user, and
command are shown.""",
    "disk-full": """\
The disk of the run folder is full. Training continues, but log lines and history are lost until
space is freed, and checkpoints on the same disk fail.

Remove ended jobs (ddptop rm), or set [runs] keep_bytes in config.toml; df -h shows the disk.""",
    "disk-low": """\
The disk of the run folder is almost full. Once it is full, logs and history have gaps, and
checkpoints on the same disk fail.

Remove ended jobs (ddptop rm), or set [runs] keep_bytes in config.toml.""",
    "log-limit": """\
These ranks print more than a log may hold. The head of each log is compressed into an archive next
to it, and older parts are dropped. Training does not wait for that.

Print less, or raise the limit: launch --log-limit 10G.""",
    "damaged-file": """\
A file of the run folder cannot be read, for example after a power cut or on a full disk. What it
contained is missing from the screens; training does not need it.""",
    "history": """\
Samples could not be written to the job's history, so charts have a gap. The alert gives the reason:
usually a full disk, or a file system that was unmounted.""",
    "set-aside": """\
A GPU failed, and the job continues without it (--allow-shrink) on fewer ranks.

Have it checked; then `ddptop restart JOB` uses it again.""",
    "healthy": """\
A GPU that was set aside responds again without errors. The job continues on fewer ranks.

`ddptop restart JOB` uses it again.""",
    "queued": """\
The job waits until its GPUs are free and then starts by itself. The alert names who uses them;
launch --force uses busy GPUs.""",
}


def explain(finding_id: str) -> str:
    """Return what an alert means, its usual causes, and what to do; "" for an unknown one.

    `finding_id` is `Alert.id`; numbers at its end (XID and device) are ignored. Each paragraph is
    one line, for the viewer to wrap; empty lines separate paragraphs.
    """
    text = _HELP.get(re.sub(r"(-\d+)+$", "", finding_id), "")
    return "\n\n".join(paragraph.replace("\n", " ") for paragraph in text.split("\n\n"))
