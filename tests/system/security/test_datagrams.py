"""Whatever arrives at the probe socket is taken or dropped, and never breaks the supervisor."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.job.ranks import RankRecord
from ddptop_runner.model.probe_message import MAX_METRICS, ProbeMessage, decode_message
from ddptop_runner.model.snapshot import RankSample, encode
from ddptop_runner.probe.sender import encode as encode_datagram

FIELDS = sorted(field.encode_name for field in msgspec.structs.fields(ProbeMessage))
REQUIRED = {"v": 1, "pid": 7, "seq": 1, "t": 1.0}
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([-1, 0, 1, 2**31, 2**53, 2**63, 2**64, 10**40])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def fold(message: ProbeMessage) -> RankSample:
    """All that the supervisor reckons out of one message."""
    record = RankRecord(0, 0, 0.0)
    for _ in range(2):
        record.receive(message)
        record.progress(boottime_s())
    return record.sample(probe=True)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6))
def test_wrong_values_are_dropped_or_reckoned_with(fields: dict[str, Any]) -> None:
    message = decode_message(json.dumps(REQUIRED | fields).encode())
    if message is not None:
        encode(fold(message))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_dropped(data: bytes) -> None:
    assert decode_message(data) is None
    assert decode_message(b'{"v":1,"pid":7,"seq":1,"t":1.0,"saved":' + data) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"collectives": {"g": [5]}},
        {"collectives": {"g": []}},
        {"optimizers": {"Adam 1": []}},
        {"steps": 10**30},
        {"steps": 2**63},
        {"t": 1e300},
        {"rank": 10**9},
        {"pid": -1},
        {"metrics": {"x" * 65: 1.0}},
        {"saved": {"path": "x", "n": 1, "began_t": 1e300, "ended_t": 0}},
    ],
)
def test_a_message_that_could_not_be_reckoned_with_is_dropped(fields: dict[str, Any]) -> None:
    assert decode_message(json.dumps(REQUIRED | fields).encode()) is None


def test_a_rank_asks_for_no_signal_that_could_end_it() -> None:
    fields = {"stack_signal": 9, "save_signals": [9, 15, 10]}
    record = RankRecord(0, 0, 0.0)
    message = decode_message(json.dumps(REQUIRED | {"pid": 7} | fields).encode())
    assert message is not None
    record.process = None
    record.receive(message)
    assert record.reported.stack_signal is None
    assert not {9, 15} & {*record.reported.save_signals}


def test_figures_are_bounded_however_many_names_come() -> None:
    record = RankRecord(0, 0, 0.0)
    for number in range(1000):
        metrics = {f"{number}-{n}": 1.0 for n in range(30)} | {"lr": float(number)}
        message = decode_message(json.dumps(REQUIRED | {"metrics": metrics}).encode())
        assert message is not None
        record.receive(message)
        step = {"steps": number, "last_step_t": 5.0}
        message = decode_message(json.dumps(REQUIRED | step).encode())
        assert message is not None
        record.receive(message)
    sample = record.sample(probe=True)
    assert len(sample.metrics) == MAX_METRICS
    assert sample.metrics["lr"] == 999.0
    assert len(encode(sample)) < 8192


@pytest.mark.parametrize("path", ["/w\udcff/m.pt", "/\U0001d482\udc82.pt", "/plain-\U0001f600.pt"])
def test_a_name_that_is_no_utf8_costs_no_message(path: str) -> None:
    saved = {"path": path, "n": 1, "began_t": 1.0, "ended_t": 2.0}
    message = decode_message(encode_datagram(dict(REQUIRED, saved=saved, metrics={})))
    assert message is not None and message.saved is not None
    assert message.saved.path == path.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def test_json_of_a_name_that_is_no_utf8_is_written() -> None:
    sample = RankSample(rank=0, local_rank=0, host="h\udcff", metrics={"a\udcfe": math.nan})
    assert json.loads(encode(sample))["host"] == "h\ufffd"
    assert json.loads(encode(sample))["metrics"] == {"a\ufffd": None}
