"""What a rank writes when asked: its stacks, and torch's flight record.

A signal makes faulthandler append the stacks of all threads to a file; so does a crash (SIGSEGV,
SIGABRT, and others). This works while a hung C call holds the interpreter's lock, and needs no
ptrace permission.

Only this module uses the private names of torch's flight recorder, which knows how far each process
group has come. Reading that costs some 10 µs and does not query any device; the complete record is
read only when it is asked for.
"""

from __future__ import annotations

import faulthandler
import fcntl
import json
import os
import signal
import sys
import threading
from typing import Any

from . import identity

RECORDERS = {"gloo": "_dump_fr_trace_json", "nccl": "_dump_nccl_trace_json"}
"""{backend: function of torch._C._distributed_c10d}; each backend numbers its own groups."""

MAX_GROUPS = 8
OTHER = "other"
"""The name under which all groups after the first MAX_GROUPS are added up."""


class Flight:
    """Reads the recorder of one process; created again after a fork."""

    def __init__(self):
        # after a fork, a thread that no longer exists may hold the recorder's lock
        self._is_off = _world() is not None
        self._has_begun = False
        self._groups = Groups()
        self._was_requested = False
        self.collectives = {}
        """{group's name: [last enqueued, last completed]}."""

    def look(self):
        """Read the progress of the groups; returns whether anything has changed."""
        if self._is_off:
            return False
        world = _world()
        if world is None and not self._has_begun:
            return False
        self._has_begun = True
        if world is not None:
            self._groups.update(world)
        found = self._groups.name(_statuses(self._groups.backends))
        has_changed = found != self.collectives
        self.collectives = found
        return has_changed

    @property
    def holds_thread(self):
        """Whether all groups use gloo on the CPU, whose collectives block the waiting thread."""
        cuda: Any = sys.modules.get("torch.cuda")
        return "gloo" in self._groups.backends and not (cuda is not None and cuda.is_initialized())

    def write_if_requested(self):
        """Write the complete record once the supervisor asks for it.

        It asks by a file of its own folder, once an attempt, before any rank is ended.
        """
        folder = os.environ.get("DDPTOP_STACKS_DIR")
        if self._was_requested or not folder or not self._has_begun:
            return
        attempt = identity.env_int("DDPTOP_ATTEMPT") or 0
        if os.path.exists(os.path.join(folder, "attempt-{}-records-asked".format(attempt))):
            self._was_requested = True
            self.write()

    def write(self):
        """Write the complete record of a rank that took part in any group."""
        if not self._is_off and self._has_begun:
            write_record(self._groups.backends)


class Groups:
    """Names of process groups by the numbers that the recorder gives them.

    The recorder counts the groups of one backend in the order in which this process created them. A
    process creates only the groups that it belongs to, so the same number means another group on
    another rank; the name is the same on all ranks.
    """

    def __init__(self):
        self._made: dict[str, list] = {backend: [] for backend in RECORDERS}
        """{backend: [(identity of the group, name)]} in the order of making."""
        self._alive = set()
        self._shown = []

    @property
    def backends(self):
        """The backends that have created a group; the recorders of others are not used."""
        return [backend for backend, made in self._made.items() if made]

    def update(self, world):
        """Store the groups that exist now.

        Args:
            world: torch.distributed's table of groups.
        """
        alive = [(id(group), str(name)) for group, name in list(world.pg_names.items())]
        if len(alive) == len(self._alive) and self._alive.issuperset(alive):
            return
        configs = {id(group): str(config) for group, config in world.pg_backend_config.items()}
        for group in alive:
            if group not in self._alive:
                for backend, made in self._made.items():
                    if backend in configs.get(group[0], ""):
                        made.append(group)
        self._alive = set(alive)

    def name(self, statuses):
        """{name: [enqueued, completed]} of what the recorder reports by number.

        A group that was destroyed waits for nothing. A number that no group is known for, as where
        torch makes groups of its own to check others, is named `#number`: this rank's alone.

        Args:
            statuses: {backend: {number: (enqueued, completed)}}.
        """
        found: dict[str, list[int]] = {}
        for backend, by_number in statuses.items():
            made = self._made[backend]
            is_known = len(made) > max(by_number, default=-1) and not _makes_helpers()
            for number, (entered, done) in sorted(by_number.items()):
                name = "#{}".format(number)
                if is_known:
                    name = made[number][1]
                    if made[number] not in self._alive:
                        entered = done
                if name not in self._shown:
                    self._shown.append(name)
                if name not in self._shown[:MAX_GROUPS]:
                    name = OTHER
                sums = found.setdefault(name[:32], [0, 0])
                sums[0] += entered
                sums[1] += done
        return found


def write_record(backends):
    """Write the complete flight record of a rank; does nothing if that fails.

    Args:
        backends: those that have groups. If there are several, the record with a collective that
            has not completed is used.
    """
    statuses = _statuses(backends)
    if not statuses:
        return
    waiting = [
        backend
        for backend, by_number in statuses.items()
        if any(entered > done for entered, done in by_number.values())
    ]
    write_file("flight.json", _call(RECORDERS[[*statuses, *waiting][-1]]))


def write_file(name, data):
    """Write `attempt-<n>-rank-<r>-<name>` to the folder of stacks; does nothing if that fails."""
    folder, rank = os.environ.get("DDPTOP_STACKS_DIR"), identity.rank()
    if not folder or rank is None:
        return
    attempt = identity.env_int("DDPTOP_ATTEMPT") or 0
    path = os.path.join(folder, "attempt-{}-rank-{}-{}".format(attempt, rank, name))
    part = "{}.{}.part".format(path, os.getpid())
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with open(os.open(part, flags, 0o600), "wb") as file:
            os.fchmod(file.fileno(), 0o600)  # regardless of the script's umask
            file.write(data)
        os.replace(part, path)
    except OSError:
        try:
            os.unlink(part)
        except OSError:
            pass


def _statuses(backends):
    """{backend: {number of the group: (enqueued, completed)}}."""
    statuses = {}
    for backend in backends:
        record = _call(RECORDERS[backend], includeCollectives=False)
        if record:
            statuses[backend] = {
                int(number): (
                    max(0, int(status["last_enqueued_collective"])),
                    max(0, int(status["last_completed_collective"])),
                )
                for number, status in _groups_in(record).items()
            }
    return statuses


def _groups_in(record):
    return json.loads(record).get("pg_status") or {}


def _call(name, **options):
    """The result of a recorder function; None if this torch has no such recorder."""
    recorder: Any = sys.modules.get("torch._C._distributed_c10d")
    function = getattr(recorder, name, None)
    return None if function is None else function(**options)


def _world():
    """torch.distributed's table of groups if there is a default group, else None."""
    module: Any = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(module, "_world", None)
    return world if world is not None and world.default_pg is not None else None


def _makes_helpers():
    """Whether torch creates an additional group for each one, to check its use."""
    return os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL"


# -- stacks --------------------------------------------------------------------------------------

HIGH_FD = 900
"""Descriptors below may be closed and reused by a script that closes "all" of them; a dump must
never end up in the script's own file."""


STACK_SIGNAL = int(signal.SIGRTMIN) + 9
"""Its number is the same in every process."""


def register_stacks(folder, attempt, rank):
    """Dump stacks to `attempt-<n>-rank-<r>.txt` in `folder` on the signal.

    Returns:
        The signal's number, or None where it is in use or nothing could be registered.
    """
    number = STACK_SIGNAL
    if signal.getsignal(number) is not signal.SIG_DFL or _is_caught(number):
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
            faulthandler.enable(file=fd)
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
    except OSError:
        return fd
    os.close(fd)
    return high
