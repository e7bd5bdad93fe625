"""Formats a job in three lines, or in one, for `ddptop status --watch`. Pure.

A line is a list of parts, the most important first; parts that do not fit are dropped from the end.
Each part has a color, but its text carries all the information.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence

from ddptop.view import words
from ddptop.view.host_words import hosts_of_devices
from ddptop.view.jobs import steps_per_s
from ddptop.view.need import worst_first
from ddptop.view.progress import BAR_CELLS, LIST_CELLS, place, share, shown_percent, text_bar
from ddptop_runner.base import units
from ddptop_runner.base.median import median
from ddptop_runner.base.units import NOT_AVAILABLE, duration, name_gpus, name_ranks, size
from ddptop_runner.job.registry import JobView
from ddptop_runner.jobs.contract import JobStatus
from ddptop_runner.judge.balance.imbalance import deviations, seen
from ddptop_runner.model.snapshot import Alert, GpuSample, RankSample

Part = tuple[str, str]
"""(text, style); the style is `ok`, `warn`, `bad`, `strong`, or empty."""


def job_lines(view: JobView, status: JobStatus) -> list[list[Part]]:
    """One line each for state and progress, ranks, and devices."""
    return [_state(view, status), _ranks(status), _devices(status)]


def job_line(view: JobView, status: JobStatus) -> list[Part]:
    """One line for one of several jobs."""
    return [
        (view.job, "strong"),
        _state_part(view, status, ""),
        *_progress(status, LIST_CELLS),
        *_news(view, status),
        *_learning(status),
    ]


def _state(view: JobView, status: JobStatus) -> list[Part]:
    text, color = _state_part(view, status, "strong")
    parts: list[Part] = [(f"{view.job}: {text}", color)]
    if status.pause is not None and (why := words.pause_why(status.pause, view.read_at)):
        parts.append((why, ""))
    parts += _progress(status, BAR_CELLS)
    if status.attempt:
        parts.append((f"attempt {status.attempt}", ""))
    if view.is_live and status.guarded is False:
        parts.append(("unguarded", "warn"))
    if stale := words.age_words(view):
        parts.append((stale, "warn"))
    return parts


def _state_part(view: JobView, status: JobStatus, plain: str) -> Part:
    """The state in one word, or how long no step has finished."""
    pause = status.pause
    if pause is None or status.state == "hung":
        return status.state, _color(words.job_state(status.state), plain)
    now = view.read_at
    return words.pause_in_words(pause, now), _color(words.pause_state(pause, now), plain)


def _color(state: Part, plain: str) -> str:
    """The TUI's color; plain where that is dim or busy."""
    return plain if state[1] in ("dim", "busy") else state[1]


def _progress(status: JobStatus, cells: int) -> list[Part]:
    progress = status.progress
    if progress is None:
        return [] if status.step is None else [(_step(status), "")]
    parts: list[Part] = []
    if progress.fraction is not None:
        parts.append((f"{text_bar(progress.fraction, cells)} {share(progress)}", ""))
    elif progress.epoch_fraction is not None:
        bar = text_bar(progress.epoch_fraction, cells)
        parts.append((f"{bar} {shown_percent(progress.epoch_fraction):.1f}% of the epoch", ""))
    if progress.eta_s is not None:
        about = "about " if progress.estimated else ""
        parts.append((f"{about}{duration(progress.eta_s)} left", ""))
    if where := place(progress):
        parts.append((where, ""))
    elif status.step is not None:
        parts.append((_step(status), ""))
    return parts


def _step(status: JobStatus) -> str:
    """`step 738`, or `step 98 of this attempt` if the step of the run is unknown."""
    whose = "" if status.step_counts in (None, "run") else f" of this {status.step_counts}"
    return f"step {status.step:,}{whose}"


def _ranks(status: JobStatus) -> list[Part]:
    count = len(status.ranks) or status.world_size
    head = "no ranks yet" if not count else f"{count} rank{'s' if count > 1 else ''}"
    if status.world_size and status.ranks and len(status.ranks) != status.world_size:
        head = f"{len(status.ranks)} of {status.world_size} ranks"
    return [(head, ""), *_learning(status), *_news(None, status)]


def _learning(status: JobStatus) -> list[Part]:
    """Pace and loss."""
    ranks = seen(status.ranks)
    pace = steps_per_s(ranks)
    loss = _middle(rank.loss for rank in ranks)
    parts: list[Part] = []
    if pace is not None and status.pause is None:
        parts.append((units.rate(pace), ""))
    if broken := [rank.rank for rank in ranks if rank.loss_state in ("nan", "inf")]:
        state = next(rank.loss_state for rank in ranks if rank.rank == broken[0])
        whose = "" if len(broken) == len(ranks) else f" on {name_ranks(broken)}"
        parts.append((f"loss is {units.loss(None, state)}{whose}", "bad"))
    elif ranks:
        parts.append((f"loss {units.loss(loss)}", ""))
    return parts


