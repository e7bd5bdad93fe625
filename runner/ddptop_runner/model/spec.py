"""JobSpec: the request as stored in `job.json`."""

import datetime as dt
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from ddptop_runner.base import bounded
from ddptop_runner.base.clock import is_time
from ddptop_runner.base.errors import DamagedFileError, OtherSchemaError, UsageError
from ddptop_runner.base.files import write_atomic
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.model.snapshot import SCHEMA
from ddptop_runner.model.words import Base, OnNan

MAX_NAME_LENGTH = 48
MOST_RANKS = 100_000
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_-]*"
_CONTROL = r"[\x00-\x1f\x7f]"
_ESCAPED = r"[\x00-\x1f\x7f\\']"


class Device(Base, frozen=True, kw_only=True):
    """One device that the job may use."""

    index: int
    """Machine index in PCI order."""
    uuid: str | None = None
    name: str | None = None

    @property
    def is_mig(self) -> bool:
        """Whether this is a MIG instance and no whole device."""
        return (self.uuid or "").startswith("MIG-")


class Predecessor(Base, frozen=True, kw_only=True):
    """A job that has to end before another one starts."""

    job: str
    """Its name at the launch of the other one."""
    job_id: str
    any_end: bool = False
    """Whether it may also end other than by finishing."""


class Waiting(Base, frozen=True, kw_only=True):
    """What a job waits, or waited, for before it starts: all of it at once."""

    candidates: list[Device] = []
    """The devices to choose from, in the order in which local ranks get them."""
    count: int = 0
    """How many of them have to be free at once."""
    since: dt.datetime
    place: dt.datetime | None = None
    """Where `queue move` put it: before those that wait since later; None: `since`."""
    by_uuid: bool = False
    """Show devices to the job by UUID: one of the machine was lost at the launch."""
    share_idle: bool = False
    """Whether it also takes devices on which only idle processes are."""
    after: list[Predecessor] = []
    not_before: dt.datetime | None = None
    over_at: dt.datetime | None = None
    """When it got all of it; None while it waits."""

    @property
    def times(self) -> list[dt.datetime | None]:
        """All times in it."""
        return [self.since, self.place, self.not_before, self.over_at]


class NodeSpec(Base, frozen=True, kw_only=True):
    """One machine of a job that runs on several."""

    host: str
    """As the person or Slurm names it: what ssh or srun gets, and what every screen shows."""
    address: str
    """Host name or IP address at which the other nodes reach it."""
    nproc: int
    """Ranks on this node."""
    devices: list[Device] | None = None
    """None: CPU ranks."""
    python: str
    """The job's interpreter there."""
    command: list[str]
    """The argv that runs ddptop's node process there, without the ssh or srun in front of it."""
    members: str | None = None
    """The folder there in which parts of jobs have theirs, with logs and evidence."""
    ports: list[int]
    """TCP ports that were free there; an attempt's store takes the one of its number."""


class Placement(Base, frozen=True, kw_only=True):
    """The nodes of a job, and how they are reached."""

    by: Literal["ssh", "slurm", "pipe"]
    """`pipe`: all nodes are this machine, as in tests."""
    nodes: list[NodeSpec]
    min_nodes: int
    """With fewer nodes no attempt is started; the most are all of them."""
    node_timeout_s: float = 300.0
    """For how long a node may be out of reach, while the others cannot train, before they continue
    without it."""
    orphan_timeout_s: float = 7200.0
    """A node that no head has reached for so long ends its ranks."""
    slurm_job: str | None = None
    force: bool = False
    """Whether the nodes may take devices that other jobs have."""


class Rendezvous(Base, frozen=True, kw_only=True):
    """Where the agents of one attempt meet, and as which node one of them takes part."""

    run_id: str
    """Another one for each attempt."""
    address: str
    """Where the first node (`node_rank` 0) keeps the attempt's store."""
    port: int
    node_rank: int
    nodes: int
    first_rank: int
    """Global rank of the node's local rank 0."""


class Membership(Base, frozen=True, kw_only=True):
    """In the spec of one node: of which job it is a part."""

    job: str
    """The job's name on the head node."""
    orphan_timeout_s: float
    head_seq: int = 0
    """Of the head's last event as the node's part was started."""
    head: str | None = None
    """Host name of the head's machine."""
    force: bool = False
    """As in `Placement`."""
    rendezvous: Rendezvous | None = None
    """Of the attempt that it was started for."""


class GitState(Base, frozen=True, kw_only=True):
    """Where the code of a job comes from."""

    commit: str
    """Full hash."""
    branch: str | None = None
    """None on no branch."""
    has_changes: bool = False
    """Whether tracked files differed from the commit."""


