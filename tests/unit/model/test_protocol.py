"""Messages from other processes are decoded with types and ranges."""

from __future__ import annotations

import json

import msgspec
import pytest

from ddptop_runner.model import protocol as pt

HUGE = 10**25


@pytest.mark.parametrize(
    "message",
    [
        {"type": "agent_hello", "pid": HUGE, "attempt": 0, "workers": [], "exits": []},
        {"type": "agent_hello", "pid": 1, "attempt": -1, "workers": [], "exits": []},
        {"type": "group_started", "attempt": HUGE, "workers": []},
        {"type": "group_started", "attempt": 0, "workers": [{"rank": 0, "pid": HUGE}]},
        {"type": "group_started", "attempt": 0, "workers": [{"rank": HUGE, "pid": 1}]},
    ],
    ids=str,
)
def test_numbers_that_no_process_has_are_refused(message):
    kind = pt.AgentHello if message["type"] == "agent_hello" else pt.GroupStarted
    with pytest.raises(msgspec.DecodeError):
        pt.decode(json.dumps(message).encode(), kind)


def test_a_message_in_range_is_decoded():
    hello = pt.AgentHello(pid=7, attempt=1, workers=[pt.Worker(rank=None, pid=8)], exits=[])
    assert pt.decode(pt.encode(hello), pt.AgentHello) == hello
