"""Every word, state and figure of the interface in a sentence, for the help.

A word stands once. Alerts are explained at length by `ddptop_runner.balance.findings_help`, what
slows a device by `device_help`.
"""

from __future__ import annotations

from typing import TypeAlias

Words: TypeAlias = tuple[tuple[str, str], ...]
"""Word and meaning."""

STATES: Words = (
    ("queued", "the job waits until its GPUs are free; nothing of it runs yet"),
    ("starting", "the processes are there, and no step has been seen of this attempt"),
    ("running", "it takes steps, or what it does instead is known"),
    ("restarting", "an attempt has failed; all ranks end and start again together"),
    ("hung", "no progress within the time learned for this phase, with proof that ranks differ"),
    ("stopping", "it was asked to end, and has some seconds to do so"),
    ("finished", "every rank has ended with exit status 0"),
    ("failed", "a rank has ended with an error and the job is not started again, or may not be"),
    ("stopped", "a person ended it: stop, or kill"),
    ("lost", "the job's processes are gone without having said why (reboot, kill -9 of all)"),
    (
        "gone",
        "the processes of a job that ddptop did not start are gone; nobody saw how they ended",
    ),
    (
        "no step 25 s",
        "no rank took a step for longer than usual, as in an evaluation or a checkpoint",
    ),
    ("stalled", "longer than this job's own pauses, or an idle rank is waited for; no verdict yet"),
    ("quiet", "no step and no collective for longer than usual; no verdict yet"),
    ("paused", "stopped by SIGSTOP or a debugger; SIGCONT lets it go on"),
    ("exited", "this rank has ended with exit status 0"),
    (
        "exit 1",
        "this rank has ended with that exit status; SIGKILL and the like: ended by that signal",
    ),
    ("unknown", "nothing is known of this rank now: its figures are old, or it never spoke"),
    (
        "blocked",
        "in uninterruptible sleep (D) at every look: waits for a disk, a mount or a driver",
    ),
    ("zombie", "has ended, and its parent has not asked how"),
    (
        "stuck",
        "seen from outside: the device reads full utilization at idle power, as a collective does "
        "that waits for another rank",
    ),
    (
        "evals",
        "or saves, compiles, ends, no batch (from its data loader): what a rank has been doing for "
        "a while instead of training steps; seen, never declared",
    ),
    ("compiles", "torch.compile is at work: seen from inside of the rank"),
    ("saves", "a checkpoint is being written or read"),
    ("no batch", "the training waits for its data loader"),
    ("ends", "the script is over, and its process is about to end"),
    ("in a collective", "the rank waits in a collective for other ranks"),
)
"""Of jobs and ranks, and what a rank does instead of steps."""

JOBS: Words = (
    ("job", "one training that was launched, with all its attempts, logs and history"),
    ("attempt", "one life of the worker group, counted from 0"),
    (
        "group restart",
        "all ranks end and start again together: DDP cannot go on with one rank replaced",
    ),
    ("restarts", "used and allowed: 1/3; progress gives them back"),
    ("restarts left", "how often the group may still restart before the job counts as failed"),
    ("ranks", "how many the job has; of a command those that were seen"),
    ("world size", "how many ranks the job has, on all hosts"),
    (
        "step",
        "of the run, over restarts; where nothing tells at which step an attempt began, the steps "
        "of that attempt, which are then called its own",
    ),
    ("steps", "a second: of the whole group, over the last minute"),
    ("done", "steps of all that the run will take; n/a where nothing tells how many"),
    ("progress", "how far the run is, where something tells how many steps it will take"),
    ("ETA", "when it ends at its pace of now; without a total there is none"),
    ("elapsed", "since the launch, restarts included; of this attempt where the screen says so"),
    ("guarded", "the guardian lives: it brings the supervisor back if that dies"),
    (
        "launcher",
        "the process that a command (launch -- COMMAND) started; its ranks are found by their "
        "probes or in its tree, its CPU and RSS are of the whole tree",
    ),
    (
        "by",
        "who started the ranks: ddptop, torchrun, mp.spawn ..., ↳ one that ddptop launched; before "
        "it another user's name",
    ),
    (
        "uneven",
        "the job's worst imbalance, and of what: mem, util, watt or step; ▲ ▼ mark a rank's "
        "figure that lies far above or below its job's median",
    ),
    ("imbalance", "greatest rank or device against the median: 0 % is even"),
    ("set aside", "a broken GPU that the job goes on without (--allow-shrink)"),
    (
        "evidence",
        "stacks, logs, devices and flight records, kept before any signal is sent",
    ),
    ("how it is", "the one thing to know about this job now; the most urgent one first"),
    ("last 10m", "the loss of the last ten minutes, drawn small"),
    ("how it ended", "the cause of an attempt's end: the rank that failed first, not its victims"),
    (
        "checkpoint",
        "the last that was seen, at the step of the run; where that is not known it says of which "
        "attempt's steps",
    ),
    ("work lost", "steps between the last checkpoint that was seen and the end of the attempt"),
    ("ran for", "how long an attempt lived"),
    ("started", "when an attempt began"),
    ("what happened", "events in order: attempts, failures, restarts, alerts, checkpoints"),
    ("event", "its kind, as `ddptop events` prints it"),
)
"""Of jobs."""

