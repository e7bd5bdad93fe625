"""Signals, exit statuses and known errors in words a person understands."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass

from ddptop_runner.model.diagnose import PythonException

_SIGNALS = {
    "SIGHUP": "its terminal was closed, or another process sent the signal",
    "SIGINT": "interrupted by Ctrl-C or another process (kill -INT)",
    "SIGQUIT": "sent by another process, usually to get a core dump",
    "SIGILL": (
        "an instruction that this CPU does not support; the binary was built for a different one"
    ),
    "SIGTRAP": "a breakpoint or a failed check in C++ code",
    "SIGABRT": "it aborted after an error in C++ code",
    "SIGBUS": "mapped memory was unavailable, often because /dev/shm is full",
    "SIGFPE": "an integer division by zero in C++ code",
    "SIGSEGV": "an invalid memory access in C++ code",
    "SIGPIPE": "it wrote to a pipe with no reader",
    "SIGALRM": "a timer that it set expired",
    "SIGTERM": "sent by a user, a batch system, or a shutdown",
    "SIGUSR1": "sent by another process; the script does not handle it",
    "SIGUSR2": "sent by another process; the script does not handle it",
    "SIGXCPU": "it exceeded its CPU time limit (ulimit -t)",
    "SIGXFSZ": "a file exceeded the size limit (ulimit -f)",
    "SIGSYS": "a system call blocked by a seccomp filter",
}

_EXIT_CODES = {
    2: "usually means invalid arguments",
    120: "Python could not flush its output at exit: a full disk or a closed pipe",
    126: "the shell found the command but could not execute it",
    127: "the shell did not find the command",
    134: "128 + 6: a shell reports this for a process killed by SIGABRT",
    135: "128 + 7: a shell reports this for a process killed by SIGBUS",
    136: "128 + 8: a shell reports this for a process killed by SIGFPE",
    137: "128 + 9: a shell reports this for a process killed by SIGKILL",
    139: "128 + 11: a shell reports this for a process killed by SIGSEGV",
    130: "128 + 2: a shell reports this for a process killed by SIGINT",
    143: "128 + 15: a shell reports this for a process killed by SIGTERM",
}


def signal_in_words(name: str) -> str | None:
    """What a signal usually means; None for one that explains nothing."""
    return _SIGNALS.get(name)


def exit_code_in_words(code: int) -> str | None:
    """What an exit status usually means; None for one that the program defines."""
    return _EXIT_CODES.get(code)


def killed_by(code: int | None, signal: str | None) -> bool:
    """Whether SIGKILL ended it, or ended a process of which a shell reports it."""
    return signal == "SIGKILL" or code == 137


@dataclass(frozen=True)
class Known:
    """A known error message and its explanation."""

    pattern: re.Pattern[str]
    kind: str | None
    """Of the cause; None leaves it as it is."""
    words: str


def _known(pattern: str, kind: str | None, words: str) -> Known:
    return Known(re.compile(pattern, re.IGNORECASE), kind, words)


MISMATCH = _known(
    r"Detected mismatch between collectives|collective mismatch in your code"
    r"|expects same model across all ranks|inconsistent \d+ params",
    None,
    "The ranks diverged: they entered different collectives or used different sizes.",
)

_KNOWN = (
    _known(
        r"uncorrectable (ECC|NVLINK) error|GPU is lost|fallen off the bus|CUDA error: unknown error"
        r"|device kernel image is invalid due to hardware",
        "gpu",
        "The device itself failed: see `ddptop gpus` and the kernel log.",
    ),
    _known(
        r"device-side assert",
        None,
        "An assertion in a CUDA kernel failed, usually because an index is out of range (a label "
        "or token ID that is too large); CUDA_LAUNCH_BLOCKING=1 shows the actual line.",
    ),
    _known(
        r"an illegal memory access|misaligned address|unspecified launch failure",
        None,
        "A kernel accessed invalid memory; the line shown may be a later one: "
        "CUDA_LAUNCH_BLOCKING=1 shows the actual line.",
    ),
    _known(
        r"(/dev/shm|shared memory|shm_open|torch_shm|nccl-).*(No space left|out of shared memory)"
        r"|out of shared memory|unable to (open|mmap|allocate|write).*(shared memory|torch_\d+)"
        r"|is killed by signal: Bus error",
        None,
        "/dev/shm is full; data loaders pass batches through it. Give the container more "
        "shared memory (--shm-size) or use fewer workers.",
    ),
    _known(r"No space left on device|Errno 28\b", None, "A disk is full."),
    _known(r"Disk quota exceeded|Errno 122\b", None, "A disk quota was exceeded."),
    _known(
        r"Too many open files|Errno 24\b", None, "The limit on open files is too low (ulimit -n)."
    ),
    _known(
        r"EADDRINUSE|Address already in use|Errno 98\b",
        None,
        "Another process is using a port that it needs; is the port hard-coded in the script?",
    ),
    MISMATCH,
    _known(
        r"ncclSystemError|unhandled system error",
        None,
        "NCCL hit a system error (network, shared memory, limits): NCCL_DEBUG=INFO shows which.",
    ),
    _known(
        r"no kernel image is available|forward compatibility was attempted"
        r"|driver version is insufficient",
        None,
        "This PyTorch build does not support this device or its driver.",
    ),
    _known(
        r"all CUDA-capable devices are busy|exclusive.process",
        None,
        "Another process has exclusive use of the device.",
    ),
)


def is_mismatch(text: str) -> bool:
    """Whether an error says that the ranks entered different collectives."""
    return known_error(text) is MISMATCH


def known_error(text: str) -> Known | None:
    """What is known of an error by its words."""
    return next((known for known in _KNOWN if known.pattern.search(text)), None)


# -- victims -------------------------------------------------------------------------------------

_OWN_FAULT = re.compile(r"CUDA error|No space left|out of memory|Address already in use", re.I)
"""With one of these in it, a message tells more than that another rank was gone."""
_WAITED = re.compile(
    r"Timed out waiting \d+ ?ms for|Application timeout caused pair closure"
    r"|Watchdog caught collective operation timeout|before timing out"
    r"|NCCL operations have failed or timed out|failed to pass monitoredBarrier"
    r"|wait timeout after \d+ ?ms|seconds waiting for clients|Socket Timeout"
    r"|timed out after \d+ ?ms|timeout.*store->get|NCCL.*watchdog|watchdog.*NCCL",
    re.IGNORECASE | re.DOTALL,
)
_LOST = re.compile(
    r"(gloo|NCCL|c10d|TCPStore|store->|SocketImpl|DistNetworkError|DistBackendError).*"
    r"(Connection (closed|reset|refused)|Broken pipe|recvValue failed|sendBytes failed|got 0 bytes"
    r"|failed to recv)"
    r"|Connection closed by peer|remote process exit|ncclRemoteError|Socket closed",
    re.IGNORECASE | re.DOTALL,
)
_MAYBE_LOST = re.compile(
    r"Connection (closed|reset|refused)( by (remote )?peer)?|Broken pipe", re.IGNORECASE
)
_BARRIER = re.compile(r"Ranks? (?P<rank>\d+) failed to pass monitoredBarrier")

NOT_A_VICTIM, MAYBE_LOST, LOST, WAITED = range(4)
"""Whether an error is another rank's doing: no; perhaps (any connection broke); yes, the connection
to it broke; yes, it did not come to a collective in time."""


def victim_of_text(text: str) -> int:
    """NOT_A_VICTIM, MAYBE_LOST, LOST or WAITED, by the words of an exception or a log's end."""
    if _OWN_FAULT.search(text):
        return NOT_A_VICTIM
    if _WAITED.search(text):
        return WAITED
    if _LOST.search(text):
        return LOST
    return MAYBE_LOST if _MAYBE_LOST.search(text) else NOT_A_VICTIM


