"""The environment variables that identify ranks and devices: the only ones kept."""

from __future__ import annotations

from collections.abc import Mapping

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
"""Names of the variables that `ProcessFacts.environ` may hold; all others are dropped at once."""

RANK_VARIABLES: frozenset[str] = frozenset(
    {"RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "HOROVOD_RANK"}
    | {"SLURM_PROCID", "TF_CONFIG"}
)
"""Those that make a process worth a closer look."""


MAX_VALUE_BYTES = 1 << 15
"""Of a variable that is kept: a TF_CONFIG of a thousand workers is shorter."""


def kept_of(environ: bytes) -> dict[str, str]:
    """The variables of KEPT_VARIABLES in what /proc/<pid>/environ holds, but for endless ones."""
    found: dict[str, str] = {}
    for entry in environ.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        key = _KEPT_BYTES.get(name)
        if equals and key is not None and len(value) <= MAX_VALUE_BYTES:
            found[key] = value.decode("utf-8", "surrogateescape")
    return found


MAX_DIGITS = 7
MAX_NUMBER = 1_000_000
"""No job has more ranks: a larger number is made up, and costly to count to."""


def whole_number(text: str) -> int | None:
    """The number from 0 to MAX_NUMBER that the text is, or None.

    Every number that another user's process tells is read here.
    """
    text = text.strip()
    if len(text) > MAX_DIGITS or not (text.isascii() and text.isdigit()):
        return None
    value = int(text)
    return value if value <= MAX_NUMBER else None


_KEPT_BYTES = {name.encode(): name for name in KEPT_VARIABLES}


def number(environ: Mapping[str, str], *names: str) -> int | None:
    """The first of these variables that holds a whole number from 0 on."""
    for name in names:
        value = whole_number(environ.get(name, ""))
        if value is not None:
            return value
    return None