class JobOptions(Base, frozen=True, kw_only=True):
    """What a job takes from the request for it as it is."""

    max_restarts: int = 3
    hang_timeout_s: float | None = None
    """None: off, unless `hang_auto`."""
    on_nan: OnNan = "alert"
    allow_shrink: bool = False
    """Whether attempts may go on without a device that is broken, with fewer ranks."""
    zygote: bool = True
    """Whether ranks are forked from a process that has torch imported, where that is possible."""
    log_limit_bytes: int | None = None
    """Of one rank's log in one attempt, beyond which its head is dropped; None: the default."""
    probe: bool = True
    replica_check: bool = True
    """Whether the probe hashes the weights."""
    memory_snapshot: bool = False
    """Whether ranks record which lines allocate device memory."""
    slurm_job: str | None = None
    """Slurm's id of the job in whose allocation it runs."""
    pty: bool = False
    """Whether a command writes to its own terminal rather than directly to its log."""
    note: str | None = None
    """What the user said about it."""
    parallel: int | None = None
    """At most so many jobs of its group run at once; None: no limit."""


class JobSpec(JobOptions, frozen=True, kw_only=True):
    """Everything needed to start the job again, but for the values of its variables."""

    schema: int = SCHEMA
    job: str
    job_id: str
    """`name@nonce`."""
    host: str
    created_at: dt.datetime
    kind: Literal["script", "module", "command"]
    target: str
    """Path of the script as given, or the module's name."""
    args: list[str] = []
    python: str
    """The job's interpreter; of a command the executable that it starts."""
    cwd: str
    nproc: int
    """Ranks that ddptop starts itself; 0 for a command, which starts its ranks itself."""
    devices: list[Device] | None = None
    """None: CPU job, or one that is still queued."""
    queue: Waiting | None = None
    """None: it was started at once."""
    hang_auto: bool = False
    """The time allowed is learned from the run; with `hang_timeout_s` None."""
    env_names: list[str] = []
    """Names of the launching shell's variables; the values are never written."""
    env_overrides: list[str] = []
    """Names given by --env."""
    backing: Literal["tmux", "daemon", "held"] = "tmux"
    """What holds the guardian: a tmux session, a process of its own session (setsid), or a holder
    in a step of Slurm's."""
    tmux_socket: str | None = None
    launcher: str | None = None
    """Of a command: who starts its ranks, as its words tell; a `foreign.types.Launcher`."""
    placement: Placement | None = None
    """Of a job on several machines; None on one. `nproc` is the sum over its nodes."""
    archived_as: str | None = None
    """The job's name once its folder has this name: another job has taken its own since."""
    git: GitState | None = None
    """None where the working folder is in no git repository."""
    group: str | None = None
    """The sweep that it was launched with; the names of its jobs begin with it."""
    array: dict[str, str] = {}
    """In a group: the job's value of each `--array`."""
    membership: Membership | None = None
    """Of one node's part of such a job: its failures are the head's to decide on."""

    @property
    def hosts(self) -> list[str]:
        """The nodes of a job on several machines, in order; empty on one machine."""
        return [] if self.placement is None else [node.host for node in self.placement.nodes]

    @property
    def is_command(self) -> bool:
        """Whether it runs another launcher, or one process, as it is."""
        return self.kind == "command"

    @property
    def is_queued(self) -> bool:
        """Whether it waits to be started."""
        queue = self.queue
        return queue is not None and queue.over_at is None

    @property
    def started_at(self) -> dt.datetime:
        """When it was launched, or left the queue."""
        return self.created_at if self.queue is None else self.queue.over_at or self.created_at

    @property
    def place(self) -> tuple[dt.datetime, str]:
        """What one user's queued jobs are ordered by."""
        queue = self.queue
        return (self.created_at if queue is None else queue.place or queue.since), self.job_id

    def command(self) -> list[str]:
        """The argv of every rank; of a command its own."""
        if self.is_command:
            return [self.target, *self.args]
        target = ["-m", self.target] if self.kind == "module" else [self.target]
        return [self.python, "-u", *target, *self.args]

    def command_line(self) -> str:
        """What the person typed after `launch` and its options, quoted for a shell: one line."""
        if self.is_command:
            return _quoted(["--", self.target, *self.args])
        target = ["-m", self.target] if self.kind == "module" else [self.target]
        return _quoted([*target, *self.args])


def _quoted(words: Iterable[str]) -> str:
    r"""As `shlex.join`, but control characters as in `$'a\nb'`: some arguments are code."""
    return " ".join(
        shlex.quote(word)
        if not re.search(_CONTROL, word)
        else f"$'{re.sub(_ESCAPED, _escape, word)}'"
        for word in words
    )


