"""Stacks on request: a signal makes faulthandler append all threads' stacks to a file.

A crash (SIGSEGV, SIGABRT and the like) appends the stack of its thread there too. All this works
while the interpreter's lock is held by a hung C call and needs no ptrace right.
"""

from __future__ import annotations

import faulthandler
import os
import signal

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

HIGH_FD = 900
"""Descriptors below may be closed and reused by a script that closes "all" of them; a dump must
never end up in the script's own file."""


def stack_signal():
    """The signal's number, the same in every process: SIGRTMIN + 9. None where there is none."""
    first = getattr(signal, "SIGRTMIN", None)
    return None if first is None else int(first) + 9


def register(folder, attempt, rank):
    """Dump stacks to `attempt-<n>-rank-<r>.txt` in `folder` on the signal.

    Returns:
        The signal's number, or None where it is in use or nothing could be registered.
    """
    number = stack_signal()
    if number is None or not is_free(number) or _is_caught(number):
        return None
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        path = os.path.join(folder, "attempt-{}-rank-{}.txt".format(attempt, rank))
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        fd = _raise_fd(os.open(path, flags, 0o600))
        os.fchmod(fd, 0o600)  # whatever the script's umask
        faulthandler.register(number, file=fd, chain=False)
        if not faulthandler.is_enabled():  # else the script wants it on its stderr
            faulthandler.enable(file=fd, all_threads=False)
    except (OSError, ValueError, RuntimeError):
        return None
    return number


def is_free(number):
    """Whether the script has not taken the signal for itself, as far as Python knows."""
    return signal.getsignal(number) is signal.SIG_DFL


ENDING_MODULES = ("torch.distributed.elastic", "submitit", "lightning", "pytorch_lightning")
"""Their handlers of SIGUSR1 and SIGUSR2 end the process, or have Slurm end it, as they save."""


def save_signals():
    """Numbers of the signals that ask many scripts to save, where this one handles them."""
    return [
        int(number)
        for number in (signal.SIGUSR1, signal.SIGUSR2)
        if _is_for_saving(signal.getsignal(number))
    ]


def _is_for_saving(handler):
    """Whether it is a handler in Python, and none that is known to end the process."""
    if not callable(handler):
        return False
    module = str(getattr(getattr(handler, "func", handler), "__module__", ""))
    return not any(module == name or module.startswith(name + ".") for name in ENDING_MODULES)


def _is_caught(number):
    """Whether something outside Python's knowledge handles the signal."""
    try:
        with open("/proc/self/status", "rb") as status:
            for line in status:
                if line.startswith(b"SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (OSError, ValueError, IndexError):
        pass
    return False


def _raise_fd(fd):
    """The same file under a high descriptor where the limit allows one."""
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    except (OSError, AttributeError):
        return fd
    os.close(fd)
    return high
