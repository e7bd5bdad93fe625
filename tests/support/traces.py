"""Recorded trainings: what their supervisor published each second, replayed to the same judges.

A trace is compressed JSON, a line per field: its name, how its values are written, the seconds
between two changes (null: it changes every second), and the values. Fields that a trace lacks are
unknown, and those that are gone from the types are skipped.
"""

from __future__ import annotations

import datetime as dt
import json
import lzma
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ddptop_runner.judge.alerts import stalled
from ddptop_runner.judge.balance.job_watch import JobWatch
from ddptop_runner.judge.losses import LossWatch
from ddptop_runner.model.snapshot import Alert, NodeSnapshot

FOLDER = Path(__file__).parents[1] / "unit" / "judge" / "traces"
ENDING = ".jsonl.xz"
Row = dict[str, Any]
"""One second: values by name, such as `ranks.0.step`; `at_s` is its CLOCK_BOOTTIME."""

SKIPPED = frozenset(
    {
        *("schema", "seq", "boot_id", "pid_ns", "guardian", "supervisor", "agent", "memory"),
        *("imbalance", "progress", "eta_s", "driver", "source", "device_note", "boottime_s"),
        *("log_bytes", "loss_step", "attempts_began", "policy", "ran_s"),
    }
)
"""Fields that no judge reads, or that follow from others."""
LEAST_GAP_S = 0.5
"""Snapshots that follow sooner were published in between, because of an event."""
LARGE = 1 << 24
"""Larger numbers in lists are hashes, of which only equality counts."""


# -- recording ------------------------------------------------------------------------------------


