"""The exception that ended a Python process, out of the end of its log or its error file.

torch prefixes the lines of an uncaught exception with `[rank0]: `; what a script logs of exceptions
that it handled carries none. So a prefixed traceback counts wherever it stands, and another one
only near the log's end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ddptop_runner.model.diagnose import PythonException

TRAILING_LINES = 20
"""After an uncaught exception little more is written; one further up was handled by the script."""
DETAIL_LINES = 40
DETAIL_CHARACTERS = 4000

_TRACEBACK = "Traceback (most recent call last):"
_PREFIX = re.compile(r"^\[(?:rank|default)\d+\]:(?: |$)")
_LATE_PREFIX = re.compile(r"\[(?:rank|default)\d+\]: (?=(?:Original )?Traceback \(most recent)")
_FRAME = re.compile(r'^\s+File "(?P<file>.+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$')
_EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*)|:)?$", re.DOTALL)
_GROUP_MARGIN = re.compile(r"^\s*[|+](?P<text>.*)$")
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_SPAWNED = re.compile(r"^-- Process \d+ terminated with the following error:")
_CAUGHT = re.compile(r"^Caught (?P<type>\S+) (?P<origin>in .+?)\.?$")
_NOT_FATAL = re.compile(
    r"^(Exception ignored in|Exception in thread|Error in (atexit|sys\.)|--- Logging error ---)"
)
"""Before a traceback: Python reports it and goes on."""
_NOISE = re.compile(
    r"^(terminate called without an active exception|\[W\d{4} |\[rank\d+\]:\[W|\s*$"
    r"|.*resource_tracker|\s*warnings\.warn\()|\d+%\|"
)
"""What torch, Python and progress bars still write after the exception that ends them."""

_TORCH = re.compile(r"^(?:.*/)?(?:site|dist)-packages/(?P<short>torch/.*)$")
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
    """The last line with text before it."""
    frames: list[_Frame] = field(default_factory=list)
    type: str | None = None
    message: list[str] = field(default_factory=list)
    end: int = 0
    leaves: list[str] = field(default_factory=list)
    """Of an exception group: what it holds, in words."""


def last_exception(text: str) -> PythonException | None:
    """The exception that ended the process whose log ends with `text`; None when there is none."""
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
    """A progress bar without a line's end stands before the traceback: break the line there."""
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
            if line.endswith("Exception Group " + _TRACEBACK):
                _read_group(block, lines)
            else:
                _read(block, lines, prefixed)
            found.append(block)
        if line.strip():
            before = line.strip()
    return found


def _read(block: _Block, lines: Sequence[str], prefixed: Sequence[bool]) -> None:
    """Fill in frames, type and message of an ordinary traceback."""
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
    """The message's lines: under torch's prefix all of them, else up to the first blank line."""
    block.message = [first]
    block.end = index + 1
    nested = False
    for at in range(index + 1, min(len(lines), index + DETAIL_LINES * 4)):
        line = lines[at]
        nested = nested or line.startswith("Original " + _TRACEBACK)
        if line.strip() in _CHAINED or _SPAWNED.match(line) or _NOISE.match(line):
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


def _read_group(block: _Block, lines: Sequence[str]) -> None:
    """An exception group: margins of `|` and `+`, sub-exceptions at deeper ones."""
    margin = None
    for index in range(block.start + 1, len(lines)):
        found = _GROUP_MARGIN.match(lines[index])
        if found is None:
            return
        block.end = index + 1
        text = found["text"]
        text = text[1:] if text.startswith(" ") else text
        depth = lines[index].index("|") if "|" in lines[index] else -1
        margin = depth if margin is None else margin
        if frame := _FRAME.match(text):
            if block.type is None:
                block.frames.append(_Frame(frame["file"], frame["line"], frame["name"]))
        elif text and not text[0].isspace() and (exception := _EXCEPTION.match(text)):
            if block.type is None:
                block.type = exception["type"]
                block.message = [(exception["message"] or "").strip()]
            elif depth > margin:
                block.leaves.append(text.strip())


