"""One table defines which values persist over a message, a sample, and a restart."""

from __future__ import annotations

import os

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.job.ranks import RankRecord
from ddptop_runner.model.probe_message import ProbeMessage
from ddptop_runner.model.snapshot import RankSample
from ddptop_runner.reading.progress import rank_view

SAID = ProbeMessage(
    v=1,
    pid=os.getpid(),
    seq=1,
    t=boottime_s(),
    steps=7,
    last_step_t=boottime_s(),
    loss_state="nan",
    loss_step=7,
    loss_source="api",
    loss_bad_since=4,
    loss_last_good=2.5,
    loss_parts=2,
    loss_min=2.0,
    loss_max=2.5,
    loss_is="mean",
    step_time_s=0.5,
    data_wait_s=0.1,
    sync_s=0.2,
    compute_s=0.2,
    global_step=107,
    metrics={"lr": 0.1},
    metric_reports={"lr": 3},
    frameworks=["lightning"],
    replicas=2,
    batches=9,
    optimizers={"Adam 1": [4, 2.0], "Adam 2": [3, 0.5]},
)


def test_probe_values_persist_unless_listed_as_exceptions() -> None:
    others = {*rank_view.OF_MOMENT, *rank_view.OF_STEPS, *rank_view.OF_LOSS, *rank_view.RANGE}
    assert others <= {*ProbeMessage.__struct_fields__}
    assert {*rank_view.SHOWN} == {
        *("batches", "compute_s", "data_wait_s", "frameworks", "global_step", "metrics"),
        "metric_reports",
        *("replicas", "step_time_s", "sync_s", *rank_view.OF_LOSS, *rank_view.RANGE),
    }


def test_restarted_supervisor_keeps_what_a_rank_showed() -> None:
    record, next_one = RankRecord(0, 0, 0.0), RankRecord(0, 0, 0.0)
    record.receive(SAID)
    sample = record.sample(boottime_s(), probe=True)
    next_one.restore(sample, os.getpid())
    after = next_one.sample(boottime_s(), probe=True)
    kept = [*rank_view.RESTORED, "losses"]
    assert [getattr(after, name) for name in kept] == [getattr(sample, name) for name in kept]
    assert after.losses == {"Adam 1": 2.0, "Adam 2": 0.5}
    assert (after.loss_bad_since, after.loss_last_good, after.step) == (4, 2.5, 7)


def test_what_was_printed_is_not_restored_as_what_a_probe_said() -> None:
    sample = RankSample(
        rank=0,
        local_rank=0,
        host="h",
        step=9,
        step_source="log",
        global_step=9,
        loss=1.0,
        loss_state="ok",
        loss_source="log",
        data_wait_s=0.1,
    )
    said = rank_view.restored(sample)
    assert said.data_wait_s == 0.1
    assert (said.loss, said.loss_source, said.global_step) == (None, None, None)


def test_a_message_without_a_value_keeps_the_last_one() -> None:
    record = RankRecord(0, 0, 0.0)
    record.receive(SAID)
    record.receive(ProbeMessage(v=1, pid=SAID.pid, seq=2, t=SAID.t))
    said = record.reported
    assert (said.global_step, said.sync_s, said.frameworks) == (107, 0.2, ["lightning"])
    assert (said.loss_state, said.loss_bad_since, said.phase) == ("nan", 4, None)
    assert (said.loss_min, said.loss_max) == (2.0, 2.5)
