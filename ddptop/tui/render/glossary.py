"""The terms, states, and figures of the interface, each explained in a sentence for the help.

Alerts are explained at length by `ddptop_runner.balance.findings_help`, reasons for throttling by
`device_help`.
"""

from __future__ import annotations

from typing import TypeAlias

Words: TypeAlias = tuple[tuple[str, str], ...]
"""Term and meaning."""

STATES: Words = (
    ("queued", "the job waits until its GPUs are free; none of its processes run yet"),
    ("starting", "the processes have started, but this attempt has not taken a step"),
    ("running", "it takes steps, or what it does instead is known"),
    ("restarting", "an attempt failed; all ranks exit and start again together"),
    ("hung", "no progress within the time learned for this phase, and proof that ranks differ"),
    ("stopping", "it was asked to exit and has some seconds to do so"),
    ("finished", "every rank exited with status 0"),
    ("failed", "a rank exited with an error, and the job will not or may not restart"),
    ("stopped", "a person ended it with stop or kill"),
    ("lost", "the job's processes are gone without a trace (reboot, kill -9 of all)"),
    (
        "gone",
        "the processes of a job that ddptop did not start are gone; how they exited is unknown",
    ),
    (
        "no step 25 s",
        "no rank has taken a step for longer than usual, as during an evaluation or a checkpoint",
    ),
    (
        "stalled",
        "paused for longer than this job ever was, or waiting for an idle rank; not hung yet",
    ),
    ("quiet", "no step and no collective for longer than usual; not considered hung yet"),
    ("paused", "stopped by SIGSTOP or a debugger; SIGCONT resumes it"),
    ("exited", "this rank exited with status 0"),
    (
        "exit 1",
        "this rank exited with that status; SIGKILL and the like: a signal killed it",
    ),
    ("unknown", "this rank's state is unknown: its figures are stale, or it never reported"),
    (
        "blocked",
        "in uninterruptible sleep (D) for a while: waiting for a disk, a mount, or a driver",
    ),
    ("zombie", "it exited, and its parent has not collected its exit status"),
    (
        "stuck",
        "seen from outside: the device shows full utilization at idle power, like a collective "
        "that waits for another rank",
    ),
    (
        "evals",
        "or saves, compiles, ends, no batch (from its data loader): what a rank does instead of "
        "training steps, as detected",
    ),
    ("compiles", "torch.compile is running, as seen from inside the rank"),
    ("saves", "a checkpoint is being written or read"),
    ("no batch", "training waits for its data loader"),
    ("ends", "the script has finished, and its process is about to exit"),
    ("in a collective", "the rank waits in a collective for other ranks"),
)
"""Of jobs and ranks, and what a rank does instead of steps."""

JOBS: Words = (
    ("job", "one launched training, with all its attempts, logs, and history"),
    ("attempt", "one run of the worker group, counted from 0"),
    (
        "group restart",
        "all ranks exit and start again together: DDP cannot continue with one rank replaced",
    ),
    ("restarts", "used and allowed, as in 1/3; progress refills them"),
    ("restarts left", "how often the group may still restart before the job fails"),
    ("ranks", "the number of ranks; for a command, those discovered so far"),
    ("world size", "the number of ranks on all hosts"),
    (
        "step",
        "step of the run, across restarts; if it is unknown where an attempt started, the steps of "
        "that attempt, marked as such",
    ),
    ("steps", "steps per second of the whole group, over the last minute"),
    ("done", "share of the whole run; n/a if its total is unknown"),
    ("progress", "how far the run is, if something tells how many steps it will take"),
    ("ETA", "when it will end at its current pace; needs a known total"),
    ("elapsed", "time since launch, restarts included; or of this attempt, where it says so"),
    ("guarded", "the guardian is running; it restarts the supervisor if that dies"),
    (
        "launcher",
        "the process that a command (launch -- COMMAND) started; its ranks are discovered by "
        "their probes or in its process tree, and its CPU and RSS cover the whole tree",
    ),
    (
        "by",
        "what started the ranks: ddptop, torchrun, mp.spawn ..., ↳ for one that ddptop launched, "
        "with another user's name in front",
    ),
    (
        "uneven",
        "the job's worst imbalance, of mem, util, watt, or step; ▲ ▼ mark a rank's figure that "
        "lies far above or below its job's median",
    ),
    ("imbalance", "largest deviation of a rank or device from the median; 0 % is even"),
    ("set aside", "a broken GPU that the job continues without (--allow-shrink)"),
    (
        "evidence",
        "stacks, logs, devices, and flight records, saved before any signal is sent",
    ),
    ("status", "the most urgent thing to know about this job now"),
    ("last 10m", "the loss of the last ten minutes"),
    ("result", "how an attempt ended: the rank that failed first, not its victims"),
    (
        "checkpoint",
        "the last one detected, at the step of the run, or of the attempt that it names",
    ),
    ("work lost", "steps between the last detected checkpoint and the end of the attempt"),
    ("duration", "how long an attempt ran"),
    ("started", "when an attempt started"),
    ("what happened", "events in order: attempts, failures, restarts, alerts, checkpoints"),
    ("event", "its type, as `ddptop events` prints it"),
)
"""Of jobs."""

