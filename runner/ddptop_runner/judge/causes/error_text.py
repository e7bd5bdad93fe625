"""Interprets the text of an error: exceptions, known messages, signals, and exit statuses.

Exceptions come from the end of a log. torch prefixes the lines of an uncaught exception with
`[rank0]: `, but not those of an exception that a script handles and logs. A prefixed traceback
therefore counts anywhere, and any other only near the end of the log.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from ddptop_runner.base.exit_status import signal_name
from ddptop_runner.base.units import parse_size, size
from ddptop_runner.model.diagnose import PythonException

TRAILING_LINES = 20
"""Little is written after an uncaught exception; one followed by more lines was handled."""
DETAIL_LINES = 40
DETAIL_CHARACTERS = 4000

_TRACEBACK = "Traceback (most recent call last):"
_PREFIX = re.compile(r"^\[(?:rank|default)\d+\]:(?: |$)")
_LATE_PREFIX = re.compile(r"\[(?:rank|default)\d+\]: (?=(?:Original )?Traceback \(most recent)")
_FRAME = re.compile(r'^\s+File "(?P<file>.+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$')
_EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*)|:)?$", re.DOTALL)
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_CAUGHT = re.compile(r"^Caught (?P<type>\S+) (?P<origin>in .+?)\.?$")
_NOT_FATAL = re.compile(
    r"^(Exception ignored in|Exception in thread|Error in (atexit|sys\.)|--- Logging error ---)"
)
"""Text before a traceback that Python reports without ending the process."""
_NOISE = re.compile(
    r"^(terminate called without an active exception|\[W\d{4} |\[rank\d+\]:\[W|\s*$"
    r"|.*resource_tracker|\s*warnings\.warn\()|\d+%\|"
)
"""Lines that torch, Python, and progress bars write after the exception that ends them."""

_TORCH = re.compile(r"^(?:.*/)?(?:site|dist)-packages/torch/")
_PROBE = "/ddptop_runner/probe/"
_LIBRARY = re.compile(
    r"^<frozen |/lib(?:64)?/(?:python3(?:\.\d+)?|pypy3[\d.]*)/(?!site-packages/|dist-packages/)"
)


@dataclass
class _Frame:
    file: str
    line: str
    name: str | None

    @property
    def is_probe(self) -> bool:
        return _PROBE in self.file

    @property
    def is_torch(self) -> bool:
        return _TORCH.match(self.file) is not None

    def words(self) -> str:
        name = f" in {self.name}" if self.name else ""
        return f"{self.file}:{self.line}{name}"


@dataclass
class _Block:
    """One traceback."""

    start: int
    prefixed: bool
    before: str
    """The last line before it that is not blank."""
    frames: list[_Frame] = field(default_factory=list)
    type: str | None = None
    message: list[str] = field(default_factory=list)
    end: int = 0


def last_exception(text: str) -> PythonException | None:
    """The exception that ended the process whose log ends with `text`, if there is one."""
    raw = [_LATE_PREFIX.sub(_own_line, line) for line in text.splitlines()]
    raw = "\n".join(raw).split("\n")
    prefixed = [_PREFIX.match(line) is not None for line in raw]
    lines = [_PREFIX.sub("", line) for line in raw]
    blocks = _blocks(lines, prefixed)
    whole = [block for block in blocks if block.type is not None]
    torchs = [block for block in whole if block.prefixed]
    if torchs:
        return _of_chain(blocks, torchs[-1])
    fatal = [block for block in whole if not _NOT_FATAL.match(block.before)]
    if fatal:
        return _of_chain(blocks, fatal[-1]) if _near_end(lines, fatal[-1]) else None
    return None if blocks else _syntax_error(lines)


def _own_line(match: re.Match[str]) -> str:
    """Break a line at a traceback that follows an unfinished progress bar."""
    return match[0] if match.start() == 0 else f"\n{match[0]}"


def _near_end(lines: Sequence[str], block: _Block) -> bool:
    after = sum(not _NOISE.match(line) for line in lines[block.end :])
    return after <= TRAILING_LINES


def _blocks(lines: Sequence[str], prefixed: Sequence[bool]) -> list[_Block]:
    found = []
    before = ""
    for start, line in enumerate(lines):
        if line.endswith(_TRACEBACK) and not line.endswith("Original " + _TRACEBACK):
            block = _Block(start, prefixed[start], before)
            _read(block, lines, prefixed)
            found.append(block)
        if line.strip():
            before = line.strip()
    return found


def _read(block: _Block, lines: Sequence[str], prefixed: Sequence[bool]) -> None:
    """Fill in the frames, type, and message of an ordinary traceback."""
    for index in range(block.start + 1, len(lines)):
        line = lines[index]
        if block.prefixed and not prefixed[index]:
            if line.strip():
                continue  # another thread wrote between torch's lines
            line = ""
        if line.endswith(_TRACEBACK):
            return
        if frame := _FRAME.match(line):
            block.frames.append(_Frame(frame["file"], frame["line"], frame["name"]))
        elif line and not line[0].isspace() and (found := _EXCEPTION.match(line)):
            block.type = found["type"]
            _read_message(block, (found["message"] or "").strip(), lines, prefixed, index)
            return


def _read_message(
    block: _Block, first: str, lines: Sequence[str], prefixed: Sequence[bool], index: int
) -> None:
    """Read the message: up to the first blank line, or all lines with torch's prefix."""
    block.message = [first]
    block.end = index + 1
    nested = False
    for at in range(index + 1, min(len(lines), index + DETAIL_LINES * 4)):
        line = lines[at]
        nested = nested or line.startswith("Original " + _TRACEBACK)
        if line.strip() in _CHAINED or _NOISE.match(line):
            break
        if block.prefixed and not prefixed[at]:
            break
        if not block.prefixed and not nested and not line.strip():
            break
        if line.endswith(_TRACEBACK) and not nested:
            break
        block.message.append(line)
        if block.prefixed or nested:
            block.end = at + 1