def victim_of(exception: PythonException | None, tail: str) -> int:
    """The same, of a rank's exception, or of the end of its log where it has none."""
    if exception is not None:
        return victim_of_text(f"{exception.type}: {exception.whole_message}")
    weight = victim_of_text(tail)
    return NOT_A_VICTIM if weight == MAYBE_LOST else weight


_UNOPENED = re.compile(
    r"""can't open file (?P<quote>['"])(?P<path>.+)(?P=quote): """
    r"\[Errno (?P<number>\d+)\] (?P<why>.+)"
)


def unopened_script(tail: str) -> str | None:
    """What Python says of a script that it cannot read; None where it read it."""
    found = _UNOPENED.search(tail)
    if found is None:
        return None
    if int(found["number"]) == errno.ENOENT:
        return f"the script does not exist: {found['path']}"
    return f"cannot read the script {found['path']}: {found['why'].strip()}"


def missing_at_barrier(exception: PythonException | None) -> int | None:
    """The rank that a monitored barrier says did not come."""
    found = None if exception is None else _BARRIER.search(exception.message)
    return int(found["rank"]) if found else None


_REPORT = re.compile(
    r"^(?:[EW]\d{4} .*torch/distributed/elastic/.*\n)+"
    r"Traceback \(most recent call last\):\n(?:.*\n)*?.*\bChildFailedError: *$",
    re.MULTILINE,
)
"""What torchrun says of ranks that failed: where its own code stood, and a table."""


def last_words(tail: str) -> str | None:
    """What C++ says when it ends a process; the last line with a letter or digit otherwise.

    Of a launcher's own report on its ranks nothing is taken where they wrote something before it.
    """
    report = _REPORT.search(tail)
    own = tail if report is None or not tail[: report.start()].strip() else tail[: report.start()]
    lines = [line.strip() for line in own.splitlines() if re.search(r"\w", line)]
    for index in range(len(lines) - 1, max(-1, len(lines) - 60), -1):
        if lines[index].startswith("terminate called after throwing"):
            what = lines[index + 1] if index + 1 < len(lines) else ""
            return f"{lines[index]} {what}".strip() if what.startswith("what()") else lines[index]
        if lines[index].startswith("Fatal Python error:"):
            return lines[index]
    return lines[-1] if lines else None
