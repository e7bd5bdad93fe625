"""Derives a process's rank and job from its environment. Pure, one process at a time.

Only the variables named here are kept; all others are dropped at once.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ddptop_runner.foreign.types import ProcessFacts

_ELASTIC = (
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE MASTER_ADDR"
    " MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT NODE_RANK"
)
_DEEPSPEED = "CROSS_RANK CROSS_SIZE LOCAL_SIZE"
_ACCELERATE = "ACCELERATE_MIXED_PRECISION ACCELERATE_USE_CPU"
_MPI = (
    "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_MCA_ess_base_jobid"
    " PMIX_RANK PMIX_NAMESPACE PMI_RANK PMI_SIZE MPI_LOCALRANKID"
)
_HOROVOD = (
    "HOROVOD_RANK HOROVOD_SIZE HOROVOD_LOCAL_RANK HOROVOD_GLOO_RENDEZVOUS_ADDR"
    " HOROVOD_GLOO_RENDEZVOUS_PORT"
)
_SLURM = (
    "SLURM_PROCID SLURM_LOCALID SLURM_NTASKS SLURM_STEP_NUM_TASKS SLURM_JOB_ID SLURM_STEP_ID"
    " SLURM_STEPID SLURM_NODEID"
)
_OTHERS = "TF_CONFIG CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER DDPTOP_JOB_ID"

KEPT_VARIABLES: frozenset[str] = frozenset(
    " ".join([_ELASTIC, _DEEPSPEED, _ACCELERATE, _MPI, _HOROVOD, _SLURM, _OTHERS]).split()
)
"""Variables that `ProcessFacts.environ` may contain; all others are dropped at once."""

RANK_VARIABLES: frozenset[str] = frozenset(
    {"RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "HOROVOD_RANK"}
    | {"SLURM_PROCID", "TF_CONFIG"}
)
"""Variables that make a process worth a closer look."""


MAX_VALUE_BYTES = 1 << 15
"""Limit for each variable; a TF_CONFIG of a thousand workers is shorter."""


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


def number(environ: Mapping[str, str], *names: str) -> int | None:
    """The value of the first of these variables that is a non-negative integer."""
    for name in names:
        value = whole_number(environ.get(name, ""))
        if value is not None:
            return value
    return None


Scheme = Literal[
    "elastic", "horovod", "deepspeed", "mpi", "pmi", "slurm", "manual", "lightning", "tf_config"
]
"""Who sets the variables. `manual`: RANK and the like, set by a person or a scheduler."""

MAX_ADDRESS = 253
"""Longest host name, in characters."""


@dataclass(frozen=True)
class Claim:
    """What a process's environment says. Children inherit it, so a claim does not make a rank."""

    scheme: Scheme
    job: tuple[str, ...]
    """What all ranks of the job have in common; empty if nothing identifies the job."""
    rank: int
    local_rank: int
    world_size: int | None = None
    local_world_size: int | None = None
    rendezvous: str | None = None
    restart_count: int | None = None


def claim_of(process: ProcessFacts) -> Claim | None:
    """The claim in the environment, from the strongest variables; None without one."""
    return next(filter(None, _claims(process.environ)), None) if process.environ else None


def node_rank(environ: Mapping[str, str] | None) -> int | None:
    """This host's number in the job, if the environment has one."""
    return number(environ or {}, "NODE_RANK", "GROUP_RANK", "SLURM_NODEID")


def rendezvous_of(environ: Mapping[str, str] | None) -> str | None:
    """`MASTER_ADDR:MASTER_PORT`, or None unless both are set."""
    return _place(environ or {}, "MASTER_ADDR", "MASTER_PORT")


def _place(environ: Mapping[str, str], address: str, port: str) -> str | None:
    """`ADDRESS:PORT` from these two variables, safe to print and of bounded length."""
    words = [environ.get(name, "")[:MAX_ADDRESS] for name in (address, port)]
    text = ":".join(words)
    if not text.isprintable():
        text = "".join(char if char.isprintable() else "?" for char in text)
    return text if all(words) else None