RANKS: Words = (
    ("rank", "one training process; rank 0 is the first of the world"),
    ("pid", "the number of the rank's process on its host"),
    ("loss", "the latest one that this rank computed; nan and inf are shown as such"),
    (
        "Σ4  μ4",
        "the loss is the sum, or the mean, of 4 backward passes: gradient accumulation, undone",
    ),
    (
        "vs median",
        "how far a rank's loss or step time is from the median of all ranks; ▲ and ▼: far off",
    ),
    ("vs med", "the same, where there is little room"),
    ("time", "of a step: from one optimizer step to the next"),
    ("data wait", "the part of a step in which the training waits for its data loader"),
    ("compute", "the part of a step that is neither waiting for data nor for other ranks"),
    ("sync", "the part of a step in which a rank waits for the others"),
    ("last", "since the last step of this rank"),
    ("CPU", "of this process and its helpers: 100 % is one core"),
    ("RSS", "memory of this process in RAM, without what lies on the GPU"),
    ("replicas", "devices that one process trains on (DataParallel): none has a loss of its own"),
    ("stacks", "where each rank stands in its code right now, taken without stopping it"),
)
"""Of ranks."""

DEVICES: Words = (
    ("device", "a GPU, or a MIG instance of one"),
    ("GPU", "its index on the machine, in PCI order"),
    ("GPUs", "indices of the devices that the job holds"),
    ("cuda:1", "the name by which the rank's own process knows its device, which is not its index"),
    ("util", "share of the last second in which some kernel ran; not how well it computed"),
    ("SM", "share of the multiprocessors' time that this process had"),
    ("memory", "used and whole memory of the device; processes hold it even when idle"),
    ("power", "drawn now, and the limit that the driver holds"),
    ("temp", "of the chip, in °C"),
    ("SM clock", "of the multiprocessors, now"),
    ("slowed", "the driver holds the clocks down, and says why: heat, power, the board"),
    ("ECC", "errors of the device's memory: those that could not be corrected harm results"),
    ("spare rows", "rows of device memory that replaced failing ones (remapped rows)"),
    ("XID", "an error that the driver reported for a device, by number"),
    ("held by", "the job and rank that use it; else user and program"),
    ("user", "who started the process"),
    ("command", "the process's command line"),
    ("use", "whether the device is chosen for the job"),
    ("day", "the last 24 hours, drawn small"),
)
"""Of devices."""

REST: Words = (
    ("#", "its number, in order"),
    ("after", "since the attempt began"),
    ("why", "the reason, as far as it is known"),
    ("given otherwise", "what the command lines of the compared jobs say differently"),
    ("own cost", "CPU of this viewer and its sampler, and the sampler's questions to the driver"),
    ("read-only", "this viewer refuses to stop, kill, restart, launch or remove anything"),
    ("figures are old", "nothing new came from the job for some seconds; what is shown was true"),
    ("n/a", "the machine does not say; never drawn as 0"),
)
"""Of the interface itself."""

SECTIONS: tuple[tuple[str, Words], ...] = (
    ("words: states", STATES),
    ("words: jobs", JOBS),
    ("words: ranks", RANKS),
    ("words: devices", DEVICES),
    ("words: the rest", REST),
)
"""By heading, in the order of the help."""

GLOSSARY: Words = tuple(entry for _, words in SECTIONS for entry in words)
"""All of them."""
