"""Who runs a process on a device: user and command of a PID that the driver reported."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import msgspec

from ddptop_runner.host import procs
from ddptop_runner.model.snapshot import GpuProcess, GpuSample

INIT_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the initial PID namespace (PROC_PID_INIT_INO), whose PIDs the driver uses."""

COMMAND_LIMIT = 400
"""Maximum length of a stored command, in characters."""

_READ_BYTES = 8 * COMMAND_LIMIT
"""Read at most this much of a command line, which another user can make arbitrarily long."""

_CUDA_LIBRARY = b"/libcuda.so"

_MAPS_BYTES = 16 << 20

OTHER_NAMESPACE = "in another PID namespace (start the container with --pid=host)"
HIDDEN = "cannot be inspected (/proc is mounted with hidepid; needs root)"
EXITED = "the process has exited, but the driver still lists it"
NAMELESS = "no command line"


class ProcessOwners:
    """User and command by PID.

    In a container, an older driver reports host PIDs, which may belong to other processes there.
    Outside the initial PID namespace, a PID therefore counts only if its process has CUDA's library
    mapped.
    """

    def __init__(self, pid_namespace: int | None = None) -> None:
        """`pid_namespace` defaults to that of this process."""
        here = procs.pid_namespace() if pid_namespace is None else pid_namespace
        self.pids_are_the_drivers = here == INIT_PID_NAMESPACE
        """Whether the driver reports PIDs of this namespace."""
        self._uses_cuda: dict[tuple[int, int | None], bool] = {}

    def describe(self, pid: int) -> GpuProcess:
        """A process with its user and command; None where unknown, with a note that says why."""
        if not self.pids_are_the_drivers and not self._checked(pid):
            return GpuProcess(pid=pid, note=OTHER_NAMESPACE)
        try:
            uid = os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116 - hot, like the rest of /proc
        except OSError:
            return _invisible(pid)
        user = procs.user_name(uid)
        try:
            argv = _read(pid, "cmdline").rstrip(b"\0") or _read(pid, "comm").strip()
        except PermissionError:
            return GpuProcess(pid=pid, user=user, note=HIDDEN)
        except OSError:
            return GpuProcess(pid=pid, user=user, note=EXITED, has_exited=True)
        text = argv.replace(b"\0", b" ").decode("utf-8", "replace").strip()
        command = "".join(char if char.isprintable() else " " for char in text)
        note = None if command else NAMELESS
        return GpuProcess(pid=pid, user=user, command=shortened(command) or None, note=note)

    def _checked(self, pid: int) -> bool:
        key = (pid, procs.start_ticks(pid))
        if key not in self._uses_cuda:
            if len(self._uses_cuda) > 1000:
                self._uses_cuda.clear()
            self._uses_cuda[key] = _has_mapped(pid, _CUDA_LIBRARY)
        return self._uses_cuda[key]


def shortened(command: str) -> str:
    """The command, of bounded length."""
    return command if len(command) <= COMMAND_LIMIT else f"{command[: COMMAND_LIMIT - 3]}..."


def _read(pid: int, name: str) -> bytes:
    """A file in /proc/<pid>; the `cmdline` of a zombie or kernel thread is empty."""
    return procs.read_up_to(f"/proc/{pid}/{name}", _READ_BYTES)


def _invisible(pid: int) -> GpuProcess:
    """A process that /proc does not show; hidepid=2 hides those of other users."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return GpuProcess(pid=pid, note=EXITED, has_exited=True)
    except PermissionError:
        pass
    return GpuProcess(pid=pid, note=HIDDEN)


def _has_mapped(pid: int, name: bytes) -> bool:
    """Whether a file with this name is mapped; False if that cannot be read."""
    try:
        return name in procs.read_up_to(f"/proc/{pid}/maps", _MAPS_BYTES, at_once=False)
    except OSError:
        return False


def labeled(
    gpus: Iterable[GpuSample], owners: Mapping[int, tuple[str, int | None]]
) -> list[GpuSample]:
    """The samples, with job and rank set for processes whose job is known, by PID."""
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
