"""Whom to profile, what is refused, and how long it waits."""

from __future__ import annotations

import os
import threading

import msgspec
import pytest
from tests.support.builders import put_job

from ddptop_runner.base.errors import ControlError, DdptopError, UsageError, WaitTimeoutError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.host import procs
from ddptop_runner.job.registry import read_job
from ddptop_runner.jobs import profile
from ddptop_runner.model.snapshot import NodeStatus, RankSample

pytestmark = pytest.mark.usefixtures("ddptop_home")


def rank(number: int, sync_s: float | None = 0.0, **more: object) -> RankSample:
    known = {"step": 5, "step_time_s": 0.1, "has_probe": True, "sync_s": sync_s, **more}
    return RankSample(rank=number, local_rank=number, host="here", **known)  # type: ignore[arg-type]


def job(*ranks: RankSample, state: str = "running", **more: object) -> RunFolder:
    alive = procs.identify(os.getpid())
    values = {"state": state, "guardian": alive, "supervisor": alive, "ranks": list(ranks), **more}
    return put_job("bert", values, nproc=len(ranks))


def test_the_slowest_rank_and_the_median_one_are_compared() -> None:
    assert profile.choose([rank(0, 0.05), rank(1, 0.06), rank(2, 0.0)]) == [2, 0]
    assert profile.choose([rank(0, 0.05), rank(1, 0.0)]) == [1, 0]
    assert profile.choose([rank(4, None)]) == [4]


@pytest.mark.parametrize(
    ("ranks", "more", "wanted", "why"),
    [
        ([rank(0)], {"state": "finished"}, (), "is not running"),
        ([rank(0)], {"nodes": [NodeStatus(host="a", state="running")]}, (), "on other hosts"),
        ([rank(0)], {}, (3,), "rank 3 of bert does not exist"),
        ([rank(0), rank(1, has_probe=None)], {}, (1,), "has no probe"),
        ([rank(0), rank(1, exit_code=0)], {}, (1,), "has ended"),
        ([rank(0, step=None)], {}, (), "has taken no step yet"),
    ],
)
def test_what_cannot_be_profiled_is_refused_at_once(ranks, more, wanted, why) -> None:
    view = read_job(job(*ranks, **more))
    with pytest.raises(UsageError, match=why):
        profile.take(view, wanted)
    assert not view.folder.profiles_dir.exists()


def answer(folder: RunFolder, kind: str, text: str) -> None:
    """Answer the order of rank 0 as its probe does."""
    path = folder.profiles_dir / "order-rank-0.json"
    while not path.exists():
        pass
    order = msgspec.json.decode(path.read_bytes())
    assert (order["steps"], order["from_step"]) == (4, 0)
    (folder.profiles_dir / f"{order['id']}-rank-0.{kind}").write_text(text)


@pytest.mark.parametrize(
    ("kind", "raised", "why"),
    [
        ("json", None, ""),
        ("error", ControlError, "rank 0 of bert was not profiled: no counters"),
        (None, WaitTimeoutError, "did not finish 4 steps within 4 s"),
    ],
)
def test_each_order_ends(monkeypatch, kind, raised: type[DdptopError] | None, why) -> None:
    monkeypatch.setattr(profile, "LIMIT_S", 0.0)
    folder = job(rank(0), rank(1))
    if kind is not None:
        threading.Thread(target=answer, args=(folder, kind, "no counters"), daemon=True).start()
    if raised is None:
        traces = profile.take(read_job(folder), (0,), 4)
        assert traces[0].read_text() == "no counters"
    else:
        with pytest.raises(raised, match=why):
            profile.take(read_job(folder), (0,), 4)
    assert not list(folder.profiles_dir.glob("order-*")), "a later attempt would take it"
