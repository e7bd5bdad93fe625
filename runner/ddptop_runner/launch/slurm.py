"""Writes Slurm's batch scripts and commands, and parses what Slurm prints. Pure."""

from __future__ import annotations

import datetime as dt
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from ddptop_runner.base.errors import UsageError
from ddptop_runner.base.units import whole
from ddptop_runner.model.words import Base
from ddptop_runner.store.log_clean import one_line

CHECKPOINT_BEFORE_S = 120
"""How long before the time limit Slurm signals the batch step, unless --signal is given."""

# -- an allocation ---------------------------------------------------------------------------------


class Allocation(msgspec.Struct, frozen=True):
    """The allocation that this process runs in, from Slurm's environment variables."""

    job: str
    """Slurm's job ID; for a task of an array, the task's own."""
    node_list: str
    """As Slurm writes it: `n[1-2]`."""
    restarts: int = 0
    """How many times Slurm has requeued the job."""
    is_batch: bool = False
    """Whether this is the batch step; the allocation ends with it."""
    in_step: bool = False
    """Whether this runs under srun."""
    array_task: str | None = None
    gpus_on_node: int | None = None
    """The allocation's GPUs on this node; None if it has none, or outside its nodes."""
    on_node: bool = False
    """Whether this is one of its nodes, not the machine where salloc's shell runs."""


_NO_DEVICE = ("NoDevFiles", "-1")
_LISTS_OF_GPUS = (
    "SLURM_STEP_GPUS",
    "SLURM_JOB_GPUS",
    "GPU_DEVICE_ORDINAL",
    "CUDA_VISIBLE_DEVICES",
)


def allocation(env: Mapping[str, str]) -> Allocation | None:
    """The allocation that a process with these variables runs in; None outside one."""
    job = env.get("SLURM_JOB_ID", "")
    if not job.isdigit():
        return None
    in_step = env.get("SLURM_STEP_ID", "").isdigit()
    gpus = whole(env.get("SLURM_GPUS_ON_NODE", ""))
    if gpus is None:
        listed = next(filter(None, map(env.get, _LISTS_OF_GPUS)), "")
        gpus = sum(one not in ("", *_NO_DEVICE) for one in listed.split(","))
    return Allocation(
        job=job,
        node_list=env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST") or "",
        restarts=whole(env.get("SLURM_RESTART_COUNT", "")) or 0,
        is_batch=not in_step and "SLURM_TASK_PID" in env,
        in_step=in_step,
        array_task=env.get("SLURM_ARRAY_TASK_ID"),
        gpus_on_node=gpus or None,
        on_node="SLURMD_NODENAME" in env,
    )


# -- commands --------------------------------------------------------------------------------------

_STEP_OPTIONS = (
    r"SRUN_.*|SLURM_(?:CPUS_PER_(?:TASK|GPU)|DISTRIBUTION|EXACT|EXCLUSIVE|EXPORT_ENV|GPU_.*|GPUS.*|GRES|"
    r"HINT|LABELIO|MEM_PER_.*|MULTI_PROG|NNODES|NPROCS|NTASKS.*|OPEN_MODE|OVERLAP|STD(?:IN|OUT|ERR)MODE|"
    r"STEP.*|THREADS.*|TIMELIMIT|UNBUFFEREDIO|WAIT|WORKING_DIR|CPU_BIND.*|MPI_TYPE)"
)
"""Variables of a batch step that srun would read as options."""


def step_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The variables with which to start srun."""
    return {name: value for name, value in env.items() if not re.fullmatch(_STEP_OPTIONS, name)}


def _step(job: str, host: str, name: str) -> list[str]:
    argv = ["srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={host}"]
    return [*argv, f"--job-name={name}", "--quiet", "--mpi=none", "--cpu-bind=none", "--mem=0"]


def link_argv(slurm_job: str, host: str, command: Sequence[str]) -> list[str]:
    """The argv that runs a command on a node of the allocation, next to whatever runs there.

    Args:
        slurm_job: Slurm's job ID.
        host: the node.
        command: the command to run there; it ends when srun ends.
    """
    return [*_step(slurm_job, host, "ddptop-link"), "--", *command]


def hold_argv(slurm_job: str, host: str, command: Sequence[str]) -> list[str]:
    """The argv that runs the holder of a node's part of the job; it too ends with srun."""
    step = [*_step(slurm_job, host, "ddptop"), "--kill-on-bad-exit=0", "--input=none"]
    return [*step, "--", *command]


_NOISE = r"(?i)lacks support for cpu binding|^srun: (?:warning|info|job )"