def _escape(found: re.Match[str]) -> str:
    char = found[0]
    if char in "\\'":
        return "\\" + char
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(char) or f"\\x{ord(char):02x}"


def check_name(name: str) -> str:
    """`name`, if it can be a job's, a folder's and a tmux session's name.

    Raises:
        UsageError: naming the first character that cannot be used.
    """
    if not name:
        raise UsageError("the job name is empty", "pass --name NAME")
    if len(name) > MAX_NAME_LENGTH:
        raise UsageError(
            f"the name {name[:20]!r}... has {len(name)} characters",
            f"use {MAX_NAME_LENGTH} or fewer",
        )
    if not re.fullmatch(_NAME, name):
        raise UsageError(
            f"the name {name!r} is not a valid tmux session name",
            "use letters, digits, '_', and '-', but do not start with '-'",
        )
    return name


def derive_name(target: str) -> str:
    """A usable name from a script's path or a module's name: `examples/train.py` → `train`."""
    stem = Path(target).stem if "/" in target or target.endswith(".py") else target.split(".")[-1]
    cleaned = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-")[: MAX_NAME_LENGTH - 4]
    return cleaned or "job"


def write_spec(folder: RunFolder, spec: JobSpec) -> None:
    """Write `job.json`."""
    write_atomic(folder.spec_file, msgspec.json.format(msgspec.json.encode(spec), indent=2))


class _SchemaOnly(Base, frozen=True, kw_only=True):
    schema: int = SCHEMA


_schema_decoder = msgspec.json.Decoder(_SchemaOnly)
_spec_decoder = msgspec.json.Decoder(JobSpec)


def refuse_other_schema(path: Path, data: bytes) -> None:
    """Refuse a file that another version of ddptop wrote: its fields may mean something else.

    Args:
        path: the file, for the message.
        data: its content, JSON or not.

    Raises:
        OtherSchemaError: its `schema` is not this version's.
    """
    try:
        schema = bounded.decode_json(_schema_decoder, data).schema
    except msgspec.MsgspecError:
        return  # reading all of it reports what is wrong
    if schema != SCHEMA:
        raise OtherSchemaError(
            f"{path} was written by another version of ddptop (schema {schema}; supported:"
            f" {SCHEMA})",
            "use that version",
        )


def read_spec(folder: RunFolder) -> JobSpec:
    """Read `job.json`.

    Raises:
        DamagedFileError: when it is missing, not a spec, or one of another version.
    """
    try:
        data = bounded.read_bytes(folder.spec_file)
        refuse_other_schema(folder.spec_file, data)
        spec = bounded.decode_json(_spec_decoder, data)
    except (OSError, msgspec.MsgspecError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise damaged_job(folder, folder.spec_file, reason or str(error)) from error
    if (problem := _problem(spec)) is not None:
        raise damaged_job(folder, folder.spec_file, problem)
    if spec.archived_as != folder.job:
        return spec
    return msgspec.structs.replace(moved_into(spec, folder, spec.job), job=folder.job)


def moved_into(spec: JobSpec, folder: RunFolder, before: str) -> JobSpec:
    """A job whose working directory was in the run folder of the name `before`, which has moved."""
    old = folder.path.with_name(before)
    if not (cwd := Path(spec.cwd)).is_relative_to(old):
        return spec
    return msgspec.structs.replace(spec, cwd=str(folder.path / cwd.relative_to(old)))


MAX_REASON = 300
"""Characters; what a decoder says about a file repeats its content."""


def damaged_job(folder: RunFolder, path: Path, reason: str) -> DamagedFileError:
    """The error of a job that cannot be shown because of what is in its run folder."""
    return DamagedFileError(
        f"{path} cannot be read ({reason[:MAX_REASON]})",
        f"to remove the job, run `ddptop rm {shlex.quote(folder.job)}`",
    )


def _problem(spec: JobSpec) -> str | None:
    """Why what a spec says must not be used: names become paths, and times enter calculations."""
    if not re.fullmatch(_NAME, spec.job):
        return "invalid job name"
    if spec.group is not None and not re.fullmatch(_NAME, spec.group):
        return "invalid group"
    if not bounded.is_file_name(spec.host):
        return "invalid hostname"
    if spec.tmux_socket is not None and not bounded.is_file_name(spec.tmux_socket):
        return "invalid tmux_socket"
    if not 0 <= spec.nproc <= MOST_RANKS:
        return "invalid nproc"
    if not all(map(is_time, [spec.created_at, *(spec.queue.times if spec.queue else ())])):
        return "invalid time"
    return None