RANKS: Words = (
    ("rank", "one training process; rank 0 is the first of the world"),
    ("pid", "process ID of the rank on its host"),
    ("loss", "the latest loss of this rank; nan and inf are shown as such"),
    (
        "Σ4  μ4",
        "the loss is the sum, or the mean, of 4 backward passes: gradient accumulation, undone",
    ),
    (
        "vs median",
        "distance of a rank's loss or step time from the median of all ranks; ▲ and ▼: far off",
    ),
    ("vs med", "short for vs median"),
    ("time", "step time: from one optimizer step to the next"),
    ("data wait", "the part of a step in which training waits for its data loader"),
    ("compute", "the part of a step spent neither waiting for data nor for other ranks"),
    ("sync", "the part of a step in which a rank waits for the others"),
    ("last", "time since the last step of this rank"),
    ("CPU", "CPU of this process and its helpers; 100 % is one core"),
    ("RSS", "memory of this process in RAM, without GPU memory"),
    (
        "replicas",
        "devices that one process trains on (DataParallel); they have no loss of their own",
    ),
    ("stacks", "where each rank is in its code right now, read without pausing it"),
)
"""Of ranks."""

DEVICES: Words = (
    ("device", "a GPU, or a MIG instance of one"),
    ("GPU", "its index on the machine, in PCI order"),
    ("GPUs", "indices of the devices that the job uses"),
    ("cuda:1", "how the rank's own process names its device, which is not the machine's index"),
    ("util", "share of the last second in which a kernel ran; says nothing about efficiency"),
    ("SM", "share of multiprocessor time that this process used"),
    ("memory", "used and total memory of the device; processes keep it even when idle"),
    ("power", "current draw, and the limit set in the driver"),
    ("temp", "chip temperature in °C"),
    ("SM clock", "current clock of the multiprocessors"),
    ("slowed", "the driver lowers the clocks, with its reason: heat, power, or the board"),
    ("ECC", "memory errors of the device; uncorrected ones corrupt results"),
    ("spare rows", "rows of device memory that replaced failing ones (remapped rows)"),
    ("XID", "an error that the driver reported for a device, by number"),
    ("used by", "the job and rank that use it, or the user and program"),
    ("user", "owner of the process"),
    ("command", "command line of the process"),
    ("use", "whether the device is selected for the job"),
    ("day", "the last 24 hours"),
)
"""Of devices."""

REST: Words = (
    ("#", "its number, in order"),
    ("after", "time since the attempt started"),
    ("why", "the reason, as far as it is known"),
    ("different options", "where the command lines of the compared jobs differ"),
    ("own cost", "CPU of this viewer and its sampler, and the sampler's driver queries"),
    ("read-only", "this viewer cannot stop, kill, restart, launch, or remove anything"),
    ("stale", "the job has sent nothing for some seconds; the figures are the last known"),
    ("n/a", "not available; never shown as 0"),
)
"""Of the interface itself."""

SECTIONS: tuple[tuple[str, Words], ...] = (
    ("terms: states", STATES),
    ("terms: jobs", JOBS),
    ("terms: ranks", RANKS),
    ("terms: devices", DEVICES),
    ("terms: the rest", REST),
)
"""By heading, in the order of the help."""

GLOSSARY: Words = tuple(entry for _, words in SECTIONS for entry in words)
"""All of them."""