def step_problem(output: str) -> str | None:
    """Why a step ended, in srun's words; None if it printed nothing useful."""
    lines = [line.strip() for line in output.splitlines()]
    lines = [line for line in lines if line and not re.search(_NOISE, line)]
    return re.sub(r"^(?:srun: )?(?:error: )?", "", lines[-1])[:200] if lines else None


# -- the batch script ------------------------------------------------------------------------------

_FLAGS = frozenset(
    """
    --contiguous --exclusive --get-user-env --help --hold --ignore-pbs --no-kill --no-requeue
    --overcommit --oversubscribe --parsable --propagate --quiet --reboot --requeue --spread-job
    --test-only --usage --use-min-nodes --verbose --version --wait --nice
    -h -H -I -k -O -Q -s -v -V -W
    """.split()  # noqa: SIM905 - a list of one name a line is longer and no clearer
)
"""Options of sbatch that do not take the next word as their value."""
_REFUSED = {
    "--nodes": "use ddptop launch --slurm --nodes N -- ...",
    "--job-name": "use ddptop launch --slurm --name NAME -- ...",
    "--wrap": "use ddptop launch --slurm -- SBATCH_OPTIONS SCRIPT",
    "--wait": "submit without it, then run ddptop wait NAME",
    "--test-only": "use ddptop launch --slurm --dry-run ... | sbatch --test-only",
}
"""Options of sbatch that conflict with ddptop, with what to use instead."""
_SHORT = {"-N": "--nodes", "-J": "--job-name", "-W": "--wait"}