def _of_chain(blocks: Sequence[_Block], last: _Block) -> PythonException:
    """The exception of a block, with the one that caused it."""
    exception = _exception(last)
    earlier = blocks[blocks.index(last) - 1] if blocks.index(last) else None
    if earlier is None or earlier.type is None or last.before not in _CHAINED:
        return exception
    root = _exception(earlier)
    place = f" (at {root.place})" if root.place else ""
    message = f": {root.message}" if root.message else ""
    return replace(exception, because=f"{root.type}{message}{place}")


def _exception(block: _Block) -> PythonException:
    message, detail = block.message[0], block.message[1:]
    caught = _CAUGHT.match(message)
    if caught is not None and detail and detail[0] == "Original " + _TRACEBACK:
        original = _Block(0, False, "")
        _read(original, detail, [False] * len(detail))
        if original.type is not None:
            return replace(_exception(original), origin=caught["origin"])
    kept = [line.strip() for line in detail if line.strip()]
    if not message and kept:
        message, kept = kept[0], kept[1:]
    return PythonException(
        type=block.type or "",
        message=message,
        place=_place(block.frames),
        detail="\n".join(kept[:DETAIL_LINES])[:DETAIL_CHARACTERS],
    )


def _place(frames: Sequence[_Frame]) -> str | None:
    """The script's innermost frame, or else the innermost one."""
    frames = [frame for frame in frames if not frame.is_probe]
    theirs = [frame for frame in frames if not frame.is_torch and not _LIBRARY.search(frame.file)]
    known = theirs or frames
    return known[-1].words() if known else None


def _syntax_error(lines: Sequence[str]) -> PythonException | None:
    """The error of a script that does not compile, which Python prints without a traceback."""
    place = None
    for line in lines:
        if frame := _FRAME.match(line):
            place = _Frame(frame["file"], frame["line"], frame["name"]).words()
        elif place and (found := _EXCEPTION.match(line)) and found["type"].endswith("Error"):
            return PythonException(found["type"], (found["message"] or "").strip(), place)
    return None


_SIGNALS = {
    "SIGHUP": "its terminal was closed, or another process sent the signal",
    "SIGINT": "interrupted by Ctrl-C or another process (kill -INT)",
    "SIGILL": "an instruction that this CPU does not support",
    "SIGABRT": "it aborted after an error in C++ code",
    "SIGBUS": "mapped memory was unavailable, often because /dev/shm is full",
    "SIGFPE": "an integer division by zero in C++ code",
    "SIGSEGV": "an invalid memory access in C++ code",
    "SIGTERM": "sent by a user, a batch system, or a shutdown",
    "SIGXCPU": "it exceeded its CPU time limit (ulimit -t)",
}

