"""Numbers as text: with units, and lists of ranks and devices.

An unknown value is "n/a", never 0.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterable, Sequence, Sized

NOT_AVAILABLE = "n/a"
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SIZE = r"(?i)(\d+(?:\.\d+)?) ?([KMGT]?)(?:i?B)?"


def _byte_scale(value: float) -> int:
    exponent = 0
    while value >= 999.5 and exponent < len(_BYTE_UNITS) - 1:
        value /= 1024
        exponent += 1
    return exponent


def _scaled(value: float, exponent: int) -> str:
    scaled = value / 1024**exponent
    return f"{scaled:.0f}" if exponent < 3 or scaled >= 99.95 else f"{scaled:.1f}"


def size(value: float | None) -> str:
    """Bytes: `412 MiB`, `61.2 GiB`."""
    if value is None:
        return NOT_AVAILABLE
    exponent = _byte_scale(value)
    return f"{_scaled(value, exponent)} {_BYTE_UNITS[exponent]}"


def whole(text: str) -> int | None:
    """The number that a few digits stand for; None if the text is anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def parse_size(text: str) -> int | None:
    """Bytes of a size such as `512M` or `2G` (powers of 1024); None if it is not one."""
    found = re.fullmatch(_SIZE, text.strip())
    if found is None or len(text) > 100:
        return None
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


def size_of(used: int | None, total: int | None) -> str:
    """Part of a total in bytes, in the total's unit: `61.2/80.0 GiB`."""
    if used is None or total is None:
        return size(used)
    exponent = _byte_scale(total)
    return f"{_scaled(used, exponent)}/{_scaled(total, exponent)} {_BYTE_UNITS[exponent]}"


def duration(seconds: float | None) -> str:
    """A duration in its two largest units: `8s`, `12m 04s`, `3h 22m`, `2d 04h`."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_AVAILABLE
    whole = int(max(0.0, seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02}h"


def duration_in_words(seconds: float) -> str:
    """A duration for use in a sentence: `0.4 s`, `25 s`, `4 min`, `3.7 h`."""
    if seconds < 1.95:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{round(seconds / 3600, 1):g} h"


def brief_duration(seconds: float | None) -> str:
    """A duration in its largest unit: `8s`, `12m`, `3h`, `2d`."""
    return duration(seconds).split(" ", maxsplit=1)[0]


def step_time(seconds: float | None) -> str:
    """The duration of a step: `0.8 ms`, `312 ms`, `1.24 s`, `48.1 s`."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_AVAILABLE
    if seconds < 0.00995:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"


def rate(per_second: float | None) -> str:
    """Steps per second, or per minute or hour if that is easier to read."""
    if per_second is None or not math.isfinite(per_second):
        return NOT_AVAILABLE
    for factor, unit in ((1, "steps/s"), (60, "steps/min"), (3600, "steps/h")):
        value = per_second * factor
        if value >= 0.995 or unit == "steps/h":
            return f"{value:.0f} {unit}" if value >= 99.5 else f"{value:.3g} {unit}"
    raise AssertionError("the last unit always returns")


def percent(value: float | None) -> str:
    """`98%`."""
    return NOT_AVAILABLE if value is None else f"{value:.0f}%"


def deviation(ratio: float | None) -> str:
    """A ratio minus one, as a signed percentage: 0.41 is `+41%`."""
    if ratio is None or not math.isfinite(ratio):
        return NOT_AVAILABLE
    rounded = round(ratio * 100)
    return f"{rounded:+d}%" if rounded else "0%"


def count(value: int | None) -> str:
    """`12,340`."""
    return NOT_AVAILABLE if value is None else f"{value:,}"


def loss(value: float | None, state: str | None = None) -> str:
    """A loss in at most seven characters; `NaN` and `inf` are shown, not hidden."""
    if state in ("nan", "inf"):
        return "NaN" if state == "nan" else "inf"
    if value is None:
        return NOT_AVAILABLE
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    magnitude = abs(value)
    if magnitude and not 0.001 <= magnitude < 9999.5:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    digits = 4 if magnitude < 9.99995 else 3 if magnitude < 99.9995 else 2 if magnitude < 999 else 1
    return f"{value:.{digits}f}"


def celsius(value: float | None) -> str:
    """`71 °C`."""
    return NOT_AVAILABLE if value is None else f"{value:.0f} °C"


def watts(value: float | None, limit: float | None = None) -> str:
    """`612/700 W`."""
    if value is None:
        return NOT_AVAILABLE
    return f"{value:.0f} W" if limit is None else f"{value:.0f}/{limit:.0f} W"


def ranks(numbers: list[int]) -> str:
    """Ranks or indices, with ranges: `0-3,5`."""
    return span(numbers, compact=True)


def plural(number: int, noun: str) -> str:
    """`1 restart`, `2 restarts`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def span(numbers: Iterable[int], *, compact: bool = False) -> str:
    """`0-2, 5, 6`: ascending, with three or more consecutive numbers as a range.

    With `compact`, for a table: `0-2,5-6`.
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    comma, shortest = (",", 2) if compact else (", ", 3)
    return comma.join(
        f"{run[0]}-{run[-1]}" if len(run) >= shortest else comma.join(map(str, run)) for run in runs
    )


def name_ranks(ranks: Sequence[int], *, compact: bool = False) -> str:
    """`rank 1`, `ranks 1-3`; `compact` as in `span`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {span(ranks, compact=compact)}"


def name_gpus(gpus: Sequence[int]) -> str:
    """`GPU 1`, `GPUs 1-3`."""
    return f"GPU{'s' if len(gpus) > 1 else ''} {span(gpus)}"


def is_or_are(some: Sized) -> str:
    """The verb for a sentence about some ranks or devices."""
    return "is" if len(some) == 1 else "are"


def has_or_have(some: Sized) -> str:
    """The verb for a sentence about some ranks or devices."""
    return "has" if len(some) == 1 else "have"


def local_time(moment: dt.datetime | None) -> str:
    """A local time, with the date unless it is today."""
    if moment is None:
        return NOT_AVAILABLE
    local = moment.astimezone()
    same_day = local.date() == dt.datetime.now().astimezone().date()
    return f"{local:%H:%M:%S}" if same_day else f"{local:%Y-%m-%d %H:%M}"
