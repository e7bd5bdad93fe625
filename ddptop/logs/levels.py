"""The level of a log line, from what loggers, Python, glog, NCCL, and CUDA print."""

from __future__ import annotations

import re
from typing import Final

from ddptop.logs.messages import Level

MAX_BLOCK_LINES = 400
"""Longer tracebacks are considered over."""
MAX_PREFIXES = 4096

_WORDS: Final = (
    *("error", "warn", "exception", "fatal", "critical", "traceback", "of memory", "abort"),
    *("killed", "segmentation", "terminate", "watchdog", "interrupt", "oom"),
)
"""A line without any of these, in lowercase, has no level unless its prefix shows one."""
_WORD_BYTES = tuple(word.encode() for word in _WORDS)
_GRAVE_BYTES = tuple(word for word in _WORD_BYTES if word != b"warn")
_HEAD_BYTES = (b"\nW", b"\nE", b"\nF", b"[W", b"[E", b"[F", b": W ", b": E ", b": F ")
"""Without any of these, no line's prefix shows a level, except possibly the first."""

WHOSE = re.compile(
    r"^(?:\[(?:rank|default)?(?P<tag>\d+)\]: ?"
    r"|\[(?:\d+,)?(?P<out>\d+)\]<std(?:out|err)>: ?)"
)
"""Prefixes that torch and launchers add to a rank's lines."""

_GRAVE = re.compile(
    r"cuda error|cublas.{0,20}error|cudnn.{0,20}error|out of memory|outofmemory"
    r"|segmentation fault|terminate called|fatal python error|\bbus error"
    r"|device-side assert|watchdog caught|nccl error|nccl\w*error\b|\boom[- ]kill"
    r"|^(?:\S+: )?(?:killed|aborted)\b(?!\w)",
    re.IGNORECASE,
)
_LOGGER = re.compile(
    r"(?<![\w=./:-])(DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL)(?![\w=/])"
)
_NAMED = re.compile(
    r"(?:\"(?:level|levelname|severity)\": ?\"|\b(?:level|severity|lvl)=\"?|[\[<(])"
    r"(debug|info|warning|warn|error|critical|fatal)(?:\"|[\])>]|\b)",
    re.IGNORECASE,
)
_GLOG = re.compile(
    r"^\[?(?P<glog>[IWEF])\d{3,4} \d\d:\d\d:\d\d\.\d+"
    r"|^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d+: (?P<flow>[IWEF]) "
)
_GLOG_BYTES = re.compile(rb"[WEF]\d{3,4} \d\d:|: [WEF] ")
_RAISED = re.compile(
    r"^\s*(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|KeyboardInterrupt|ExceptionGroup)"
    r"(?::(?! ?[-+]?[\d.]+$)|$| \(\d+ sub-exc)"
)
_ERROR = re.compile(r"(?:^|[:\]>] ?)(?:fatal )?error\b[:!\[](?!\s*[-+]?\d)", re.IGNORECASE)
_WARNED = re.compile(
    r"(?:^|[:\]>(] ?)\w*warning\b:|^warn(?:ing)?\b[:\s!]|: \w*Warning:", re.IGNORECASE
)
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_RAISED_LINE = re.compile(r"^[A-Za-z_][\w.]*(?:$|:| \()")

_BY_NAME: dict[str, Level] = {
    **{"debug": "", "info": "", "notice": "", "i": "", "warning": "warn", "warn": "warn"},
    **{"error": "error", "critical": "error", "fatal": "error"},
    **{"w": "warn", "e": "error", "f": "error"},
}


def may_be_grave(data: bytes, least: Level = "warn") -> bool:
    """Whether any line in the bytes may have that level: fast, without false negatives.

    Control sequences inside words are not recognized.
    """
    small = data.lower()
    if any(word in small for word in (_WORD_BYTES if least == "warn" else _GRAVE_BYTES)):
        return True
    if not any(head in data for head in _HEAD_BYTES) and data[:1] not in b"WEF":
        return False
    return _GLOG_BYTES.search(data) is not None


def _has_word(small: str) -> bool:
    """Whether it contains any of `_WORDS`; called for each line."""
    for word in _WORDS:  # noqa: SIM110  # a generator takes three times as long
        if word in small:
            return True
    return False


def level_of(text: str) -> Level:
    """The level of a single line, whatever its prefix."""
    head = text[:1]
    if (head == "[" or head.isdigit() or head in "IWEF") and (found := _GLOG.match(text)):
        mark = found["glog"] or found["flow"]
        return "error" if _GRAVE.search(text) else _BY_NAME[mark.lower()]
    small = text.lower()
    if not _has_word(small):
        return ""
    if _GRAVE.search(text):
        return "error"
    if "nccl warn" in small:
        return "warn"
    if found := _LOGGER.search(text, 0, 160):
        return _BY_NAME[found[1].lower()]
    if found := _NAMED.search(text, 0, 160):
        return _BY_NAME[found[1].lower()]
    if _RAISED.match(text) or _ERROR.search(text) or text.startswith("Traceback (most recent"):
        return "error"
    return "warn" if _WARNED.search(text) else ""


class LevelReader:
    """Determines the levels of consecutive lines, keeping tracebacks together.

    Lines of several ranks in one log are distinguished by their prefixes.
    """

    def __init__(self) -> None:
        self._blocks: dict[str, tuple[Level, int]] = {}
        """By prefix, the level of the open block and how many more lines it may have."""

    def read(self, text: str) -> tuple[Level, bool]:
        """(level of the next line, whether it continues the previous one)."""
        prefix, line = "", text
        if text[:1] == "[" and (whose := WHOSE.match(text)):
            prefix, line = whose["tag"] or whose["out"], text[whose.end() :]
        if self._blocks and (block := self._blocks.pop(prefix, None)) is not None:
            level, left = block
            is_inner = line[:1] in (" ", "\t") or (level == "error" and not line.strip())
            if is_inner and left > 0:
                self._blocks[prefix] = (level, left - 1)
                return level, True
            if level == "error" and _RAISED_LINE.match(line):
                return "error", False
        level = level_of(line)
        if line.startswith("Traceback (most recent") or "Traceback (most recent call" in line:
            self._open(prefix, "error", MAX_BLOCK_LINES)
            return "error", False
        if line.startswith(_CHAINED):
            return "error", True
        if level == "warn" and "Warning: " in line:
            self._open(prefix, "warn", 1)
        return level, False

    def _open(self, prefix: str, level: Level, lines: int) -> None:
        if len(self._blocks) >= MAX_PREFIXES:
            self._blocks.clear()
        self._blocks[prefix] = (level, lines)
