"""Which rank of which job this process is.

A rank's children inherit its environment, so a launcher's variables alone do not identify a rank.
The first process of a job that imports torch with a rank in its environment claims that rank in a
variable that its children see. In a process that has joined a process group, the group takes
precedence.
"""

from __future__ import annotations

import os
import sys
from typing import Any

OWNER = "DDPTOP_PROBE_OWNER"
"""`<pid>:<job id>` of the process that is the rank."""

RANK_NAMES = ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK")
LOCAL_RANK_NAMES = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "HOROVOD_LOCAL_RANK")
WORLD_SIZE_NAMES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "HOROVOD_SIZE")

SLURM_STEP_NAMES = ("SLURM_STEP_ID", "SLURM_STEPID")
"""Set in processes started by srun; a batch script also has SLURM_PROCID, but is not a rank."""

LAUNCHERS = frozenset(("torchrun", "accelerate", "deepspeed", "horovodrun", "lightning", "fabric"))
LAUNCHER_MODULES = ("torch.distributed.", "accelerate.commands.", "deepspeed.launcher.")

_place: tuple = (None, None, None, None)
"""(pid, rank, world size, local rank) that a process group last reported."""


def claim_rank():
    """Whether this process is a rank itself and not the child of one; claims the rank if so."""
    if env_int("RANK") is None and (_launchers_rank() is None or _is_launcher()):
        return False
    if _is_child_of_owner():
        return False
    os.environ[OWNER] = "{}:{}".format(os.getpid(), os.environ.get("DDPTOP_JOB_ID", ""))
    return True


def is_owner():
    """Whether this process claimed its rank."""
    return os.environ.get(OWNER, "").partition(":")[0] == str(os.getpid())


def has_joined():
    """Whether this process is, or was, a member of a process group."""
    return _group_place()[0] is not None


def rank():
    """This process's global rank; None if unknown."""
    group_rank = _group_place()[0]
    # a rank's child that trains (mp.spawn) has inherited RANK; once it joined a group, that counts
    if group_rank is not None and not is_owner():
        return group_rank
    number = env_int("RANK")
    if number is None:
        number = group_rank
    return _launchers_rank() if number is None else number


def local_rank():
    """This process's rank on its host; None if unknown."""
    number = _first(LOCAL_RANK_NAMES)
    if number is None and _is_slurm_task():
        number = env_int("SLURM_LOCALID")
    return _group_place()[2] if number is None else number


def world_size():
    """The number of ranks; None if unknown."""
    group_size = _group_place()[1]
    if group_size is not None and not (is_owner() and env_int("WORLD_SIZE") is not None):
        return group_size
    number = _first(WORLD_SIZE_NAMES)
    if number is None and _is_slurm_task():
        number = _first(("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"))
    return number


def env_int(name):
    """A variable that contains a whole number; None if it does not."""
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return None


def is_data_worker():
    """Whether this process is a worker of a torch DataLoader."""
    workers = sys.modules.get("torch.utils.data._utils.worker")
    return getattr(workers, "_worker_info", None) is not None


def _is_child_of_owner():
    owner_pid, _, owner_job = os.environ.get(OWNER, "").partition(":")
    return owner_job == os.environ.get("DDPTOP_JOB_ID", "") and owner_pid not in (
        "",
        str(os.getpid()),
    )


def _launchers_rank():
    """The rank assigned by a launcher other than torch's; None if there is none."""
    number = _first(RANK_NAMES)
    if number is None and _is_slurm_task():
        number = env_int("SLURM_PROCID")
    if number is None and env_int("NODE_RANK") == 0 and env_int("WORLD_SIZE") is not None:
        number = env_int("LOCAL_RANK")  # Lightning starts all ranks but the first this way
    return number


def _is_slurm_task():
    return any(name in os.environ for name in SLURM_STEP_NAMES)


def _is_launcher():
    """Whether this process starts the ranks: its variables are its own task's, as under srun."""
    words = [*getattr(sys, "orig_argv", ())[1:5], *getattr(sys, "argv", ())[:1]]
    return any(
        os.path.basename(word) in LAUNCHERS or word.startswith(LAUNCHER_MODULES) for word in words
    )


def _first(names):
    return next((env_int(name) for name in names if env_int(name) is not None), None)


def _group_place():
    """(rank, world size, local rank) in the default process group, even after the group has ended.

    The local rank is None if the group does not know it.
    """
    global _place
    try:
        place = _torch_place() or _horovod_place()
        if place is not None:
            _place = (os.getpid(), *place)
    except (AttributeError, OSError, RuntimeError, ValueError):  # not imported, or being destroyed
        pass
    return _place[1:] if _place[0] == os.getpid() else (None, None, None)


def _torch_place():
    distributed: Any = sys.modules.get("torch.distributed")
    try:
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size(), None
    except AttributeError:  # not imported
        pass
    return None


def _horovod_place():
    horovod: Any = sys.modules.get("horovod.torch")
    if horovod is None or not horovod.is_initialized():
        return None
    return horovod.rank(), horovod.size(), horovod.local_rank()