_EXIT_CODES = {
    2: "usually means invalid arguments",
    120: "Python could not flush its output at exit, usually because of a full disk or a closed "
    "pipe",
    126: "the shell found the command but could not execute it",
    127: "the shell did not find the command",
}


def signal_in_words(name: str) -> str | None:
    """What a signal usually means; None if that explains nothing."""
    return _SIGNALS.get(name)


def exit_code_in_words(code: int) -> str | None:
    """What an exit status usually means; None if the program defines it."""
    if code > 128 and (name := signal_name(code - 128)).startswith("SIG"):
        return f"a shell reports {code} for a process killed by {name}"
    return _EXIT_CODES.get(code)


def killed_by(code: int | None, signal: str | None) -> bool:
    """Whether SIGKILL ended it, directly or as reported by a shell."""
    return signal == "SIGKILL" or code == 137


@dataclass(frozen=True)
class Known:
    """A known error message and its explanation."""

    pattern: re.Pattern[str]
    kind: str | None
    """The kind of the cause; None keeps the present one."""
    words: str


def _known(pattern: str, words: str, kind: str | None = None) -> Known:
    return Known(re.compile(pattern, re.IGNORECASE), kind, words)


MISMATCH = _known(
    r"Detected mismatch between collectives|collective mismatch in your code"
    r"|preamble\.length <= op\.nbytes"  # all that the gloo of torch 2.8 says
    r"|expects same model across all ranks|inconsistent \d+ params",
    "The ranks diverged: they entered different collectives or used different sizes.",
)

_KNOWN = (
    _known(
        r"uncorrectable (ECC|NVLINK) error|GPU is lost|fallen off the bus|CUDA error: unknown error"
        r"|device kernel image is invalid due to hardware",
        "The device itself failed: see `ddptop gpus` and the kernel log.",
        "gpu",
    ),
    _known(
        r"device-side assert",
        "An assertion in a CUDA kernel failed, usually because an index is out of range (a label "
        "or token ID that is too large); CUDA_LAUNCH_BLOCKING=1 shows the actual line.",
    ),
    _known(
        r"an illegal memory access|misaligned address|unspecified launch failure",
        "A kernel accessed invalid memory; the line shown may be a later one: "
        "CUDA_LAUNCH_BLOCKING=1 shows the actual line.",
    ),
    _known(
        r"(/dev/shm|shared memory|shm_open|torch_shm|nccl-).*(No space left|out of shared memory)"
        r"|out of shared memory|unable to (open|mmap|allocate|write).*(shared memory|torch_\d+)"
        r"|is killed by signal: Bus error",
        "/dev/shm is full; data loaders pass batches through it. Give the container more "
        "shared memory (--shm-size) or use fewer workers.",
    ),
    _known(
        r"No space left on device|Errno 28\b|Disk quota exceeded|Errno 122\b",
        "A disk or a disk quota is full.",
    ),
    _known(r"Too many open files|Errno 24\b", "The limit on open files is too low (ulimit -n)."),
    _known(
        r"EADDRINUSE|Address already in use|Errno 98\b",
        "Another process is using a port that this job needs; is the port hard-coded in the "
        "script?",
    ),
    MISMATCH,
    _known(
        r"no kernel image is available|forward compatibility was attempted"
        r"|driver version is insufficient",
        "This PyTorch build does not support this device or its driver.",
    ),
)


def is_collective_mismatch(text: str) -> bool:
    """Whether an error says that the ranks entered different collectives."""
    return known_error(text) is MISMATCH


def known_error(text: str) -> Known | None:
    """The first known error that the text matches."""
    return next((known for known in _KNOWN if known.pattern.search(text)), None)


# -- victims -------------------------------------------------------------------------------------

_OWN_FAULT = re.compile(r"CUDA error|No space left|out of memory|Address already in use", re.I)
"""A message with one of these means more than that another rank was gone."""
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

NOT_A_VICTIM, MAYBE_LOST, LOST, WAITED = range(4)
"""Whether another rank caused an error: no; possibly, as some connection broke; yes, as the
connection to it broke; yes, as it did not enter a collective in time."""


def victim_of_text(text: str) -> int:
    """NOT_A_VICTIM, MAYBE_LOST, LOST, or WAITED, for the text of an exception or a log's end."""
    if _OWN_FAULT.search(text):
        return NOT_A_VICTIM
    if _WAITED.search(text):
        return WAITED
    if _LOST.search(text):
        return LOST
    return MAYBE_LOST if _MAYBE_LOST.search(text) else NOT_A_VICTIM


