"""When messages are sent."""

from __future__ import annotations

import datetime as dt
import random

import msgspec
import pytest
from ddptop.export.incidents import Kind, Notice
from ddptop.export.outbox import Queue, is_quiet

START_S = 1_770_000_000.0


def notice(at_s: float, kind: Kind = "finding", **more: object) -> Notice:
    at = dt.datetime.fromtimestamp(START_S + at_s, dt.timezone.utc)
    return msgspec.structs.replace(Notice(kind=kind, at=at, text=f"at {at_s}"), **more)


class Receiver:
    """A receiver whose network may be down, and what it got."""

    def __init__(self) -> None:
        self.queue = Queue()
        self.is_up = True
        self.tries = 0
        self.got: list[list[Notice]] = []

    def at(self, second: float, most_per_hour: int = 6, *, is_quiet: bool = False) -> None:
        now_s = START_S + second
        if notices := self.queue.to_send(now_s, most_per_hour, is_quiet=is_quiet):
            self.tries += 1
            if self.is_up:
                self.got.append(notices)
                self.queue.sent(notices, now_s)
            else:
                self.queue.failed(now_s)
        self.queue = msgspec.json.decode(msgspec.json.encode(self.queue), type=Queue)


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.mark.parametrize("seed", range(20))
def test_an_hour_without_network_loses_nothing_and_floods_nobody(
    receiver: Receiver, seed: int
) -> None:
    rng = random.Random(seed)
    added = sorted(rng.sample(range(3600), 12))
    for second in range(0, 2 * 3600, 5):
        receiver.is_up = second >= 3600
        for at_s in [one for one in added if second - 5 < one <= second]:
            receiver.queue.add(notice(at_s))
        receiver.at(second)
    assert [one.text for notices in receiver.got for one in notices] == [f"at {s}" for s in added]
    assert len(receiver.got) == 1
    assert receiver.tries < 15


def test_a_message_is_retried_for_a_day(receiver: Receiver) -> None:
    receiver.is_up = False
    receiver.queue.add(notice(0))
    for second in range(0, 24 * 3600 + 10, 10):
        receiver.at(second)
    assert receiver.queue.waiting == []
    assert receiver.queue.dropped == 1
    assert 90 < receiver.tries < 110, "a quarter of an hour apart after the first ones"


def test_quiet_hours_end_with_one_message(receiver: Receiver) -> None:
    for number in range(3):
        receiver.queue.add(notice(number))
        receiver.at(number, is_quiet=True)
    assert receiver.got == []
    receiver.at(10)
    assert [len(notices) for notices in receiver.got] == [3]


def test_the_limit_holds_all_back_but_the_end(receiver: Receiver) -> None:
    for number in range(5):
        receiver.queue.add(notice(number))
        receiver.at(number, most_per_hour=2)
    assert len(receiver.got) == 2
    receiver.queue.add(notice(60, "failed", is_end=True))
    receiver.at(60, most_per_hour=2)
    assert [one.kind for one in receiver.got[-1]] == ["finding"] * 3 + ["failed"]
    receiver.queue.add(notice(61))
    receiver.at(61, most_per_hour=2)
    assert len(receiver.got) == 3
    receiver.at(3700, most_per_hour=2)
    assert len(receiver.got) == 4


def test_an_unsent_incident_that_is_over_is_one_message(receiver: Receiver) -> None:
    receiver.queue.add(notice(0, "hung", rank=1, attempt=0))
    receiver.queue.add(notice(1, "disk"))
    receiver.queue.add(notice(90, "hung", rank=1, attempt=0, is_over=True))
    receiver.at(100)
    assert [(one.kind, one.is_over) for one in receiver.got[0]] == [("disk", False), ("hung", True)]


@pytest.mark.parametrize(
    ("quiet", "now", "expected"),
    [
        ((22, 7), 23, True),
        ((22, 7), 6, True),
        ((22, 7), 7, False),
        ((12, 14), 13, True),
        ((12, 14), 11, False),
    ],
)
def test_quiet_hours(quiet: tuple[int, int], now: int, expected: bool) -> None:
    assert is_quiet((dt.time(quiet[0]), dt.time(quiet[1])), dt.time(now)) is expected
