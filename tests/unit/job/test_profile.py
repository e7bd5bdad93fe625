"""What the steps of a trace were spent on."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from ddptop.job.profile import RankProfile, analyze, difference_line, differences, rank_lines

from ddptop_runner.base.errors import DamagedFileError

TRACES = Path(__file__).parent / "traces"


def recorded(rank: int) -> tuple[RankProfile, dict[str, float]]:
    """Two steps of DDP over gloo; rank 1 multiplies 20 matrices more."""
    return analyze(
        rank, "t.json.gz", gzip.decompress((TRACES / f"rank-{rank}.json.gz").read_bytes())
    )


def test_a_slow_rank_computes_while_the_other_communicates() -> None:
    (slow, slow_s), (fast, fast_s) = recorded(1), recorded(0)
    assert (slow.steps, fast.steps, fast.copies) == (2, 2, None)
    assert slow.compute > 0.25 > 0.05 > fast.compute
    assert fast.communication > 0.6 > slow.communication
    for one in (slow, fast):
        assert one.idle + one.compute + one.communication * (1 - (one.overlap or 0)) == (
            pytest.approx(1)
        )
        assert all(0 < op.self_s <= one.step_s for op in one.ops)
    found = differences(slow_s, fast_s)
    assert {"aten::mm", "gloo:all_reduce"} <= {one.name for one in found}
    text = difference_line([slow, fast], found)
    assert text.startswith("rank 1 against rank 0: ") and "aten::mm +10 ms" in text
    assert all(len(line) <= 80 for line in rank_lines(slow))


def event(cat: str, name: str, start: float, length: float, number: int = 0, tid: int = 1) -> dict:
    args = {"External id": number}
    return {
        "ph": "X", "cat": cat, "name": name, "ts": start, "dur": length, "tid": tid, "args": args,
    }  # fmt: skip


def test_on_a_device_kernels_count_and_are_named_by_their_ops() -> None:
    events = [
        event("user_annotation", "ProfilerStep#1", 0, 1000),
        event("cpu_op", "aten::mm", 0, 900, 5),
        event("kernel", "sm90_gemm", 100, 400, 5, tid=7),
        event("kernel", "ncclDevKernel_AllReduce", 300, 400, 6, tid=20),
        event("gpu_memcpy", "Memcpy HtoD", 700, 100, 8, tid=7),
        event("kernel", "before", -500, 100, 9, tid=7),
    ]
    found, own = analyze(0, "t", json.dumps({"traceEvents": events}).encode())
    shares = (found.idle, found.compute, found.communication, found.copies, found.overlap)
    assert shares == pytest.approx((0.3, 0.4, 0.4, 0.1, 0.5))
    assert own["aten::mm"] == pytest.approx(400e-6)
    assert own["ncclDevKernel_AllReduce"] == pytest.approx(400e-6) and "before" not in own


@pytest.mark.parametrize("data", [b"{", b'{"traceEvents": []}', b'{"traceEvents": 3}', b"\xff"])
def test_a_trace_without_steps_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedFileError):
        analyze(0, "t", data)
