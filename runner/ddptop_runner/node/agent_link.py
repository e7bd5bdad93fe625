"""Translates the agent's JSON lines to facts, and orders to JSON lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ddptop_runner.base.paths import LAUNCHER
from ddptop_runner.model import protocol as pt

Message = dict[str, Any]


class AgentLink:
    """One connection of an agent, starting with its hello.

    Args:
        send: writes one message.
        take: receives the facts.
        exited: receives the message of each exit.
    """

    def __init__(
        self,
        send: Callable[[Message], None],
        take: Callable[[pt.Fact], None],
        exited: Callable[[Message], None],
    ) -> None:
        self._send = send
        self._take = take
        self._exited = exited
        self._question: int | None = None
        """The question awaiting an answer; each agent numbers its own."""

    def greet(self, hello: Message) -> None:
        """Handle the hello, which contains all that the agent knows."""
        self._take(pt.AgentConnected(pid=hello["pid"]))
        if hello["workers"]:
            self._take(_group_started(hello))
        for exit_ in hello["exits"]:
            self._exited(exit_)
        self._take(pt.AgentListens())

    def receive(self, message: Message) -> None:
        """Handle any later message."""
        kind = message["type"]
        if kind == "group_started":
            self._take(_group_started(message))
        elif kind == "plain_start":
            self._take(pt.PlainStart(why=message["why"]))
        elif kind == "rank_exited":
            self._exited(message)
        elif "question" in message:
            self._question = message["question"]
            for worker in message.get("workers", ()) if kind == "torn_down" else ():
                if worker["returncode"] is not None:
                    self._exited({**worker, "attempt": message["attempt"]})
            self._take(
                pt.AgentAsked(
                    question=message["question"],
                    kind=kind,
                    attempt=message.get("attempt"),
                    ranks=[rank for rank in message.get("ranks", []) if rank != LAUNCHER],
                )
            )

    def answer(self, order: pt.AnswerAgent) -> None:
        """Answer the agent's question, unless another agent asked it."""
        if order.question != self._question:
            return
        more: Message = {}
        if order.restart is not None:
            more = {"restart": order.restart, "restarts_left": order.restarts_left}
        if order.rendezvous is not None:
            more["rendezvous"] = msgspec.to_builtins(order.rendezvous)
        self._send({"answer": order.question, **more})

    def send_order(self, order: pt.TellAgent) -> None:
        """Send the agent an order."""
        more = {} if order.restarts_left is None else {"restarts_left": order.restarts_left}
        self._send({"type": order.order, **more})


def _group_started(message: Message) -> pt.GroupStarted:
    workers = [
        pt.Worker(
            rank=None if worker["rank"] == LAUNCHER else worker["rank"],
            pid=worker["pid"],
            local_rank=worker["local_rank"],
        )
        for worker in message["workers"]
    ]
    return pt.GroupStarted(attempt=message["attempt"], workers=workers)
