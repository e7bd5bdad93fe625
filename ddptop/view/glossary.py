"""The terms, states, and figures of the interface, each explained in a sentence for the help.

Alerts are explained at length by `judge.balance.findings`, reasons for throttling by
`device_help`.
"""

from __future__ import annotations

from typing import TypeAlias

from ddptop.view.figures import devices, jobs, ranks

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
    (
        "stuck",
        "the device shows full utilization at idle power (for example, while waiting for "
        "another rank in a collective)",
    ),
    ("eval", "evaluation is running instead of training steps"),
    ("compile", "torch.compile is running"),
    ("ckpt", "a checkpoint is being saved or loaded"),
    ("no batch", "training is waiting for its data loader"),
    ("exiting", "the script has finished, and its process is about to exit"),
    ("in a collective", "the rank is waiting for other ranks in a collective"),
)
"""Of jobs and ranks, and what a rank does instead of steps."""

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
"""Of jobs."""

RANKS: Words = (
    *(one.help for one in ranks.FIGURES if one.help is not None),
    (
        "Σ4  μ4",
        "the loss is the sum (Σ) or the mean (μ) of 4 backward passes (gradient accumulation)",
    ),
    ("vs median", "how far a rank's value is from the median of all ranks; ▲ and ▼ mark outliers"),
    ("vs med", "short for vs median"),
    ("compute", "the part of a step not spent waiting for data or for other ranks"),
    (
        "replicas",
        "devices that one process trains on (DataParallel); there is no separate loss for each "
        "device",
    ),
    ("stacks", "where each rank is in its code right now, captured without pausing it"),
)
"""Of ranks."""

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
"""Of devices."""

REST: Words = (
    ("#", "attempt number"),
    ("date", "date of the attempt or event, in local time"),
    ("after", "time since the attempt started"),
    ("why", "the reason, if known"),
    ("different options", "options that differ between the compared jobs"),
    (
        "ddptop overhead",
        "CPU used by this viewer and by the sampler, and the sampler's driver queries per second",
    ),
    ("read-only", "this viewer cannot stop, kill, restart, launch, or remove anything"),
    ("stale", "the job has sent nothing for several seconds; the values shown are the last known"),
    ("n/a", "not available; never shown as 0"),
)
"""Of the interface itself."""

SECTIONS: tuple[tuple[str, Words], ...] = (
    ("terms: states", STATES),
    ("terms: jobs", JOBS),
    ("terms: ranks", RANKS),
    ("terms: devices", DEVICES),
    ("terms: other", REST),
)
"""By heading, in the order of the help."""

GLOSSARY: Words = tuple(entry for _, words in SECTIONS for entry in words)
"""All of them."""