def victim_of(exception: PythonException | None, tail: str) -> int:
    """`victim_of_text` for a rank's exception or, without one, the end of its log."""
    if exception is not None:
        return victim_of_text(f"{exception.type}: {exception.whole_message}")
    weight = victim_of_text(tail)
    return NOT_A_VICTIM if weight == MAYBE_LOST else weight


_UNOPENED = re.compile(
    r"""can't open file (?P<quote>['"])(?P<path>.+)(?P=quote): """
    r"\[Errno (?P<number>\d+)\] (?P<why>.+)"
)


def unopened_script(tail: str) -> str | None:
    """Python's error for a script that it cannot read; None if it could."""
    found = _UNOPENED.search(tail)
    if found is None:
        return None
    if int(found["number"]) == errno.ENOENT:
        return f"the script does not exist: {found['path']}"
    return f"cannot read the script {found['path']}: {found['why'].strip()}"


_REPORT = re.compile(
    r"^(?:[EW]\d{4} .*torch/distributed/elastic/.*\n)+"
    r"Traceback \(most recent call last\):\n(?:.*\n)*?.*\bChildFailedError: *$",
    re.MULTILINE,
)
"""torchrun's report on failed ranks: its own traceback and a table."""


def last_words(tail: str) -> str | None:
    """C++'s message when it aborts, or else the last line with a letter or digit.

    Ignores a launcher's own report if its ranks wrote something before it.
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


_OOM = re.compile(
    r"CUDA out of memory|HIP out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUDNN_STATUS_ALLOC_FAILED|cudaMalloc failed: out of memory",
    re.IGNORECASE,
)
_SIZE = r"(?P<{}>[\d.]+ (?:[KMGT]iB|bytes))"
_ASKED = re.compile(r"Tried to allocate " + _SIZE.format("asked"))
_TOTAL = re.compile("total capacity of " + _SIZE.format("total"))
_FREE = re.compile("of which " + _SIZE.format("free") + " is free")
_RESERVED = re.compile(_SIZE.format("reserved") + r" is reserved by PyTorch but unallocated")
_OTHER = re.compile(r"\bProcess (?P<pid>\d+) has " + _SIZE.format("held") + " memory in use")

FRAGMENTED_BYTES = 2**29
"""At least this much reserved but unused memory warrants a remedy, even for small requests."""


def is_gpu_oom(type_: str, message: str) -> bool:
    """Whether an exception means that device memory ran out."""
    return type_.endswith("OutOfMemoryError") or _OOM.search(message) is not None


def gpu_error_in_words(message: str, gpu: int | None, peaks: Mapping[int, int]) -> list[str]:
    """Sentences on memory requested and free, the ranks' peaks, other processes, and a remedy.

    Args:
        message: torch's.
        gpu: the machine index of the rank's device, if known.
        peaks: by rank, the highest observed device memory in bytes.
    """

    def of(pattern: re.Pattern[str]) -> str | None:
        found = pattern.search(message)
        return found[1] if found else None

    where = f"GPU {gpu}" if gpu is not None else "its device"
    sentences = []
    asked, free, total, reserved = of(_ASKED), of(_FREE), of(_TOTAL), of(_RESERVED)
    if asked is not None:
        aside = f"; {free} of {total} was free" if free and total else ""
        sentences.append(f"It tried to allocate {asked} on {where}{aside}.")
    if peaks:
        least, most = min(peaks, key=peaks.__getitem__), max(peaks, key=peaks.__getitem__)
        up_to = "" if least == most else f" to {size(peaks[most])} (rank {most})"
        sentences.append(f"Peak memory: {size(peaks[least])} (rank {least}){up_to}.")
    held = [f"pid {other['pid']} with {other['held']}" for other in _OTHER.finditer(message)]
    if held:
        sentences.append(f"Also on the device: {', '.join(held[:3])}.")
    unused_bytes, asked_bytes = _bytes(reserved), _bytes(asked)
    if unused_bytes >= FRAGMENTED_BYTES or unused_bytes >= asked_bytes > 0:
        sentences.append(
            f"{reserved} was reserved but unused: "
            "PYTORCH_ALLOC_CONF=expandable_segments:True may help."
        )
    return sentences


def _bytes(text: str | None) -> int:
    return parse_size((text or "0").replace("bytes", "B")) or 0
