"""Identifies processes across pid reuse, read from /proc.

A process is identified by host, boot, pid namespace, pid, and start time. Signals are sent, if the
kernel supports it, through a pidfd opened before the identity is checked, so that they cannot reach
a later process with the same pid. A process of another user is never evidence for a job.
"""

from __future__ import annotations

import functools
import os
import pwd
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from ddptop_runner.model.snapshot import ProcessId

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
"""The unit of start and CPU times in /proc."""
_PROC = Path("/proc")
_STAT_BYTES = 4096
_EXITING = 0x4
_WITHOUT_MEMORY = 0x00200000 | _EXITING
"""PF_KTHREAD and PF_EXITING in the kernel's sched.h; such processes never have anything to read."""
EXEC_WAIT_S = 0.5
"""How long to retry for a process in the middle of an execve, which usually takes 0.1 ms but on a
busy machine may be interrupted, like the reader."""
EXEC_POLL_S = 0.0005
_MEMORY_BYTES = 1 << 22
"""More than execve accepts by default, which is a quarter of the stack limit."""
_MAX_WORDS = 1 << 16
"""Maximum length of a command line, since a process can present any of its memory as one."""


@functools.cache
def host_name() -> str:
    """This machine's host name, as used in file names and snapshots."""
    return os.uname().nodename.split(".")[0] or "localhost"


@functools.cache
def boot_id() -> str | None:
    """The kernel's ID of this boot; None if unknown."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


@functools.cache
def pid_namespace() -> int | None:
    """Inode of this process's pid namespace."""
    try:
        return (_PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return None


def read_up_to(path: str, limit: int, *, at_once: bool = True) -> bytes:
    """Up to `limit` bytes of a file in /proc, whose content another user can make endless.

    Args:
        path: the file.
        limit: in bytes.
        at_once: use one read, which returns the whole command line or environment; between two,
            the process may become a different program. Lists such as maps come page by page.
    """
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - hot
        data = file.read(limit) or b""
        if at_once or not data:
            return data
        parts, left = [data], limit - len(data)
        while left > 0 and (part := file.read(left)):
            parts.append(part)
            left -= len(part)
    return b"".join(parts)


def stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat after the command: [0] is the state, [1] the parent's pid.

    None if there is no such process. The command may itself contain parentheses.
    """
    named = name_and_stat(pid)
    return None if named is None else named[1]


def name_and_stat(pid: int, proc: str = "/proc") -> tuple[str, list[str]] | None:
    """(name that a process gave itself, `stat_fields`); None if it is gone."""
    try:
        data = read_up_to(f"{proc}/{pid}/stat", _STAT_BYTES)
    except OSError:
        return None
    before, _, after = data.rpartition(b")")
    return before.partition(b"(")[2].decode("utf-8", "replace"), after.decode(
        "ascii", "replace"
    ).split()


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None if it is gone."""
    fields = stat_fields(pid)
    return int(fields[19]) if fields else None


def state_letter(pid: int) -> str | None:
    """R, S, D, T, Z, and so on, as in ps(1); None if it is gone."""
    fields = stat_fields(pid)
    return fields[0] if fields else None


def identify(pid: int) -> ProcessId:
    """The present identity of a process on this host."""
    return identity(pid, start_ticks(pid))


def identity(pid: int, start_ticks: int | None) -> ProcessId:
    """The identity of a process on this host with that start time."""
    return ProcessId(
        host=host_name(),
        boot_id=boot_id(),
        pid_ns=pid_namespace(),
        pid=pid,
        start_ticks=start_ticks,
    )


def is_here(process: ProcessId) -> bool:
    """Whether the process belongs to this host, boot, and pid namespace, so that it is visible."""
    return (
        process.host == host_name()
        and process.boot_id == boot_id()
        and process.pid_ns == pid_namespace()
    )


def is_alive(process: ProcessId | None) -> bool:
    """Whether that process exists here and is not a zombie."""
    if process is None or not is_here(process):
        return False
    fields = stat_fields(process.pid)
    if fields is None:
        return False
    return fields[0] not in "ZX" and int(fields[19]) == process.start_ticks


def is_ending(pid: int) -> bool:
    """Whether it is gone, a zombie, or exiting, when it no longer has files and memory."""
    fields = stat_fields(pid)
    return fields is None or fields[0] in "ZX" or bool(int(fields[6]) & _EXITING)


def written_bytes(pid: int) -> int | None:
    """Bytes that the process has passed to write calls; None if unknown."""
    try:
        data = read_up_to(f"{_PROC}/{pid}/io", _STAT_BYTES)
    except OSError:
        return None
    pairs = (line.partition(b":") for line in data.splitlines())
    counts = {name: int(value) for name, _, value in pairs if value.strip().isdigit()}
    return counts.get(b"wchar")


def uid_of(pid: int) -> int | None:
    """The user that a process acts for; None if it is gone or acts for several.

    The owner of /proc/<pid> would be only the effective user, but the arguments and environment of
    a setuid program are chosen by the user who starts it.
    """
    try:
        status = (_PROC / str(pid) / "status").read_bytes()
    except OSError:
        return None
    return uid_in_status(status)


def uid_in_status(status: bytes) -> int | None:
    """`uid_of` from the content of /proc/<pid>/status."""
    uids = _uids(status)
    return int(uids[0]) if len(set(uids)) == 1 else None


def real_uid_in_status(status: bytes) -> int | None:
    """The user who started the process, whatever its present privileges."""
    uids = _uids(status)
    return int(uids[0]) if uids else None


def _uids(status: bytes) -> list[bytes]:
    """Real, effective, saved, and file-system UIDs; the process's name cannot fake such a line."""
    return status.partition(b"\nUid:")[2].partition(b"\n")[0].split()[:4]


@functools.lru_cache(maxsize=256)
def user_name(uid: int) -> str:
    """The user's name, or the UID if the machine has no name for it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def environ_value(pid: int, name: str) -> str | None:
    """The value of a variable in the process's initial environment."""
    entries = b"\0" + _of_memory(pid, "environ", start_field=47)
    _, found, rest = entries.partition(b"\0" + name.encode() + b"=")
    return rest.partition(b"\0")[0].decode("utf-8", "surrogateescape") if found else None


def environ_of(pid: int) -> dict[str, str]:
    """The process's initial environment; empty if it cannot be read."""
    entries = _of_memory(pid, "environ", start_field=47).split(b"\0")
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if b"=" in entry)
    return {name: value for name, _, value in pairs}


