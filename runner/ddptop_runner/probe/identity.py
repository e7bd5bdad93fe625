"""Which rank of which job this process is.

A rank's children inherit its environment, so RANK alone does not make a rank: the first process of
a job that imports torch with RANK set claims it in a variable that its children see.
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

_place: tuple = (None, None, None)
"""(pid, rank, world size) that torch.distributed last told."""


def claim_rank():
    """Whether this process is a rank itself and not a child of one; claims the rank if so."""
    if env_int("RANK") is None:
        return False
    job_id = os.environ.get("DDPTOP_JOB_ID", "")
    owner_pid, _, owner_job = os.environ.get(OWNER, "").partition(":")
    if owner_job == job_id and owner_pid not in ("", str(os.getpid())):
        return False
    os.environ[OWNER] = "{}:{}".format(os.getpid(), job_id)
    return True


def is_owner():
    """Whether this process claimed its rank."""
    return os.environ.get(OWNER, "").partition(":")[0] == str(os.getpid())


def rank():
    """This process's global rank, None when unknown."""
    group_rank, _ = _group_place()
    # a rank's child that trains (mp.spawn) has inherited RANK, and knows better once it joined
    if group_rank is not None and not is_owner():
        return group_rank
    number = env_int("RANK")
    if number is None:
        number = group_rank
    return _first(RANK_NAMES) if number is None else number


def local_rank():
    """This process's rank on its host, None when unknown."""
    return _first(LOCAL_RANK_NAMES)


def world_size():
    """The number of ranks, None when unknown."""
    _, group_size = _group_place()
    if group_size is not None and not (is_owner() and env_int("WORLD_SIZE") is not None):
        return group_size
    return _first(WORLD_SIZE_NAMES)


def env_int(name):
    """A variable that holds a whole number, None when it does not."""
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return None


def is_data_worker():
    """Whether this process is a worker of a torch DataLoader."""
    workers = sys.modules.get("torch.utils.data._utils.worker")
    return getattr(workers, "_worker_info", None) is not None


def _first(names):
    return next((env_int(name) for name in names if env_int(name) is not None), None)


def _group_place():
    """(rank, world size) in torch.distributed's default group, also after the group's end."""
    global _place
    distributed: Any = sys.modules.get("torch.distributed")
    try:
        if distributed.is_available() and distributed.is_initialized():
            _place = (os.getpid(), distributed.get_rank(), distributed.get_world_size())
    except (AttributeError, RuntimeError, ValueError):  # not imported, or being destroyed
        pass
    return _place[1:] if _place[0] == os.getpid() else (None, None)
