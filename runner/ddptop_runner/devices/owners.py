"""Who runs on a device: user and command of a pid that the driver named."""

from __future__ import annotations

import functools
import os
import pwd

from ddptop_runner import procs

INIT_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the first pid namespace (PROC_PID_INIT_INO), whose pids are the driver's."""

COMMAND_LIMIT = 400
"""Longest command kept, in characters."""

_CUDA_LIBRARY = b"/libcuda.so"


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

    def describe(self, pid: int) -> tuple[str | None, str | None]:
        """(user, command) of a process; None for what cannot be known here."""
        if not self._pids_are_ours and not self._checked(pid):
            return None, None
        try:
            uid = os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116 - hot, like the rest of /proc
            with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
                argv = file.read().rstrip(b"\0")
            if not argv:  # a zombie, or a kernel thread
                with open(f"/proc/{pid}/comm", "rb") as file:  # noqa: PTH123
                    argv = file.read().strip()
        except OSError:
            return None, None
        text = argv.replace(b"\0", b" ").decode("utf-8", "replace").strip()
        command = "".join(char if char.isprintable() else " " for char in text)
        if len(command) > COMMAND_LIMIT:
            command = command[: COMMAND_LIMIT - 3] + "..."
        return user_name(uid), command or None

    def _checked(self, pid: int) -> bool:
        key = (pid, procs.start_ticks(pid))
        if key not in self._uses_cuda:
            if len(self._uses_cuda) > 1000:
                self._uses_cuda.clear()
            self._uses_cuda[key] = _has_mapped(pid, _CUDA_LIBRARY)
        return self._uses_cuda[key]


def _has_mapped(pid: int, name: bytes) -> bool:
    """Whether a file of that name is mapped; False where that may not be read."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:  # noqa: PTH123
            return name in file.read()
    except OSError:
        return False


@functools.lru_cache(maxsize=256)
def user_name(uid: int) -> str:
    """The user's name, or the number where the machine has no name for it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
