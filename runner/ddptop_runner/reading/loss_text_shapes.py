"""Reads lines quickly that are like earlier ones: the same words with other numbers.

A training prints the same few shapes of lines all day. What a line of a new shape says is found out
the long way (`loss_text_line`), and by trial: other numbers are put into the line, and where the
same numbers come out, the shape is known. From then on one regular expression takes the numbers
out of such lines. Whatever does not come out as foretold for small, large and other numbers is read
the long way for ever, so the results are the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ddptop_runner.reading import loss_text_bars as bars
from ddptop_runner.reading.loss_text_line import Form, Said, clean, says_clean
from ddptop_runner.reading.loss_text_reading import Reading

MAX_SHAPES = 96
MAX_LINE_BYTES = 2048
"""A longer line is read the long way."""
MAX_TOKENS = 96
_MAX_SEEN = 512
_LEARN_COST, _FIRST_CREDIT = 200, 10_000
"""Learning takes as long as reading so many lines; without end it takes half of the time."""
_LEARN_AT = frozenset(3 * 2**n for n in range(30))
"""A shape is learned when it is seen so often; again where what was learned did not fit."""

_VARIABLE = bytes([*b"0123456789 ", *range(0x80, 0x100)])
_TOKEN = re.compile(
    rb"(?P<bar>(?<=%\|)(?:[ #0-9]|\xe2\x96[\x80-\x8f])+(?=\|))"
    rb"|(?P<heavy>(?:\xe2\x94\x81|\xe2\x95[\xb8\xba])+)"
    rb"|(?P<spaces> +)"
    rb"|(?<![\w.:@])(?:(?P<time>\d\d?:\d\d:\d\d[.,]\d+)|(?P<clock>\d\d?(?::\d\d){1,2})"
    rb"|(?P<days>\d{1,4} days?, \d\d?:\d\d:\d\d))(?![\d:])"
    rb"|(?:(?<![\w.@])|(?<=default)|(?<=trainer)|(?<=worker)|(?<=rank))"
    rb"(?:(?P<exp>\d+(?:\.\d+)?e[-+]\d+)|(?P<float>\d+\.\d+)|(?P<int>\d+))"
)


_USUAL = Reading.__struct_defaults__
_NUMBERS = frozenset(["int", "float", "exp", "clock", "time"])


class _Level(NamedTuple):
    """How far a shape reaches beyond the line that it was learned from."""

    int_digits: int
    digits_before: int
    digits_after: int
    spaces: int


_LEVELS = (_Level(9, 6, 18, 8), _Level(9, 6, 9, 0), _Level(7, 4, 8, 0), _Level(0, 0, 0, 0))
"""The widest first; 0: as in the line itself."""

Convert = Callable[[bytes], Any]
_Plan = tuple[Form, list[Any], list[tuple[int, int, Convert]]]
"""Form, fields that never change, and which field is made of which group and how."""


def _negative(text: bytes) -> float:
    return -float(text)


_CONVERTS: dict[str, Sequence[Convert]] = {
    "loss": (float, _negative),
    "epoch": (float,),
    "eta_s": (bars.seconds, float),
    "run_eta_s": (bars.seconds, float),
    "rate_per_s": bars.RATE_CONVERTS,
}


class _Shape(NamedTuple):
    match: Callable[[bytes], re.Match[bytes] | None]
    plans: list[_Plan]
    only: _Plan | None
    """The plan where there is but one."""

    def read(self, groups: Sequence[bytes]) -> list[Said]:
        """What the line says whose variable parts these are."""
        if self.only is not None:
            form, base, slots = self.only
            row = base.copy()
            for at, group, convert in slots:
                row[at] = convert(groups[group])
            return [(form, Reading(*row))]
        told: list[Said] = []
        for form, base, slots in self.plans:
            row = base.copy()
            for at, group, convert in slots:
                row[at] = convert(groups[group])
            told.append((form, Reading(*row)))
        return told


class Shapes:
    """Reads lines, and learns shapes from them. Memory is bounded, and so is the time to learn."""

    def __init__(self) -> None:
        self._last: _Shape | None = None
        """The shape of the line before."""
        self._known: dict[bytes, list[_Shape]] = {}
        """Shapes by what never changes in a line."""
        self._count = 0
        self._seen: dict[int, int] = {}
        """How often such lines were read the long way."""
        self._credit = _FIRST_CREDIT

    def says(self, piece: bytes) -> list[Said]:
        """All statements of a line in lowercase, in order: as `loss_text_line.says`."""
        last = self._last
        if last is not None and (found := last.match(piece)) is not None:
            return last.read(found.groups())
        if 27 in piece or 0x9B in piece:
            piece = clean(piece)
        if 8 in piece:
            piece = piece.strip(b"\x08")
        if not (
            b"loss" in piece
            or b"step" in piece
            or b"epoch" in piece
            or b"]" in piece  # the prefix of a rank
            or b"iter" in piece
            or b"it/s" in piece
            or b"s/it" in piece
            or b"batch" in piece
            or 8 in piece  # may take apart a word
        ):
            return []  # most lines of a log
        kind = piece.translate(None, _VARIABLE)
        for shape in self._known.get(kind, ()):
            if (found := shape.match(piece)) is not None:
                self._last = shape
                return shape.read(found.groups())
        told = says_clean(piece)
        if len(piece) <= MAX_LINE_BYTES:
            self._see(piece, kind, told)
        return told

    def _see(self, piece: bytes, kind: bytes, told: list[Said]) -> None:
        """A line was read the long way; learn its shape if there are many like it."""
        self._credit += 1
        key = hash(kind)
        count = self._seen.get(key, 0) + 1
        if count == 1 and len(self._seen) >= _MAX_SEEN:
            self._seen.clear()
        self._seen[key] = count
        if count not in _LEARN_AT or self._credit < _LEARN_COST:
            return
        self._credit -= _LEARN_COST
        shape = _learned(piece, told)
        if shape is None:
            return
        if self._count >= MAX_SHAPES:
            self._known.clear()
            self._count = 0
        self._known.setdefault(kind, []).insert(0, shape)
        self._count += 1


def _learned(piece: bytes, told: list[Said]) -> _Shape | None:
    """The widest shape of the line that holds in all trials."""
    if 8 in piece or 27 in piece or b"\xc2\x9b" in piece:
        return None
    line = _Line(piece)
    if len(line.tokens) > MAX_TOKENS or not line.is_plain:
        return None
    shapes = (line.shape(level, told) for level in _LEVELS)
    return next((shape for shape in shapes if shape is not None), None)


class _Line:
    """A line cut into what stays and what may change."""

    def __init__(self, piece: bytes) -> None:
        self.literals: list[bytes] = []
        """Before, between and after the tokens."""
        self.tokens: list[tuple[str, bytes]] = []
        """(kind, text)"""
        at = 0
        for found in _TOKEN.finditer(piece):
            self.literals.append(piece[at : found.start()])
            kind = found.lastgroup
            assert kind is not None
            self.tokens.append((kind, found[0]))
            at = found.end()
        self.literals.append(piece[at:])

    @property
    def is_plain(self) -> bool:
        """Whether no two numbers are joined so that other digits would make them one."""
        between = zip(self.literals[1:], self.tokens, self.tokens[1:], strict=False)
        for literal, (before, _), (after, _) in between:
            numbers = before in _NUMBERS and after in _NUMBERS
            if numbers and (literal == b":" or (literal == b"," and after != "int")):
                return False
        return True

    def shape(self, level: _Level, told: list[Said]) -> _Shape | None:
        """The shape of the line; None where it is not so simple."""
        patterns = [_pattern(kind, text, level) for kind, text in self.tokens]
        if not all(re.fullmatch(p, t) for p, (_, t) in zip(patterns, self.tokens, strict=True)):
            return None
        first, second = (self._with(level, _other, salt) for salt in (1, 2))
        plans, used = _plans(told, first, second, self._says(first), self._says(second))
        if plans is None:
            return None
        whole = b""
        for index, (literal, pattern) in enumerate(zip(self.literals, patterns, strict=False)):
            whole += re.escape(literal) + (b"(%b)" % pattern if index in used else pattern)
        match = re.compile(whole + re.escape(self.literals[-1])).fullmatch
        shape = _Shape(match, plans, plans[0] if len(plans) == 1 else None)
        trials = [[text for _, text in self.tokens], first, second]
        trials += [self._with(level, _extreme, salt) for salt in range(3)]
        for trial in trials:
            line = self._joined(trial)
            found = match(line)
            if found is None or repr(shape.read(found.groups())) != repr(says_clean(line)):
                return None
        return shape

    def _with(self, level: _Level, make: Callable[..., bytes], salt: int) -> list[bytes]:
        return [
            make(kind, text, level, salt, index) for index, (kind, text) in enumerate(self.tokens)
        ]

    def _joined(self, texts: Sequence[bytes]) -> bytes:
        parts = [part for pair in zip(self.literals, texts, strict=False) for part in pair]
        return b"".join([*parts, self.literals[-1]])

    def _says(self, texts: Sequence[bytes]) -> list[Said]:
        return says_clean(self._joined(texts))


def _limits(text: bytes, level: _Level) -> tuple[int, int, int]:
    """(digits of an integer, digits before and after a point) that are allowed."""
    whole, _, fraction = text.partition(b".")
    if not level.int_digits:
        return len(text), len(whole), len(fraction)
    return level.int_digits, level.digits_before, level.digits_after


def _pattern(kind: str, text: bytes, level: _Level) -> bytes:
    """What may stand in the place of a token."""
    if kind == "spaces":
        if len(text) > level.spaces:
            return b" {%d}" % len(text)
        return b" {1,%d}" % level.spaces
    if kind == "bar":
        return rb"(?:[ #0-9]|\xe2\x96[\x80-\x8f])+"
    if kind == "heavy":
        return rb"(?:\xe2\x94\x81|\xe2\x95[\xb8\xba])+"
    if kind == "days":
        return rb"\d{1,4} days?, \d\d?:\d\d:\d\d"
    if kind == "exp":
        return rb"\d{1,4}\.\d{1,9}e[-+]\d{1,3}" if b"." in text else rb"\d{1,4}e[-+]\d{1,3}"
    if kind == "time":
        return rb"\d\d?:\d\d:\d\d[.,]\d+"
    if kind == "clock":
        return rb"\d\d?" + rb":\d\d" * text.count(b":")
    whole, before, after = _limits(text, level)
    if kind == "int":
        return rb"\d{1,%d}" % whole
    return rb"\d{1,%d}\.\d{1,%d}" % (before, after)


def _digits(number: int, count: int) -> bytes:
    """`count` digits, others for each `number`."""
    if count == 1:
        return b"%d" % (1 + number % 9)
    return (b"%d" % (number * 7919 + 12347) * count)[:count]


def _other(kind: str, text: bytes, level: _Level, salt: int, index: int) -> bytes:
    """Another text in the place of a token: each number differs from all others."""
    number = 101 * salt + 211 * index
    if kind == "clock":
        parts = [b"%02d" % ((number // 7**n) % 59 + 1) for n in range(text.count(b":"))]
        return b"%d:" % (1 + number % 9) + b":".join(parts)
    if kind == "days":
        return b"%d days, %d:%02d:%02d" % (2 + number % 97, index % 10, salt, number % 60)
    if kind == "exp":
        point = b"." + _digits(number, 4) if b"." in text else b""
        return _digits(number, 2) + point + (b"e-%02d" % (number % 30))
    if kind not in ("int", "float"):
        return text
    whole, before, after = _limits(text, level)
    if kind == "int":
        return _digits(number, min(whole, 5))
    return _digits(number, min(before, 3)) + b"." + _digits(number + salt, min(after, 6))


def _extreme(kind: str, text: bytes, level: _Level, salt: int, index: int) -> bytes:
    """The shortest, the longest, and zero."""
    whole, before, after = _limits(text, level)
    if kind == "spaces":
        return text if len(text) > level.spaces else b" " * (1, level.spaces, 1)[salt]
    if kind == "heavy":
        return b"\xe2\x94\x81" * (1, 60, 2)[salt]
    if kind == "bar":
        return (b" ", b"\xe2\x96\x88" * 60, b"####5    ")[salt]
    if kind == "clock":
        return (b"1", b"99", b"0")[salt] + (b":01", b":59", b":00")[salt] * text.count(b":")
    if kind == "exp":
        point = (b".5", b".999999999", b".0")[salt] if b"." in text else b""
        return (b"1", b"9999", b"0")[salt] + point + (b"e-0", b"e+999", b"e+00")[salt]
    if kind == "int":
        return (b"1", b"9" * whole, b"0")[salt]
    if kind == "float":
        return (b"1.5", b"9" * before + b"." + b"9" * after, b"0.0")[salt]
    return text


def _plans(
    told: list[Said],
    first: list[bytes],
    second: list[bytes],
    of_first: list[Said],
    of_second: list[Said],
) -> tuple[list[_Plan] | None, list[int]]:
    """How what is said follows from tokens, and which are asked for; None: it does not."""
    if not len(told) == len(of_first) == len(of_second):
        return None, []
    used: list[int] = []
    plans: list[_Plan] = []
    names = Reading.__struct_fields__
    for said, one, two in zip(told, of_first, of_second, strict=True):
        if not said[0] == one[0] == two[0]:
            return None, []
        base: list[Any] = []
        wanted: list[tuple[int, int, Convert]] = []
        for at, name in enumerate(names):
            value, in_one, in_two = (getattr(reading, name) for _, reading in (said, one, two))
            base.append(value)
            if repr(value) == repr(in_one) == repr(in_two):
                continue
            source = _source(name, first, second, in_one, in_two)
            if source is None:
                return None, []
            wanted.append((at, *source))
            used.append(source[0])
        last = max((at for at, _, _ in wanted), default=-1)
        while len(base) - 1 > last and base[-1] == _USUAL[len(base) - 1]:
            base.pop()  # what is left out is as usual
        plans.append((said[0], base, wanted))
    used = sorted(set(used))
    ordered = [
        (form, base, [(at, used.index(token), convert) for at, token, convert in wanted])
        for form, base, wanted in plans
    ]
    return ordered, used


def _source(
    name: str, first: list[bytes], second: list[bytes], in_one: Any, in_two: Any
) -> tuple[int, Convert] | None:
    """(token, conversion) that gives what was said both times; None where no or two tokens do."""
    sources = [
        (index, convert)
        for convert in _CONVERTS.get(name, (int,))
        for index, (one, two) in enumerate(zip(first, second, strict=True))
        if _converted(convert, one) == in_one and _converted(convert, two) == in_two
    ]
    return sources[0] if len({index for index, _ in sources}) == 1 else None


def _converted(convert: Convert, text: bytes) -> Any:
    try:
        return convert(text)
    except ValueError:
        return None