def _news(view: JobView | None, status: JobStatus) -> list[Part]:
    """The most important fact: the cause of failure, an alert, or an outlier rank."""
    if status.cause is not None:
        return [(status.cause.summary, "bad")]
    if alerts := worst_first(status.alerts):
        more = f" (and {len(alerts) - 1} more)" if len(alerts) > 1 else ""
        return [(alerts[0].message + more, words.severity(alerts[0].severity)[1])]
    live = view is None or view.is_live
    return (
        [(odd, "warn")]
        if live and (odd := odd_one(status.ranks, status.gpus, status.alerts))
        else []
    )


def odd_one(ranks: Sequence[RankSample], gpus: Sequence[GpuSample], alerts: Sequence[Alert]) -> str:
    """The slowest rank, in words; empty if none holds up the others."""
    found = [
        (-apart.slower, rank)
        for rank, apart in deviations(ranks, gpus, alerts).items()
        if apart.is_slow and apart.slower is not None
    ]
    if not found:
        return ""
    slower, rank = min(found)
    others = len(found) - 1
    more = f" (and {others} more)" if others else ""
    return f"rank {rank}: {-100 * slower:.0f}% slower{more}"


def _devices(status: JobStatus) -> list[Part]:
    gpus = status.gpus
    if not gpus:
        cpu = _sum(rank.cpu_percent for rank in status.ranks)
        memory = _sum(rank.rss_bytes for rank in status.ranks)
        return [
            ("CPU", ""),
            (f"load {units.percent(cpu)}", ""),
            (f"memory {size(None if memory is None else int(memory))}", ""),
        ]
    hosts = hosts_of_devices(gpus, 16)
    names = name_gpus([gpu.index for gpu in gpus if gpu.index is not None]) or "GPUs"
    if hosts:
        names = f"{len(gpus)} GPUs on {len(hosts)} hosts"
    parts: list[Part] = [(names, "")]
    for host in hosts or [None]:
        lost = [gpu.index for gpu in gpus if gpu.lost and host in (None, gpu.host)]
        if lost:
            where = "" if host is None else f" on {hosts[host]}"
            parts.append((f"{name_gpus(lost)}{where} lost", "bad"))
    parts.append((f"load {_range(gpus, lambda gpu: gpu.util_percent)}", ""))
    used = _sum(gpu.mem_used_bytes for gpu in gpus)
    total = _sum(gpu.mem_total_bytes for gpu in gpus)
    if used is None or not total:
        parts.append((f"memory {NOT_AVAILABLE}", ""))
    else:
        parts.append((f"memory {100 * used / total:.0f}% of {size(int(total))}", ""))
    return parts


def _range(gpus: Sequence[GpuSample], read: Callable[[GpuSample], float | None]) -> str:
    """`97%`, or `12 to 97%` if devices differ."""
    known = [value for gpu in gpus if (value := read(gpu)) is not None]
    if not known:
        return NOT_AVAILABLE
    least, most = min(known), max(known)
    return f"{most:.0f}%" if round(least) == round(most) else f"{least:.0f} to {most:.0f}%"


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum; None if any value is unknown, because a partial sum would mislead."""
    known = list(values)
    return None if not known or None in known else float(sum(v for v in known if v is not None))


# --- cells ----------------------------------------------------------------------------------------


def cells(text: str) -> int:
    """The width of the text in terminal cells."""
    if text.isascii():
        return len(text)
    return sum(_cells_of(letter) for letter in text)


def _cells_of(letter: str) -> int:
    if unicodedata.combining(letter) or unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def fit(parts: Sequence[Part], width: int, gap: str = "  ") -> list[Part]:
    """The parts that fit a line of `width` cells; the first one is clipped if necessary.

    Parts without a color are dropped before parts with one.
    """
    kept = [part for part in parts if part[0]]
    while len(kept) > 1 and _width(kept, gap) > width:
        plain = [index for index, (_, color) in enumerate(kept) if index and not color]
        if not plain:
            break
        kept.pop(plain[-1])
    left, line = width, list[Part]()
    for text, color in kept:
        room = left - (len(gap) if line else 0)
        if room < min(cells(text), 4):
            break
        cut = clip(text, room)
        line.append((cut, color))
        left = room - cells(cut)
    return line


def _width(parts: Sequence[Part], gap: str) -> int:
    return sum(cells(text) for text, _ in parts) + len(gap) * (len(parts) - 1)


def clip(text: str, width: int) -> str:
    """The text cut to a number of cells, with an ellipsis if it was cut."""
    if cells(text) <= width:
        return text
    kept, left = "", width - 1
    for letter in text:
        left -= _cells_of(letter)
        if left < 0:
            break
        kept += letter
    return f"{kept}…" if width > 0 else ""