def _of_chain(blocks: Sequence[_Block], last: _Block) -> PythonException:
    """The exception of one block, with what it was raised from."""
    exception = _exception(last)
    earlier = blocks[blocks.index(last) - 1] if blocks.index(last) else None
    if earlier is None or earlier.type is None:
        return exception
    if _SPAWNED.match(last.before):
        return _changed(exception, origin="in a process spawned by the rank")
    if last.before in _CHAINED:
        root = _exception(earlier)
        place = f" (at {root.place})" if root.place else ""
        message = f": {root.message}" if root.message else ""
        return _changed(exception, because=f"{root.type}{message}{place}")
    return exception


def _changed(exception: PythonException, **changes: str) -> PythonException:
    return PythonException(**{**exception.__dict__, **changes})


def _exception(block: _Block) -> PythonException:
    message, detail = block.message[0], block.message[1:]
    caught = _CAUGHT.match(message)
    if caught is not None and detail and detail[0] == "Original " + _TRACEBACK:
        original = _Block(0, False, "")
        _read(original, detail, [False] * len(detail))
        if original.type is not None:
            return _changed(_exception(original), origin=caught["origin"])
    place, torch_place = _places(block.frames)
    kept = [line.strip() for line in detail if line.strip()]
    if not message and kept:
        message, kept = kept[0], kept[1:]
    return PythonException(
        type=block.type or "",
        message=message,
        place=place,
        torch_place=torch_place,
        because=block.leaves[0] if block.leaves else None,
        detail="\n".join(kept[:DETAIL_LINES])[:DETAIL_CHARACTERS],
    )


def _places(frames: Sequence[_Frame]) -> tuple[str | None, str | None]:
    """(the script's innermost frame, torch's innermost where that is deeper)."""
    frames = [frame for frame in frames if not frame.is_probe]
    if not frames:
        return None, None
    theirs = [frame for frame in frames if not frame.is_torch and not _LIBRARY.search(frame.file)]
    innermost = frames[-1]
    if not theirs:
        return innermost.words(), None
    found = _TORCH.match(innermost.file)
    if found is None or innermost is theirs[-1]:
        return theirs[-1].words(), None
    short = _Frame(found["short"], innermost.line, innermost.name)
    return theirs[-1].words(), short.words()


def _syntax_error(lines: Sequence[str]) -> PythonException | None:
    """A script that does not compile is reported without the word Traceback."""
    place = None
    for line in lines:
        if frame := _FRAME.match(line):
            place = _Frame(frame["file"], frame["line"], frame["name"]).words()
        elif place and (found := _EXCEPTION.match(line)) and found["type"].endswith("Error"):
            return PythonException(found["type"], (found["message"] or "").strip(), place)
    return None


def error_file_exception(data: bytes) -> PythonException | None:
    """The exception in an error file of torch's `@record`; None when it holds none.

    Such a file is cut short when the disk was full or the process was killed while it wrote.
    """
    try:
        record = json.loads(data)["message"]
        if isinstance(record, str):
            return _from_words(record)
        words = record["message"]
        callstack = record["extraInfo"]["py_callstack"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(words, str) or not isinstance(callstack, str):
        return None
    return _from_callstack(callstack) or _from_words(words)


def _from_callstack(callstack: str) -> PythonException | None:
    lines = callstack.splitlines()
    # the whole text is one exception: every line belongs to it, as under torch's prefix
    blocks = _blocks(lines, [True] * len(lines))
    whole = [block for block in blocks if block.type is not None]
    return _of_chain(blocks, whole[-1]) if whole else None


def _from_words(words: str) -> PythonException | None:
    first, _, detail = words.partition("\n")
    found = _EXCEPTION.match(first)
    if found is None or not found["message"]:
        return None
    return PythonException(found["type"], found["message"].strip(), None, detail=detail.strip())
