"""What each alert means and what to do about it, at length."""

from __future__ import annotations

import re

_HELP = {
    "loss-nan": """\
The loss of these ranks is not a number. From then on their gradients are none either, and in DDP
the all-reduce hands them to every rank: the model is lost from the first such step on.

Usual causes: a learning rate too high, fp16 without a gradient scaler, a logarithm or a division
of zero, broken data. Restart from the last checkpoint before it; torch.autograd.set_detect_anomaly
names the operation.""",
    "loss-inf": """\
The loss of these ranks is infinite: a number grew beyond its type. NaN usually follows.

Usual causes: fp16 overflow (a gradient scaler or bf16 helps), a learning rate too high, a sum
where a mean was meant.""",
    "loss-diverged": """\
Ranks see different batches, and some have harder ones, so their losses differ. This rank's loss
moved, and the others' did not: it rose from its own lowest, fell at once from where all lay, or has
stayed where it began while the others learned. It is told once that has lasted for 20 s, and by
more than the losses of this job vary.

Usual causes: broken data or data of another kind in one rank's share, a rank that skips the
gradient all-reduce (no_sync, a parameter without gradient), weights that were not the same at the
start, a device that computes wrongly. Compare a checksum of the parameters between ranks.""",
    "uneven-memory": """\
This rank holds far more or less memory than the median rank, and has for 20 s. The batch has to fit
the fullest device, and a rank whose share keeps growing ends in an out-of-memory error.

Usual causes: outputs or losses that are kept with their graph (append(loss) where
append(loss.item()) is meant), gathering or evaluating on one rank only, a cache without a limit,
batches of other sizes.""",
    "uneven-load": """\
Over the last minute of training, this rank's device, or its CPU in a job without devices, was far
busier or idler than the median rank's. What is measured while no steps are taken does not count.

Of a device that is idle more than the others: look at what its rank waits for, data first. Of a CPU
that is busier: look for work that only this rank does, and for threads that spin.""",
    "uneven-power": """\
Over the last minute of training, this rank's device drew far more or less than the median rank's. A
device that draws less mostly works less: look at its clocks, its throttle reasons and at what its
rank waits for.""",
    "gpu-lost": """\
The driver cannot reach this device any more ("fallen off the bus"). Processes on it hang or fail.

Only a reset or a reboot brings it back. Look at dmesg for an XID, at power and at seating.""",
    "hung": """\
These ranks live and took no step for longer than this job is allowed (--hang-timeout).

The rank that is behind the others is the first to look at: see its stack. ddptop keeps the stacks
of all ranks before it restarts the group.""",
    "paused": """\
These ranks were stopped by a signal (SIGSTOP, Ctrl-Z, a debugger). The others wait for them.

kill -CONT PID lets a rank go on. Collectives may time out meanwhile.""",
    "quiet": """\
These ranks took no step for much longer than their steps usually take. That is no verdict: an
evaluation, a checkpoint or slow data look the same. It ends with the next step.""",
    "stalled": """\
No rank took a step for longer than this job's own pauses have lasted, or the others have waited for
more than a minute for a rank that uses no CPU. No verdict was given yet.

Look at the rank that the others wait for: t shows where it stands in its code, l its log. When the
time allowed is over (--hang-timeout), ddptop keeps the stacks and restarts the group.""",
    "stray-context": """\
Ranks hold memory on a device on which another rank works. Each CUDA context costs some hundred
MiB there, so that device runs out of memory before the others do.

Usual causes: the first CUDA call of a rank comes before torch.cuda.set_device(local_rank), and
goes to cuda:0; torch.load(path) without map_location puts every tensor back on the device it was
saved from (map_location="cpu" helps); a data loader worker or a library that uses cuda:0.

A rank's own device is the one on which it holds most.""",
    "data-parallel": """\
One process works on several devices at once, and the first of them holds more than the others,
as torch.nn.DataParallel does: at every step it copies the model to each device, scatters the
batch, gathers all outputs on the first device and computes the loss there. The first device limits
the batch, and one Python process drives all of them.

DistributedDataParallel runs one process per device: nothing is copied or gathered, gradients are
reduced while backward still runs. Start it with one rank per GPU (ddptop launch --gpus 0-3), call
torch.cuda.set_device(local_rank) and init_process_group, wrap the model in
DistributedDataParallel and give the data loader a DistributedSampler.""",
    "unused-gpu": """\
A device was given to the job, the ranks are at work, and none of them has anything on it.

Usual causes: fewer ranks than devices (--nproc), or all ranks on cuda:0 because
torch.cuda.set_device(local_rank) is missing. Give the device back, or use it.""",
    "no-gpu-work": """\
Most ranks have a CUDA context, and this one has none on any device of the job: it probably
computes on the CPU, and the others wait for it at every step.

Look in its log for a warning of CUDA's start, print torch.cuda.is_available() and
CUDA_VISIBLE_DEVICES in it, and see how the script chooses its device.""",
    "idle-gpu": """\
A rank's own device does nothing while the others' compute. Either the rank steps on and computes
elsewhere (model or batch were not moved to its device), or it has no work.

It is not shown while all others only wait for it, as they do for a checkpoint.""",
    "stuck": """\
The devices read 100 % utilization and draw little more than when idle, and there is no progress: a
kernel of a collective that waits for another rank looks like that. It is likely and not proven:
utilization says that some kernel runs, not that it computes.

Usual causes: ranks that take different branches (one skips a batch, or runs out of data first), a
rank that failed or is stuck elsewhere, a network or NVLink fault. A rank whose device stands at 0 %
meanwhile is the first suspect. Compare the ranks' stacks; torch's
flight recorder, where it is on, tells who is behind.

It is shown after at least a minute without progress, and after three times the longest pause
before; where progress cannot be seen, only after power has dropped for minutes.""",
    "straggler": """\
In each step all ranks wait for the slowest one. The time of a step looks alike on all of them, so
it names nobody: this rank was found by what it does before they meet.

Where it waits for its data: look at its shard, its storage, the number of data loader workers and
the other processes on its cores. Where it is busy for longer: look at the sizes of its batches,
work that only this rank does (logging, evaluation, checkpoints), and at its device: clocks, heat,
other processes.""",
    "throttled": """\
A device lowers its clocks because of heat or of its power supply, and says so itself. In DDP all
ranks wait for the slowest at every step, so the whole job runs at this device's speed, and step
times look alike on all ranks.

Look at fans, airflow, the neighbours' heat and the power supply; nvidia-smi -q -d PERFORMANCE.""",
    "xid": """\
The driver reported an error of this device (an XID) since it is watched. Some are faults of the
program (13, 31, 43), others of the device, its memory or its links (48, 79, 95 ...): then it needs
a reset or a technician. dmesg and nvidia-smi -q tell more.""",
    "ecc": """\
The device found errors in its memory that it could not correct, since its driver was loaded,
which may have been before this job. A process that used that memory was ended or computed with it.

Growing numbers mean a device that should be checked.""",
    "remap": """\
The device has used up its spare rows for broken memory. It should be taken out of service and
replaced: further errors cannot be mended.""",
    "other-process": """\
A process that is not the job's holds memory on the job's device, and may use its time, too. The
rank there has less room than the others and may be slower, and all others wait for it.

It may be a notebook, somebody else's job, or what an earlier run has left behind: pid, user and
command are named.""",
    "disk-full": """\
The disk of the run folder is full. The training goes on; lines of its logs and figures of its
history are lost until there is room, and the script's own checkpoints fail where they are on it.

Remove ended jobs (ddptop rm), or set [runs] keep_bytes in config.toml; df -h names the disk.""",
    "disk-low": """\
The disk of the run folder is nearly full. When it is full, logs and history have gaps, and a
checkpoint on the same disk fails.

Remove ended jobs (ddptop rm), or set [runs] keep_bytes in config.toml.""",
    "log-limit": """\
These ranks print more than a log may hold. The head of each log is kept in an archive beside it,
compressed, and older parts are dropped; nothing waits for it.

Print less, or allow more: launch --log-limit 10G.""",
    "damaged-file": """\
A file of the run folder cannot be read, as after a power cut or a full disk. What it told is
missing from what is shown; the training does not need it.""",
    "history": """\
Figures could not be written to the job's history, so charts have a gap. The reason is named: mostly
a full disk, or a file system that went away.""",
    "set-aside": """\
A GPU was found broken, and the job goes on without it (--allow-shrink), so with fewer ranks.

Have it looked at, then `ddptop restart JOB` takes it in again.""",
    "healthy": """\
A GPU that was set aside answers again without an error. The job goes on as it is, with fewer ranks.

`ddptop restart JOB` takes it in again.""",
    "queued": """\
The job waits until its GPUs are free, and starts by itself. Who holds them is named; launch --force
takes GPUs that are busy.""",
}


def explain(finding_id: str) -> str:
    """Help on an alert: what it means, what usually causes it, what to do; "" for an unknown one.

    `finding_id` is `Alert.id`; numbers at its end (of XID and device) make no
    difference. Lines of a
    paragraph are joined, so that a viewer may wrap them; an empty line parts paragraphs.
    """
    text = _HELP.get(re.sub(r"(-\d+)+$", "", finding_id), "")
    return "\n\n".join(paragraph.replace("\n", " ") for paragraph in text.split("\n\n"))