def split_sbatch(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the words after `--` into (sbatch's options, the rest).

    The options end at the first word that is neither an option nor its value, at `-m MODULE`, or at
    another `--`.
    """
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            return list(words[:index]), list(words[index + 1 :])
        if word == "-m" or not word.startswith("-") or word == "-":
            break
        if word.startswith("--"):
            takes_next = "=" not in word and not any(one.startswith(word) for one in _FLAGS)
        else:
            takes_next = word not in _FLAGS and len(word) == 2  # -pmain holds its value
        index += 1 + takes_next
    return list(words[:index]), list(words[index:])


def check_sbatch(options: Sequence[str]) -> None:
    """Refuse options of sbatch that conflict with ddptop.

    Raises:
        UsageError: names the option, and what to use instead.
    """
    for position, option in enumerate(options):
        name, _, value = option.partition("=")
        if re.search(r"[\n\r\0]", option):
            raise UsageError(f"sbatch option {option!r} contains a line break", "remove it")
        name = name if name.startswith("--") else _SHORT.get(name[:2], name)
        if name.startswith("--") and name not in _REFUSED:  # sbatch accepts abbreviations
            known = (one for one in (*_REFUSED, "--signal") if one.startswith(name))
            name = next(known, name)
        if name in _REFUSED:
            raise UsageError(f"{name} after -- conflicts with ddptop", _REFUSED[name])
        if name == "--signal":
            value = value or next(iter(options[position + 1 :]), "")
            if not re.fullmatch(r"(?:B|BR|RB):(?:SIG)?USR1@[0-9]+", value):
                raise UsageError(
                    f"--signal={value} does not reach ddptop",
                    f"use --signal=B:USR1@{CHECKPOINT_BEFORE_S}, which saves a checkpoint",
                )


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A job to submit, and the contents of its batch script."""

    name: str
    nodes: tuple[int, int]
    """(fewest, most)."""
    cwd: str
    python: str
    """The job's interpreter."""
    command: tuple[str, ...] = ()
    """What the batch step runs: a ddptop command line."""
    exports: tuple[tuple[str, str], ...] = ()
    gpus_per_node: int | None = None
    options: tuple[str, ...] = ()
    """Options of sbatch, as the user gave them."""
    notes: tuple[str, ...] = ()
    """Notes for the user, one line each."""


def batch_script(batch: Batch) -> str:
    """The script. Its shell execs ddptop, which thus receives Slurm's signals."""
    fewest, most = batch.nodes
    lines = [
        f"--job-name={batch.name}",
        f"--nodes={most}" if fewest == most else f"--nodes={fewest}-{most}",
        *(["--ntasks-per-node=1"] if fewest == most else []),  # else Slurm allocates the fewest
        "--requeue",
        "--open-mode=append",
        f"--signal=B:USR1@{CHECKPOINT_BEFORE_S}",
    ]
    if batch.gpus_per_node:
        lines.append(f"--gpus-per-node={batch.gpus_per_node}")
    if fewest < most:
        lines.append("--no-kill")
    lines += _by_option(batch.options)
    head = "\n".join(f"#SBATCH {line}" for line in lines)
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in batch.exports)
    return (
        f"#!/bin/bash\n{head}\n"
        "# Before the time limit, Slurm sends USR1 to ddptop, which has the job save a checkpoint\n"
        "# and requeues it. A requeued job continues in its run folder.\n"
        "trap '' USR1  # until ddptop listens\n"
        f"cd {shlex.quote(batch.cwd)} || exit 1\n{exports}exec {shlex.join(batch.command)}\n"
    )


def _by_option(options: Sequence[str]) -> Iterator[str]:
    """Yield one line for each option and its value."""
    line: list[str] = []
    for option in options:
        if option.startswith("-") and line:
            yield " ".join(line)
            line = []
        line.append(_quoted(option))
    if line:
        yield " ".join(line)


def _quoted(word: str) -> str:
    """Quote a word for an #SBATCH line, where an unquoted # starts a comment."""
    if re.fullmatch(r"[\w@%+=:,./\[\]*-]+", word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def refusal(output: str) -> str | None:
    """Why sbatch failed, in its words; None if it printed nothing."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error: " in line] or lines[-1:]
    return one_line(". ".join(line.rpartition("error: ")[2] for line in errors)) or None


def submitted(printed: str) -> str | None:
    """The job ID that `sbatch --parsable` printed; None if it printed none."""
    found = re.match(r"([0-9]{1,10})(?:;[^\s]*)?\s*$", printed.strip().rpartition("\n")[2])
    return found[1] if found else None


# -- the queue -------------------------------------------------------------------------------------

_SEPARATOR = "\x1f"
_FIELDS = ("%i", "%j", "%T", "%P", "%D", "%N", "%r", "%V", "%S", "%l", "%L", "%A")
QUEUE_ENV = {"TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}
"""Make squeue print times in the form that `queue_of` parses."""


class SlurmJob(Base, frozen=True, kw_only=True):
    """One of the user's jobs in Slurm's queue."""

    id: str
    """Slurm's ID, such as 1234 or, for tasks of an array, 1234_[5-8]."""
    number: str
    """SLURM_JOB_ID, which differs from `id` for tasks of an array."""
    name: str
    state: str
    """As squeue prints it: PENDING, RUNNING, ..."""
    reason: str | None
    """Why it is pending; None otherwise."""
    partition: str | None
    nodes: int | None
    """Number of nodes."""
    node_list: str | None
    """Its nodes; None while it has none."""
    submitted_at: dt.datetime | None
    started_at: dt.datetime | None
    start_estimate: dt.datetime | None
    """When Slurm expects a pending job to start."""
    time_limit_s: float | None
    time_left_s: float | None
    job: str | None = None
    """Name of the ddptop job that it runs; None if it runs none, or has not started."""


def queue_argv(user: str) -> list[str]:
    """The squeue command that prints a user's jobs."""
    return ["squeue", "--noheader", f"--user={user}", f"--format={_SEPARATOR.join(_FIELDS)}"]


def queue_of(printed: str) -> list[SlurmJob]:
    """Parse squeue's output; lines in another form are skipped."""
    jobs = []
    for line in printed.split("\n"):
        cells = [cell.strip() for cell in line.split(_SEPARATOR)]
        if len(cells) != len(_FIELDS) or not cells[0]:
            continue
        id_, name, state, partition, nodes, hosts, reason, submit, start, limit, left = cells[:11]
        pending = state == "PENDING"
        start_at = _time(start)
        jobs.append(
            SlurmJob(
                id=id_,
                number=cells[11],
                name=name,
                state=state,
                reason=reason if reason not in ("", "None") else None,
                partition=partition or None,
                nodes=whole(nodes),
                node_list=hosts or None,
                submitted_at=_time(submit),
                started_at=None if pending else start_at,
                start_estimate=start_at if pending else None,
                time_limit_s=seconds_of(limit),
                time_left_s=seconds_of(left),
            )
        )
    return jobs


def _time(text: str) -> dt.datetime | None:
    try:
        return dt.datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=dt.timezone.utc)
    except ValueError:
        return None


_DURATION = r"(?:([0-9]{1,6})-)?(?:([0-9]{1,4}):)?([0-9]{1,4}):([0-9]{2})"


def seconds_of(text: str) -> float | None:
    """Parse `1-02:03:04` or `03:04`; None for UNLIMITED and the like."""
    if (found := re.fullmatch(_DURATION, text)) is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
