"""Reads traces of torch.profiler: what the time of each step was spent on. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ddptop_runner.base import units
from ddptop_runner.base.errors import DamagedFileError
from ddptop_runner.model.words import Base

OUTSIDE = "outside all ops"
MOST_OPS = 10
MOST_DIFFERENCES = 5
LEAST_DIFFERENCE = 0.01
"""Of the longer step; smaller differences are not named in text."""
_COMMUNICATES = ("nccl", "gloo:", "c10d::", "mpi:", "ucc:", "record_param_comms")
_COPIES = ("gpu_memcpy", "gpu_memset")


class Op(Base, frozen=True, kw_only=True):
    """An operator, or a kernel of an unknown one."""

    name: str
    self_s: float
    """Mean time per step without what it calls; on the device, if there is one."""


class RankProfile(Base, frozen=True, kw_only=True):
    """Some steps of one rank. Shares are those of Holistic Trace Analysis, from 0 to 1."""

    rank: int
    path: str
    """The trace, for ui.perfetto.dev."""
    steps: int
    step_s: float
    """Mean time of a step while profiled."""
    idle: float
    """Share of the time without any kernel; without a device, without any op."""
    compute: float
    communication: float
    overlap: float | None
    """Share of the communication during which it also computes; null without communication."""
    copies: float | None
    """Share of copies from, to, and on the device; null without a device."""
    ops: list[Op]
    """Those with most self time."""


class Difference(Base, frozen=True, kw_only=True):
    """By how much an op takes longer in a step of the first rank than of the second."""

    name: str
    difference_s: float


class _Event(msgspec.Struct):
    ph: str = ""
    name: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    tid: int | str = 0
    args: dict[str, Any] = {}

    @property
    def end(self) -> float:
        return self.ts + self.dur


class _Trace(msgspec.Struct):
    traceEvents: list[_Event]


def analyze(rank: int, path: str, data: bytes) -> tuple[RankProfile, dict[str, float]]:
    """The profile of a rank, and the self time of each op per step.

    Raises:
        DamagedFileError: the trace holds no steps.
    """
    try:
        events = msgspec.json.decode(data, type=_Trace).traceEvents
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedFileError(f"the trace of rank {rank} is damaged: {error}") from None
    events = [event for event in events if event.ph == "X" and event.dur >= 0]
    steps = [one for one in events if one.cat == "user_annotation" and _is_step(one)]
    if not steps:
        raise DamagedFileError(f"the trace of rank {rank} has no steps", f"see {path}")
    start, end = min(one.ts for one in steps), max(one.end for one in steps)
    whole, parts = max(end - start, 1e-9), defaultdict(list)
    own: dict[str, float] = defaultdict(float)
    has_device = any(event.cat == "kernel" for event in events)
    for name, kind, since, until in _on_device(events) if has_device else _on_cpu(events):
        since, until = max(since, start), min(until, end)
        if since < until:
            parts[kind].append((since, until))
            if kind != "outside":
                own[name] += (until - since) / 1e6 / len(steps)
    compute, communication, copies = (
        _length(parts[kind]) for kind in ("compute", "communication", "copies")
    )
    # a thread that waits for its collective is outside all ops, too
    waits = _length(parts["outside"] + parts["communication"]) - communication
    own[OUTSIDE] = waits / 1e6 / len(steps)
    active = _length(
        span for kind in ("compute", "communication", "copies") for span in parts[kind]
    )
    both = compute + communication - _length(parts["compute"] + parts["communication"])
    largest = sorted(own.items(), key=lambda item: -item[1])
    found = RankProfile(
        rank=rank,
        path=path,
        steps=len(steps),
        step_s=whole / 1e6 / len(steps),
        idle=1 - active / whole,
        compute=compute / whole,
        communication=communication / whole,
        overlap=both / communication if communication else None,
        copies=copies / whole if has_device else None,
        ops=[Op(name=name, self_s=self_s) for name, self_s in largest[:MOST_OPS]],
    )
    return found, own


def differences(first: dict[str, float], second: dict[str, float]) -> list[Difference]:
    """The ops whose self times per step differ most, the largest first."""
    by_op = {name: first.get(name, 0.0) - second.get(name, 0.0) for name in first | second}
    largest = sorted(by_op, key=lambda name: -abs(by_op[name]))[:MOST_DIFFERENCES]
    return [Difference(name=name, difference_s=by_op[name]) for name in largest]


def rank_lines(found: RankProfile) -> list[str]:
    """The shares of a step, then the ops."""
    shares = [
        ("idle", found.idle), ("compute", found.compute), ("communication", found.communication),
        ("copies", found.copies), ("overlap", found.overlap),
    ]  # fmt: skip
    known = ", ".join(f"{name} {units.percent(100 * x)}" for name, x in shares if x is not None)
    rows = [
        f"  {units.step_time(op.self_s):>9} {units.percent(100 * op.self_s / found.step_s):>5}  "
        f"{op.name[:60]}"
        for op in found.ops
    ]
    return [f"{found.steps} steps of {units.step_time(found.step_s)}: {known}", *rows]


def difference_line(ranks: Sequence[RankProfile], found: Sequence[Difference]) -> str:
    """`rank 2 against rank 0: aten::mm +38 ms`."""
    least_s = LEAST_DIFFERENCE * max(rank.step_s for rank in ranks)
    parts = [
        f"{one.name} {'+' if one.difference_s > 0 else '-'}{units.step_time(abs(one.difference_s))}"
        for one in found
        if abs(one.difference_s) >= least_s
    ]
    text = ", ".join(parts) or "no op differs by 1% of a step"
    return f"rank {ranks[0].rank} against rank {ranks[1].rank}: {text}"


def _is_step(event: _Event) -> bool:
    return event.name.startswith("ProfilerStep#")


def _on_device(events: Iterable[_Event]) -> Iterator[tuple[str, str, float, float]]:
    """(op, kind, start, end) of everything on the device."""
    ops = {event.args.get("External id"): event.name for event in events if event.cat == "cpu_op"}
    for event in events:
        if event.cat in ("kernel", *_COPIES):
            kind = "copies" if event.cat in _COPIES else _kind(event)
            op = ops.get(event.args.get("External id"), event.name)
            yield event.name if kind == "communication" else op, kind, event.ts, event.end


def _on_cpu(events: Iterable[_Event]) -> Iterator[tuple[str, str, float, float]]:
    """The same of each thread's innermost op."""
    threads: dict[object, list[_Event]] = defaultdict(list)
    for event in events:
        if event.cat in ("cpu_op", "user_annotation"):
            threads[event.tid].append(event)
    for found in threads.values():
        for event, start, end in _innermost(found):
            yield event.name, _kind(event), start, end


def _kind(event: _Event) -> str:
    if event.name.startswith(_COMMUNICATES):
        return "communication"
    if _is_step(event):
        return "outside"
    return "annotation" if event.cat == "user_annotation" else "compute"


def _innermost(events: Iterable[_Event]) -> Iterator[tuple[_Event, float, float]]:
    """When each event of a thread was the innermost."""
    stack: list[_Event] = []
    at = 0.0

    def close(until: float) -> Iterator[tuple[_Event, float, float]]:
        nonlocal at
        while stack and stack[-1].end <= until:
            top = stack.pop()
            yield top, at, top.end
            at = max(at, top.end)
        if stack:
            yield stack[-1], at, until
        at = max(at, until)

    for event in sorted(events, key=lambda event: (event.ts, -event.dur)):
        yield from close(event.ts)
        stack.append(event)
    yield from close(float("inf"))


def _length(spans: Iterable[tuple[float, float]]) -> float:
    """Of the union."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