class Recorder:
    """Collects the snapshots of one job."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._hashes: dict[int, int] = {}
        self._batches: dict[str, list[Any]] = {}

    def add(self, data: bytes, available_bytes: int) -> None:
        """Add a snapshot as published, and what memory the machine had left, unless it is known."""
        snapshot = json.loads(data)
        at_s = snapshot["boottime_s"]
        if self.rows and at_s - self.rows[-1]["at_s"] < LEAST_GAP_S:
            return
        row: Row = {"at_s": at_s, "available_bytes": available_bytes >> 20 << 20}
        row["told"] = [
            [one["id"], one["severity"], one["ranks"], bool(one["evidence"])]
            for one in snapshot.pop("alerts")
        ]
        for group in ("ranks", "gpus"):
            snapshot[group] = {str(number): one for number, one in enumerate(snapshot[group])}
        row |= _flat(snapshot)
        kept = {name: value for name, value in row.items() if not SKIPPED & {*name.split(".")}}
        self.rows.append({name: self._short(name, value) for name, value in kept.items()})

    def _short(self, name: str, value: Any) -> Any:
        field = name.rpartition(".")[2]
        if field in ("job", "job_id", "host", "path"):
            return "here"
        if field == "pid" and value is not None:
            return self._known(value)
        if field == "rss_bytes" and value is not None:
            return value >> 16 << 16
        if field == "batch_hashes":
            before, self._batches[name] = self._batches.get(name, []), value
            # the others have been judged
            value = [one for one in value if one not in before]
        if isinstance(value, float) and field != "at_s" and not field.endswith("_total_s"):
            return float(f"{value:.7g}" if field.startswith("loss") else f"{value:.3g}")
        return self._without_hashes(value)

    def _without_hashes(self, value: Any) -> Any:
        if isinstance(value, list):
            return [
                self._known(one)
                if isinstance(one, int) and one >= LARGE
                else self._without_hashes(one)
                for one in value
            ]
        return value

    def _known(self, number: int) -> int:
        return self._hashes.setdefault(number, len(self._hashes) + 1)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Row:
    row: Row = {}
    for name, value in values.items():
        if isinstance(value, dict):
            row |= _flat(value, f"{prefix}{name}.")
        else:
            row[f"{prefix}{name}"] = value
    return row


def encode(rows: list[Row]) -> bytes:
    """The trace of these rows, without the fields that are always unknown."""
    names = dict.fromkeys(name for row in rows for name in row)
    begins = dt.datetime.fromisoformat(rows[0]["ts"])
    lines: list[Any] = [{"begins": rows[0]["ts"], "seconds": len(rows)}]
    for name in names:
        column = [row.get(name) for row in rows]
        if all(value in (None, [], {}) for value in column):
            continue
        form = _form(name, column)
        values, gaps, last, since = [], [], None, -1
        for number, value in enumerate(column):
            value = _written(form, value, begins)
            if value != last:
                values.append(value)
                gaps.append(number - since)
                last, since = value, number
        if form != "json":
            values = list(_differences(values))
        lines.append([name, form, None if len(values) == len(rows) else gaps, values])
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    return lzma.compress(text.encode(), preset=9)


TIME, TOTAL = 100, 10_000
"""Parts of a second in which times, and durations in all, are written."""


def _form(name: str, column: Iterable[Any]) -> str:
    known = [value for value in column if value is not None]
    if name == "at_s" or (name.endswith("_total_s") and known):
        return "total"
    if all(isinstance(value, int) and not isinstance(value, bool) for value in known):
        return "whole"
    return "time" if all(_is_time(value) for value in known) else "json"


def _is_time(value: Any) -> bool:
    return isinstance(value, str) and value[:2] == "20" and value.endswith(("Z", "+00:00"))


def _written(form: str, value: Any, begins: dt.datetime) -> Any:
    if value is None or form in ("json", "whole"):
        return value
    if form == "total":
        return round(value * TOTAL)
    return round((dt.datetime.fromisoformat(value) - begins).total_seconds() * TIME)


def _differences(values: Iterable[int | None]) -> Iterator[int | None]:
    before = 0
    for value in values:
        yield None if value is None else value - before
        before = before if value is None else value


# -- replaying ------------------------------------------------------------------------------------


class Trace(NamedTuple):
    """One recorded training."""

    name: str
    rows: list[Row]

    @property
    def told(self) -> dict[str, float]:
        """The alerts that the supervisor raised, with the seconds after which it did."""
        told: dict[str, float] = {}
        for row in self.rows:
            for id_, *_ in row.get("told", []):
                told.setdefault(id_, round(row["at_s"] - self.rows[0]["at_s"], 1))
        return told


def names() -> list[str]:
    """All recorded trainings; those with a mistake begin with `sick-`.

    The folder `first-epoch` has trainings whose `DataLoader` tells how many batches an epoch has,
    which was unknown when the others were recorded: up to five seconds after their first epoch.
    """
    found = (path.relative_to(FOLDER) for path in FOLDER.rglob(f"*{ENDING}"))
    return sorted(str(path).removesuffix(ENDING) for path in found)


def read(name: str) -> Trace:
    """The trace of that name."""
    return Trace(name, decode((FOLDER / f"{name}{ENDING}").read_bytes()))


def decode(data: bytes) -> list[Row]:
    """The rows that `encode` wrote."""
    first, *columns = map(json.loads, lzma.decompress(data).decode().splitlines())
    begins, count = dt.datetime.fromisoformat(first["begins"]), first["seconds"]
    rows: list[Row] = [{} for _ in range(count)]
    for name, form, gaps, values in columns:
        number, value, before = -1, None, 0
        for gap, written in zip(gaps or [1] * count, values, strict=True):
            for row in rows[max(number, 0) : number + gap]:
                row[name] = value
            number += gap
            if form != "json" and written is not None:
                written = before = before + written
            value = _read(form, written, begins)
        for row in rows[number:]:
            row[name] = value
    return rows


def _read(form: str, value: Any, begins: dt.datetime) -> Any:
    if value is None or form in ("json", "whole"):
        return value
    return value / TOTAL if form == "total" else begins + dt.timedelta(seconds=value / TIME)


@cache
def _path(name: str) -> list[str]:
    return name.split(".")


def snapshot_of(row: Mapping[str, Any]) -> NodeSnapshot:
    """The snapshot of one second. Parts of ranks of which newer code requires more are unknown."""
    values: dict[str, Any] = {"seq": 0, "ranks": {}, "gpus": {}}
    for name, value in row.items():
        if value is not None:
            *parents, field = _path(name)
            inner = values
            for parent in parents:
                inner = inner.setdefault(parent, {})
            inner[field] = value
    for group in ("ranks", "gpus"):
        values[group] = list(values[group].values())
    while True:
        try:
            return msgspec.convert(values, NodeSnapshot)
        except msgspec.ValidationError as error:
            lacks = LACKS.search(str(error))
            if lacks is None:
                raise
            del values["ranks"][int(lacks[1])][lacks[2]]


LACKS = re.compile(r"missing required field .*`\$\.ranks\[(\d+)\]\.(\w+)")


class Replay:
    """Judges one trace again.

    Args:
        trace: the recorded training.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.raised: dict[str, tuple[float, Alert]] = {}
        """By id, alerts with the seconds since the recording began."""
        self.amber: list[str] = []
        """What a person sees as trouble besides alerts: states of ranks, pauses, restarts."""
        available = 0
        watch, losses = JobWatch(lambda: available), LossWatch("stop")
        for row in trace.rows:
            snapshot, available = snapshot_of(row), row["available_bytes"]
            after_s = round(row["at_s"] - trace.rows[0]["at_s"], 1)
            extra = stalled(snapshot.pause, has_event=True)
            _, new = watch.update(snapshot, row["at_s"], extra=extra)
            for alert in new:
                self.raised.setdefault(alert.id, (after_s, alert))
            if (bad := losses.update(snapshot.ranks)) is not None:
                self.amber.append(bad.in_words())
            self.amber += _amber(snapshot, after_s)


CALM = frozenset({"starting", "running", "quiet", "exited", "stopped"})
"""States of ranks that are not drawn as trouble."""


def _amber(snapshot: NodeSnapshot, after_s: float) -> list[str]:
    bad = {rank.state for rank in snapshot.ranks} - CALM
    found = [f"a rank is {state} after {after_s} s" for state in bad]
    if snapshot.pause is not None and snapshot.pause.state != "no_step":
        found.append(f"{snapshot.pause.state} after {after_s} s")
    if snapshot.attempt:
        found.append(f"attempt {snapshot.attempt}")
    return found