def _claims(environ: Mapping[str, str]) -> Iterator[Claim | None]:
    """The claim of each scheme's variables, strongest first; None for those without a rank."""
    rendezvous = rendezvous_of(environ)
    claim_as = functools.partial(_claim, environ, rendezvous)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    if (run_id := environ.get("TORCHELASTIC_RUN_ID")) is not None:
        job = (rendezvous or "", run_id, environ.get("DDPTOP_JOB_ID", ""))
        yield claim_as("elastic", job, *names, "LOCAL_WORLD_SIZE")
    place = _place(environ, "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT")
    of_horovod = ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_SIZE")
    yield claim_as("horovod", (place,), *of_horovod, place=place)
    if {"CROSS_RANK", "CROSS_SIZE"} & environ.keys():
        yield claim_as("deepspeed", (rendezvous,), *names, "LOCAL_SIZE")
    job_id = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or None
    of_mpi = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "LOCAL_RANK", "SIZE")]
    yield _of_scheduler(environ, claim_as("mpi", (job_id,), *of_mpi))
    # mpirun inside a Slurm allocation: the position of its daemon is not a rank
    if number(environ, "PMI_RANK", "PMIX_RANK") in (None, number(environ, "SLURM_PROCID")):
        step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or ""
        of_slurm = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS SLURM_NTASKS")
        claim = claim_as("slurm", (environ.get("SLURM_JOB_ID", ""), step), *of_slurm)
        yield _of_scheduler(environ, claim)
    of_pmi = ("PMI_RANK PMIX_RANK", "MPI_LOCALRANKID", "PMI_SIZE")
    claim = claim_as("pmi", (environ.get("PMIX_NAMESPACE") or None,), *of_pmi)
    yield _of_scheduler(environ, claim)
    if (size := number(environ, "WORLD_SIZE")) is not None:
        yield claim_as("manual", (rendezvous or "", str(size)), *names, "LOCAL_WORLD_SIZE")
    if rendezvous is not None and "NODE_RANK" in environ:
        # Lightning sets no RANK for its children; on other hosts it follows from all ranks
        yield claim_as("lightning", (rendezvous,), "LOCAL_RANK", *names[1:])
    yield _tf_config(environ)


def _claim(
    environ: Mapping[str, str],
    rendezvous: str | None,
    scheme: Scheme,
    job: tuple[str | None, ...],
    rank: str,
    local_rank: str,
    world_size: str,
    local_world_size: str = "",
    place: str | None = None,
) -> Claim | None:
    """The claim; None if no variable holds a rank. The first name with a number counts."""
    number_of_rank = number(environ, *rank.split())
    if number_of_rank is None:
        return None
    local = number(environ, local_rank)
    return Claim(
        scheme=scheme,
        job=tuple(part for part in job if part is not None),
        rank=number_of_rank,
        local_rank=number_of_rank if local is None else local,
        world_size=number(environ, *world_size.split()),
        local_world_size=number(environ, local_world_size),
        rendezvous=place or rendezvous,
        restart_count=number(environ, "TORCHELASTIC_RESTART_COUNT"),
    )


def _of_scheduler(environ: Mapping[str, str], claim: Claim | None) -> Claim | None:
    """A claim of MPI or Slurm, unless a RANK with another value was set below it."""
    if claim is None or "WORLD_SIZE" not in environ:
        return claim
    return claim if number(environ, "RANK") in (None, claim.rank) else None


def _tf_config(environ: Mapping[str, str]) -> Claim | None:
    try:
        config = json.loads(environ.get("TF_CONFIG", ""))
        cluster, task = config["cluster"], config["task"]
        order = [("chief", i) for i in range(len(cluster.get("chief", ())))]
        order += [("worker", i) for i in range(len(cluster.get("worker", ())))]
        index = whole_number(str(task["index"]))
        if index is None:
            return None
        rank = order.index((task["type"], index))
        name = json.dumps(cluster, sort_keys=True)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return Claim(
        scheme="tf_config",
        job=(name,),
        rank=rank,
        local_rank=rank,
        world_size=len(order),
    )
