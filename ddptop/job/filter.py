"""Parses filters typed after `/`: words, `state:failed`, `gpu:3`, `loss>2`, `!word`, "two words".

All terms must match. An invalid filter hides nothing and reports what is wrong with it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping

import msgspec

_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}
_PART = r'(?:"[^"]*"|[^\s"])+'
_FIGURE = r"(?is)([a-z][\w-]*)(>=|<=|>|<|=)(.*)"
_FIELD = r"(?is)([a-z][\w-]*):(.*)"
_NUMBER = r"(?i)([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*([a-zµ%]*)"
_SIZES = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_UNITS: Mapping[str, Mapping[str, float]] = {
    "bytes": {
        **_SIZES,
        **{f"{unit}{tail}": size for unit, size in _SIZES.items() if unit for tail in ("b", "ib")},
    },
    "s": {"": 1, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400},
    "%": {"": 1, "%": 1},
    "": {"": 1, "k": 1e3, "m": 1e6},
}
"""Multipliers by the figure's unit and the number's suffix."""

RANK_EXAMPLES = "rank:0-7, state:hung, gpu:3, loss>2, wait>50ms, util<20, !word"
EXAMPLES = 'words, state:failed, gpu:3, loss>2, util<20, !word, "two words"'


class Vocabulary(msgspec.Struct, frozen=True):
    """The fields and figures that a filter can use."""

    fields: tuple[str, ...] = ()
    """Names that can precede a colon."""
    figures: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Names that can be compared with a number, and their unit: "bytes", "s", "%", or ""."""


class Facts(msgspec.Struct, frozen=True):
    """What a filter examines of one item."""

    text: str = ""
    """The text to search for words."""
    fields: Mapping[str, Collection[str]] = msgspec.field(default_factory=dict)
    """Values by field; a field such as `gpu` can have several."""
    figures: Mapping[str, float | None] = msgspec.field(default_factory=dict)
    """In bytes, seconds, or percent; None if unknown."""


class Term(msgspec.Struct, frozen=True):
    """One condition."""

    value: str
    name: str = ""
    """Name of a field or figure; "" for a word."""
    compare: str = ""
    """Comparison operator, for a figure."""
    number: float = 0.0
    negated: bool = False

    def matches(self, facts: Facts, text: str) -> bool:
        """Whether an item matches; an unknown figure is neither greater nor less.

        Args:
            facts: of the item.
            text: its text in lowercase.
        """
        if self.compare:
            known = facts.figures.get(self.name)
            return known is not None and self.negated is not _COMPARE[self.compare](
                known, self.number
            )
        if self.name:
            found = any(_is_value(self.value, one) for one in facts.fields.get(self.name, ()))
        else:
            found = self.value in text
        return found is not self.negated


class Filter(msgspec.Struct, frozen=True):
    """A parsed filter."""

    text: str = ""
    terms: tuple[Term, ...] = ()
    trouble: str | None = None
    """What is wrong with the filter; nothing is hidden then."""

    def __bool__(self) -> bool:
        """Whether the filter can hide anything."""
        return bool(self.terms) and self.trouble is None

    def matches(self, facts: Facts) -> bool:
        """Whether an item is shown."""
        if not self:
            return True
        text = facts.text.casefold()
        return all(term.matches(facts, text) for term in self.terms)

    @property
    def words(self) -> tuple[str, ...]:
        """The words that must occur, in lowercase, for highlighting."""
        return tuple(t.value for t in self.terms if not (t.name or t.compare or t.negated))


def _is_value(wanted: str, value: str) -> bool:
    """`fail` matches `failed`; numbers must match entirely, or lie in a range such as `0-3`."""
    value = value.casefold()
    if not value.isdecimal():
        return value.startswith(wanted)
    return any(_is_in_span(int(value), part) for part in wanted.split(","))


def _is_in_span(number: int, span: str) -> bool:
    first, dash, last = span.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        return False
    return int(first) <= number <= int(last or first)


class _WrongError(Exception):
    """An error in a filter, in words."""


def parse(text: str, vocabulary: Vocabulary) -> Filter:
    """Parse a filter; never raises: `Filter.trouble` reports errors."""
    try:
        terms = tuple(_term(word, quoted, vocabulary) for word, quoted in _split(text))
    except _WrongError as wrong:
        return Filter(text, (), str(wrong))
    return Filter(text, terms)


def _split(text: str) -> list[tuple[str, bool]]:
    """Parts between unquoted spaces, and whether each begins with a quote."""
    if text.count('"') % 2:
        raise _WrongError("missing closing quote: " + text[text.rindex('"') :])
    parts = re.findall(_PART, text)
    return [(part.replace('"', ""), part.startswith(('"', '!"'))) for part in parts]


def _term(text: str, quoted: bool, vocabulary: Vocabulary) -> Term:
    negated = text.startswith("!")
    rest = text[1:] if negated else text
    if not rest:
        raise _WrongError('missing word after "!"' if negated else "empty quotes")
    if quoted:
        return Term(rest.casefold(), negated=negated)
    if (figure := re.fullmatch(_FIGURE, rest)) and _is_known(
        figure[1], vocabulary, vocabulary.figures
    ):
        return _figure(figure[1].lower(), figure[2], figure[3], negated, vocabulary)
    if (named := re.fullmatch(_FIELD, rest)) and _is_known(named[1], vocabulary, vocabulary.fields):
        name, value = named[1].lower(), named[2].casefold()
        if not value:
            raise _WrongError(f"missing value; use {name}:VALUE")
        return Term(value, name, negated=negated)
    return Term(rest.casefold(), negated=negated)


def _is_known(name: str, vocabulary: Vocabulary, names: Collection[str]) -> bool:
    if name.lower() in names:
        return True
    if name.lower() in vocabulary.figures:
        raise _WrongError(f"{name} is a number; use {name}>2 or {name}<2")
    if name.lower() in vocabulary.fields:
        raise _WrongError(f"{name} is not a number; use {name}:VALUE")
    known = ", ".join((*vocabulary.fields, *vocabulary.figures))
    raise _WrongError(f"unknown field {name}; use {known}")


def _figure(name: str, compare: str, value: str, negated: bool, vocabulary: Vocabulary) -> Term:
    if not value:
        raise _WrongError(f"missing number; use {name}{compare}2")
    number = re.fullmatch(_NUMBER, value)
    units = _UNITS[vocabulary.figures[name]]
    factor = None if number is None else units.get(number[2].lower())
    if number is None or factor is None:
        raise _WrongError(f"{value} is not a valid number; use {name}{compare}2")
    return Term(value, name, compare, float(number[1]) * factor, negated)