def argv(pid: int) -> list[str]:
    """The process's command line; empty if it is gone or a zombie."""
    words = _of_memory(pid, "cmdline", start_field=45).split(b"\0", _MAX_WORDS)[:-1]
    return [word.decode("utf-8", "surrogateescape") for word in words]


def _of_memory(pid: int, name: str, start_field: int) -> bytes:
    """The content of a file in /proc/<pid> that shows the process's memory; empty without one.

    In the middle of an execve, the old memory is gone and the new memory is not filled yet, so that
    a live process appears to have neither environment nor arguments. In that case, retries.

    Args:
        pid: the process.
        name: environ or cmdline.
        start_field: index in `stat_fields` of its start address; its end address is next.
    """
    deadline_s = time.monotonic() + EXEC_WAIT_S
    found_at = None
    try:
        while not (data := read_up_to(f"/proc/{pid}/{name}", _MEMORY_BYTES)):
            fields = stat_fields(pid)
            if fields is None or int(fields[6]) & _WITHOUT_MEMORY:
                break
            # the address of the code is set after the memory is filled
            is_filled = fields[23] != "0"
            at = (fields[23], *fields[start_field : start_field + 2])
            if time.monotonic() > deadline_s or (is_filled and at == found_at):
                break
            found_at = at
            if not is_filled:
                time.sleep(EXEC_POLL_S)
    except OSError:
        return b""
    return data


def all_pids() -> Iterator[int]:
    """Every pid in this namespace."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def pids_of_job(job_id: str, owner: int | None = None) -> list[int]:
    """PIDs of live processes with this DDPTOP_JOB_ID, whatever started them.

    Args:
        job_id: the value of the variable.
        owner: the job's owner, if root inspects another user's job. Processes of any other user do
            not count.
    """
    owners = {os.geteuid(), owner} - {None}
    return [
        pid
        for pid in all_pids()
        if _shown_owner(pid) in owners  # before reading what anyone can make megabytes long
        and environ_value(pid, "DDPTOP_JOB_ID") == job_id
        and uid_of(pid) in owners
        and state_letter(pid) not in ("Z", "X", None)
    ]


def _shown_owner(pid: int) -> int | None:
    """The owner of /proc/<pid>, which is only a hint; see `uid_of`."""
    try:
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116 - hot
    except OSError:
        return None


def signal_process(process: ProcessId, number: int, uid: int | None = None) -> bool:
    """Send a signal to exactly that process; returns False if it is gone or may not be signaled.

    Args:
        process: the process.
        number: the signal's number.
        uid: its required present user, if that matters.
    """
    import signal  # what only reads jobs does without

    pidfd = open_pidfd(process.pid)
    try:
        if not is_alive(process) or (uid is not None and uid_of(process.pid) != uid):
            return False
        if pidfd is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(pidfd, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if pidfd is not None:
            os.close(pidfd)
    return True


def open_pidfd(pid: int) -> int | None:
    """A pidfd of the present process with that pid; None without one or without support."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux; no such process, or an older kernel
        return None


def signal_all(processes: Iterable[ProcessId], number: int, uid: int | None = None) -> int:
    """Signal each that is still the same process of that user; returns how many."""
    return sum(signal_process(process, number, uid) for process in processes)


def catches_signal(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal (SigCgt in /proc/<pid>/status)."""
    return bool(_signal_mask(pid, "SigCgt") >> (number - 1) & 1)


def blocks_signal(pid: int, number: int) -> bool:
    """Whether the process's main thread blocks the signal, which delays it."""
    return bool(_signal_mask(pid, "SigBlk") >> (number - 1) & 1)


def awaits_signal(pid: int, number: int) -> bool:
    """Whether the signal is pending, or blocked by the main thread, as while that handles it."""
    return bool(_signal_mask(pid, "ShdPnd", "SigBlk") >> (number - 1) & 1)


def _signal_mask(pid: int, *fields: str) -> int:
    """The signals in any of these fields of /proc/<pid>/status."""
    try:
        status = (_PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    mask = 0
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name in fields:
            mask |= int(value, 16)
    return mask
