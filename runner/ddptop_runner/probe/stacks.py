"""Stacks on request: a signal makes faulthandler append the stacks of all threads to a file.

A crash (SIGSEGV, SIGABRT, and others) also appends the stack of its thread. This works while a hung
C call holds the interpreter's lock, and needs no ptrace permission.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

HIGH_FD = 900
"""Descriptors below may be closed and reused by a script that closes "all" of them; a dump must
never end up in the script's own file."""


def stack_signal():
    """The signal's number, the same in every process: SIGRTMIN + 9; None if it does not exist."""
    first = getattr(signal, "SIGRTMIN", None)
    return None if first is None else int(first) + 9


def register(folder, attempt, rank):
    """Dump stacks to `attempt-<n>-rank-<r>.txt` in `folder` on the signal.

    Returns:
        The signal's number, or None where it is in use or nothing could be registered.
    """
    number = stack_signal()
    if number is None or signal.getsignal(number) is not signal.SIG_DFL or _is_caught(number):
        return None
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        path = os.path.join(folder, "attempt-{}-rank-{}.txt".format(attempt, rank))
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        fd = _raise_fd(os.open(path, flags, 0o600))
        os.fchmod(fd, 0o600)  # regardless of the script's umask
        if threading.current_thread() is threading.main_thread():
            # faulthandler restores this when the interpreter ends: no late request may kill it
            signal.signal(number, signal.SIG_IGN)
        faulthandler.register(number, file=fd, chain=False)
        if not faulthandler.is_enabled():  # otherwise, the script wants it on its stderr
            faulthandler.enable(file=fd, all_threads=False)
    except (OSError, ValueError, RuntimeError):
        return None
    return number


def is_ours(number):
    """Whether the script has not taken the signal since it was registered, as Python knows."""
    return signal.getsignal(number) in (signal.SIG_DFL, signal.SIG_IGN)


ENDING_MODULES = ("torch.distributed.elastic", "submitit", "lightning", "pytorch_lightning")
"""Their handlers of SIGUSR1 and SIGUSR2 end the process, or make Slurm end it, while saving."""


def save_signals():
    """Numbers of the signals that ask many scripts to save, if this one handles them."""
    return [
        int(number)
        for number in (signal.SIGUSR1, signal.SIGUSR2)
        if _is_for_saving(signal.getsignal(number))
    ]


def _is_for_saving(handler):
    """Whether it is a Python handler that is not known to end the process."""
    if not callable(handler):
        return False
    module = str(getattr(getattr(handler, "func", handler), "__module__", ""))
    return not any(module == name or module.startswith(name + ".") for name in ENDING_MODULES)


def _is_caught(number):
    """Whether something outside Python handles the signal."""
    try:
        with open("/proc/self/status", "rb") as status:
            for line in status:
                if line.startswith(b"SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (OSError, ValueError, IndexError):
        pass
    return False


def _raise_fd(fd):
    """The same file under a high descriptor, if the limit allows one."""
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    except (OSError, AttributeError):
        return fd
    os.close(fd)
    return high
