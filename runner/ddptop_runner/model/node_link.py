"""What travels between the head of a job and its nodes: JSON lines over the stdio of a command.

The command is `ddptop-node`, which `ssh`, `srun`, or a pipe runs on the node. It holds nothing: it
starts the node's part of the job, forwards what that publishes, and carries requests to it. So it
may end at any time, and another one continues after the last event that the head has.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, TypeAlias

import msgspec

from ddptop_runner.model.snapshot import Event, NodeSnapshot
from ddptop_runner.model.spec import JobSpec, Rendezvous

VERSION = 1


class Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Of either direction. Each type repeats the options: msgspec inherits the tag field alone."""


# -- head to node ----------------------------------------------------------------------------------


class Start(Line, frozen=True, kw_only=True, tag="start"):
    """Start the node's part of the job, unless it is running. Answered with `Answer`."""

    id: int
    spec: JobSpec
    """The node's own, with `membership`; its `job_id` is the job's."""
    env: dict[str, str]
    """Variables that the job gets besides those of the node."""
    attempt: int
    rendezvous: Rendezvous


class Follow(Line, frozen=True, kw_only=True, tag="follow"):
    """Send events after this one, and snapshots, from now on."""

    job_id: str
    after_seq: int = 0


class Request(Line, frozen=True, kw_only=True, tag="request"):
    """A request to the node's supervisor, as `node.control` sends it. Answered with `Answer`."""

    id: int
    op: str
    """ping, stop, kill, restart, evidence, stacks, checkpoint; `hello`, `preflight`, `forget`, and
    `read_file` are answered by the command itself."""
    arguments: dict[str, Any] = {}


Order: TypeAlias = Start | Follow | Request


# -- node to head ----------------------------------------------------------------------------------


class Hello(Line, frozen=True, kw_only=True, tag="hello"):
    """The first line."""

    version: int = VERSION
    ddptop: str
    """Its version."""
    host: str
    boot_id: str | None
    boottime_s: float
    now: dt.datetime


class NodeEvent(Line, frozen=True, kw_only=True, tag="event"):
    """An event of the node's log, in order and without gaps."""

    event: Event


class NodeState(Line, frozen=True, kw_only=True, tag="state"):
    """The node's snapshot, once a second, and what the hang watch needs of each rank."""

    snapshot: NodeSnapshot
    progress: list[dict[str, Any]] = []
    """`judge.hangs.verdict.RankProgress` of each rank, as plain data."""


class NodeAbsent(Line, frozen=True, kw_only=True, tag="absent"):
    """The node has no such job, or all processes of it are gone although it has no end."""

    has_folder: bool


class Answer(Line, frozen=True, kw_only=True, tag="answer"):
    """To the order of that number."""

    id: int
    error: str | None = None
    """What went wrong; None: it was done."""
    hint: str | None = None
    data: dict[str, Any] = {}


Report: TypeAlias = Hello | NodeEvent | NodeState | NodeAbsent | Answer
