"""Derives a process's rank and job from its environment. Pure, one process at a time.

Only the variables named here are kept; all others are dropped at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ddptop_runner.foreign.types import ProcessFacts

Scheme = Literal["elastic", "horovod", "mpi", "manual", "slurm"]
"""Who sets the variables. `manual`: RANK and the like, set by DeepSpeed or by hand."""

_SCHEMES: tuple[tuple[Scheme, str, tuple[str, str, str]], ...] = (
    ("elastic", "TORCHELASTIC_RUN_ID", ("RANK", "LOCAL_RANK", "WORLD_SIZE")),
    ("horovod", "HOROVOD_RANK", ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_SIZE")),
    (
        "mpi",
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ),
    ("manual", "RANK", ("RANK", "LOCAL_RANK", "WORLD_SIZE")),
    ("slurm", "SLURM_STEP_ID", ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS")),
)
"""Strongest first: (scheme, the variable that proves it, those with rank, local rank, and size)."""

_OTHERS = "MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT DDPTOP_JOB_ID"

RANK_VARIABLES: frozenset[str] = frozenset(names[0] for _, _, names in _SCHEMES)
"""Variables that make a process worth a closer look."""

KEPT_VARIABLES: frozenset[str] = frozenset(
    {name for _, proof, names in _SCHEMES for name in (proof, *names)} | {*_OTHERS.split()}
)
"""Variables that `ProcessFacts.environ` may contain; all others are dropped at once."""

MAX_VALUE_BYTES = 1 << 15
"""Limit for each variable, which another user may have set."""


def kept_of(environ: bytes) -> dict[str, str]:
    """The KEPT_VARIABLES in the contents of /proc/<pid>/environ, except overlong ones."""
    found: dict[str, str] = {}
    for entry in environ.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        key = _KEPT_BYTES.get(name)
        if equals and key is not None and len(value) <= MAX_VALUE_BYTES:
            found[key] = value.decode("utf-8", "surrogateescape")
    return found


MAX_DIGITS = 7
MAX_NUMBER = 1_000_000
"""No job has more ranks: a larger number is bogus, and costly to count to."""


def whole_number(text: str) -> int | None:
    """The text as a number from 0 to MAX_NUMBER, or None.

    Parses every number that comes from another user's process.
    """
    text = text.strip()
    if len(text) > MAX_DIGITS or not (text.isascii() and text.isdigit()):
        return None
    value = int(text)
    return value if value <= MAX_NUMBER else None


_KEPT_BYTES = {name.encode(): name for name in KEPT_VARIABLES}

MAX_ADDRESS = 253
"""Longest host name, in characters."""


@dataclass(frozen=True)
class Claim:
    """What a process's environment says. Children inherit it, so a claim does not make a rank."""

    scheme: Scheme
    job: tuple[str, ...]
    """What all ranks of the job have in common."""
    rank: int
    local_rank: int
    world_size: int
    rendezvous: str | None = None
    restart_count: int | None = None


def claim_of(process: ProcessFacts) -> Claim | None:
    """The claim in the environment, from the strongest variables; None without one."""
    environ = process.environ or {}
    for scheme, proof, names in _SCHEMES:
        rank, local_rank, size = (whole_number(environ.get(name, "")) for name in names)
        if proof not in environ or rank is None or size is None:
            continue
        rendezvous = rendezvous_of(environ)
        run_id = environ.get("TORCHELASTIC_RUN_ID", "")
        return Claim(
            scheme=scheme,
            job=(environ.get("DDPTOP_JOB_ID", ""), rendezvous or "", run_id, str(size)),
            rank=rank,
            local_rank=rank if local_rank is None else local_rank,
            world_size=size,
            rendezvous=rendezvous,
            restart_count=whole_number(environ.get("TORCHELASTIC_RESTART_COUNT", "")),
        )
    return None


def rendezvous_of(environ: Mapping[str, str] | None) -> str | None:
    """`MASTER_ADDR:MASTER_PORT`, safe to print; None unless both are set."""
    words = [(environ or {}).get(name, "")[:MAX_ADDRESS] for name in ("MASTER_ADDR", "MASTER_PORT")]
    text = "".join(char if char.isprintable() else "?" for char in ":".join(words))
    return text if all(words) else None
