"""Who runs on a device: user and command of a pid that the driver named."""

from __future__ import annotations

import functools
import os
import pwd
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from ddptop_runner.host import procs
from ddptop_runner.model.snapshot import GpuSample

INIT_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the first pid namespace (PROC_PID_INIT_INO), whose pids are the driver's."""

COMMAND_LIMIT = 400
"""Longest command kept, in characters."""

_READ_BYTES = 8 * COMMAND_LIMIT
"""Of a command line, which another user can make endless."""

_CUDA_LIBRARY = b"/libcuda.so"

_MAPS_BYTES = 16 << 20

OTHER_NAMESPACE = "in another PID namespace (start the container with --pid=host)"
HIDDEN = "cannot be inspected (/proc is mounted with hidepid; needs root)"
ENDED = "the process has exited, but the driver still lists it"
NAMELESS = "no command line"


class Owner(NamedTuple):
    """Who runs a process."""

    user: str | None = None
    command: str | None = None
    note: str | None = None
    """Why one of them is not known."""


class ProcessOwners:
    """User and command by pid.

    In a container an older driver names pids of the host, which may be those of other processes
    in here. So outside the first pid namespace a pid counts only when that process has CUDA's
    library mapped.
    """

    def __init__(self, pid_namespace: int | None = None) -> None:
        """`pid_namespace` is this process's unless given."""
        here = procs.pid_namespace() if pid_namespace is None else pid_namespace
        self._pids_are_ours = here == INIT_PID_NAMESPACE
        self._uses_cuda: dict[tuple[int, int | None], bool] = {}

    @property
    def pids_are_the_drivers(self) -> bool:
        """Whether the driver reports PIDs of this namespace."""
        return self._pids_are_ours

    def describe(self, pid: int) -> Owner:
        """The owner of a process; None for what cannot be known here, with a note that says why."""
        if not self._pids_are_ours and not self._checked(pid):
            return Owner(note=OTHER_NAMESPACE)
        try:
            uid = os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116 - hot, like the rest of /proc
        except OSError:
            return Owner(note=_why_invisible(pid))
        user = user_name(uid)
        try:
            argv = _read(pid, "cmdline").rstrip(b"\0") or _read(pid, "comm").strip()
        except PermissionError:
            return Owner(user=user, note=HIDDEN)
        except OSError:
            return Owner(user=user, note=ENDED)
        text = argv.replace(b"\0", b" ").decode("utf-8", "replace").strip()
        command = "".join(char if char.isprintable() else " " for char in text)
        if len(command) > COMMAND_LIMIT:
            command = command[: COMMAND_LIMIT - 3] + "..."
        return Owner(user, command or None, None if command else NAMELESS)

    def _checked(self, pid: int) -> bool:
        key = (pid, procs.start_ticks(pid))
        if key not in self._uses_cuda:
            if len(self._uses_cuda) > 1000:
                self._uses_cuda.clear()
            self._uses_cuda[key] = _has_mapped(pid, _CUDA_LIBRARY)
        return self._uses_cuda[key]


def _read(pid: int, name: str) -> bytes:
    """A file of /proc/<pid>; a zombie's and a kernel thread's `cmdline` is empty."""
    return procs.read_up_to(f"/proc/{pid}/{name}", _READ_BYTES)


def _why_invisible(pid: int) -> str:
    """Why there is no /proc/<pid>. With hidepid=2 other users' processes have none."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return HIDDEN
    except (ProcessLookupError, OverflowError):
        return ENDED
    return HIDDEN


def _has_mapped(pid: int, name: bytes) -> bool:
    """Whether a file of that name is mapped; False where that may not be read."""
    try:
        return name in procs.read_up_to(f"/proc/{pid}/maps", _MAPS_BYTES, at_once=False)
    except OSError:
        return False


@functools.lru_cache(maxsize=256)
def user_name(uid: int) -> str:
    """The user's name, or the number where the machine has no name for it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def labeled(
    gpus: Iterable[GpuSample], owners: Mapping[int, tuple[str, int | None]]
) -> list[GpuSample]:
    """The samples with job and rank at the processes whose job is known: by pid, job and rank."""
    found = []
    for gpu in gpus:
        processes = [
            msgspec.structs.replace(one, job=owners[one.pid][0], rank=owners[one.pid][1])
            if one.job is None and one.pid in owners
            else one
            for one in gpu.processes or ()
        ]
        unknown = gpu.processes is None
        found.append(gpu if unknown else msgspec.structs.replace(gpu, processes=processes))
    return found
