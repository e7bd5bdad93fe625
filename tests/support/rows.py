"""Rows of a job's log, as a supervisor writes them, from the few facts that a test names."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from signal import Signals
from typing import Any

from msgspec.structs import replace

from ddptop_runner.job.event_log import as_row
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import Alert, Cause, Checkpoint, Event


def row(at: dt.datetime, type_: str, message: str | None = None, **fields: Any) -> Event:
    """A row with the data of its type.

    Args:
        at: when it happened.
        type_: one of the contract's types of events.
        message: in place of the sentence that belongs to the event.
        fields: the row's columns, and fields of the event that no column holds.
    """
    make = _EVENTS.get(type_)
    columns = {name: fields[name] for name in Event.__struct_fields__ if name in fields}
    if make is None:
        return Event(ts=at, type=type_, message=message or type_, **columns)
    written = as_row(make(at, message or type_, fields))
    columns = {name: value for name, value in columns.items() if value is not None}
    if message is not None:
        columns["message"] = message
    return replace(written, ts=at, type=type_, **columns)


def _cause(kind: str, message: str, fields: dict[str, Any]) -> Cause:
    if kind == "failure":
        kind = "signal" if fields.get("signal") else "unknown"
        kind = "exit_code" if fields.get("exit_code") else kind
    names = ("rank", "exit_code", "signal", "evidence")
    known = {name: fields[name] for name in names if name in fields}
    return fields.get("cause") or Cause(kind=kind, summary=message, **known)


def _judged(kind: str, made: type) -> Callable[..., ev.JobEvent]:
    return lambda at, message, f: made(attempt=f.get("attempt"), cause=_cause(kind, message, f))


def _ended(state: ev.EndState) -> Callable[..., ev.JobEvent]:
    def make(at: dt.datetime, message: str, f: dict[str, Any]) -> ev.JobEvent:
        cause = _cause("failure", message, f) if state == "failed" else None
        return ev.JobEnded(attempt=f.get("attempt"), state=state, cause=cause)

    return make


def _alert(at: dt.datetime, message: str, f: dict[str, Any]) -> ev.JobEvent:
    ranks = f.get("ranks", [] if f.get("rank") is None else [f["rank"]])
    alert = Alert(
        id=f.get("id", message), severity="warning", message=message, ranks=ranks, since=at
    )
    return ev.AlertRaised(attempt=f.get("attempt"), alert=alert, lasts_s=f.get("lasts_s"))


def _saved(at: dt.datetime, message: str, f: dict[str, Any]) -> ev.JobEvent:
    checkpoint = Checkpoint(
        path=f.get("path", "/ck/a.pt"),
        at=at,
        rank=f.get("rank"),
        attempt=f.get("attempt"),
        step=f.get("step"),
        global_step=f.get("step") if f.get("attempt") == 0 else None,
    )
    return ev.CheckpointSaved(attempt=f.get("attempt"), checkpoint=checkpoint)


_EVENTS: dict[str, Callable[..., ev.JobEvent]] = {
    "launched": lambda at, m, f: ev.Launched(attempt=f.get("attempt"), target="train.py", nproc=2),
    "queued": lambda at, m, f: ev.Queued(waits_for=m),
    "attempt_started": lambda at, m, f: ev.AttemptStarted(attempt=f.get("attempt")),
    "rank_started": lambda at, m, f: ev.RankStarted(
        attempt=f.get("attempt"), rank=f["rank"], pid=f.get("pid")
    ),
    "training": lambda at, m, f: ev.TrainingStarted(attempt=f.get("attempt"), after_s=1.0),
    "checkpoint": _saved,
    "rank_exited": lambda at, m, f: ev.RankExited(
        attempt=f.get("attempt"),
        rank=f["rank"],
        pid=f.get("pid"),
        status=-Signals[f["signal"]] if f.get("signal") else f.get("exit_code"),
        by_us=f.get("by_us", False),
    ),
    "hang_suspected": lambda at, m, f: ev.HangSuspected(
        attempt=f.get("attempt"), found=m, reason=f.get("reason")
    ),
    "failure": _judged("failure", ev.FailureJudged),
    "hang": _judged("hang", ev.HangJudged),
    "group_restart": lambda at, m, f: ev.RestartDecided(
        attempt=f.get("attempt"), used=f.get("used", 1), limit=3
    ),
    "stopping": lambda at, m, f: ev.StopRequested(attempt=f.get("attempt")),
    "alert": _alert,
    "alert_over": lambda at, m, f: ev.AlertsCleared(
        attempt=f.get("attempt"), messages=f.get("messages", {m: m})
    ),
    "finished": _ended("finished"),
    "failed": _ended("failed"),
    "stopped": _ended("stopped"),
}
