"""Expands `--array` into the jobs of a sweep. Pure."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddptop_runner.base.errors import UsageError
from ddptop_runner.model.spec import check_name

MOST_JOBS = 100
FORMS = "use --array lr=1e-3,1e-4 or --array seed=1-3"
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"


@dataclass(frozen=True)
class ArrayJob:
    """One job of a sweep."""

    name: str
    values: dict[str, str]
    """Its value of each array."""
    args: tuple[str, ...]


def parse_arrays(given: Sequence[str]) -> dict[str, list[str]]:
    """The values of each `NAME=VALUES`, in the given order.

    Raises:
        UsageError: one is invalid, or there would be more than `MOST_JOBS` jobs.
    """
    arrays: dict[str, list[str]] = {}
    for text in given:
        name, equals, listed = text.partition("=")
        if not equals or not re.fullmatch(_NAME, name) or not text.isprintable():
            raise UsageError(f"--array {text[:40]!r} is not in the form NAME=VALUES", FORMS)
        if name in arrays:
            raise UsageError(f"--array {name} is given twice", "list all of its values in one")
        parts = listed.split(",")
        _require_few(len(parts))
        values = [value for part in parts for value in _values(name, part.strip())]
        if twice := next((value for value in values if values.count(value) > 1), None):
            raise UsageError(f"--array {name} lists {twice} twice", "list each value once")
        arrays[name] = values
    _require_few(math.prod(map(len, arrays.values())))
    return arrays


def _values(name: str, part: str) -> list[str]:
    """The values of a part between commas: a range such as `1-3`, or itself."""
    if not part:
        raise UsageError(f"--array {name} has an empty value", FORMS)
    if (found := re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", part)) is None:
        return [part]
    first, last = map(int, found.groups())
    if last < first:
        raise UsageError(f"--array {name}: the range {part} is reversed", f"use {last}-{first}")
    _require_few(last - first + 1)
    return [str(number) for number in range(first, last + 1)]


def _require_few(jobs: int) -> None:
    if jobs > MOST_JOBS:
        raise UsageError(f"--array gives {jobs} jobs", f"use at most {MOST_JOBS}")


def expand(arrays: Mapping[str, Sequence[str]], group: str, args: Sequence[str]) -> list[ArrayJob]:
    """One job for each combination of values; the first array varies slowest.

    Only `{name}` of a known array is replaced in `args`; other braces stay.

    Raises:
        UsageError: no argument has an array's placeholder, or a job's name is invalid or not
            unique.
    """
    for name in arrays:
        if not any(f"{{{name}}}" in arg for arg in args):
            raise UsageError(
                f"--array {name}: the arguments do not contain {{{name}}}",
                f"pass it to the script, as in --{name} {{{name}}}",
            )
    jobs: dict[str, ArrayJob] = {}
    for combination in itertools.product(*arrays.values()):
        values = dict(zip(arrays, combination, strict=True))
        name = check_name("-".join([group, *(_word(name + values[name]) for name in values)]))
        if name in jobs:
            other = " ".join(jobs[name].values.values())
            raise UsageError(
                f"--array: {other} and {' '.join(combination)} have the same job name, {name}",
                "use values that differ in letters or digits",
            )
        jobs[name] = ArrayJob(name, values, tuple(_filled(arg, values) for arg in args))
    return list(jobs.values())


def _filled(arg: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), arg)


def _word(text: str) -> str:
    """The text as part of a job's name: `lr0.1` is `lr0-1`."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text)
