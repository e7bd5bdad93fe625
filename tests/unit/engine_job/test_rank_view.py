"""One table defines which values persist over a message, a sample, and a restart."""

from __future__ import annotations

from ddptop_runner.model.probe_message import ProbeMessage
from ddptop_runner.model.snapshot import RankSample
from ddptop_runner.reading.progress import rank_view


def test_probe_values_persist_unless_listed_as_exceptions() -> None:
    others = {*rank_view.OF_MOMENT, *rank_view.OF_STEPS, *rank_view.OF_LOSS, *rank_view.RANGE}
    assert others <= {*ProbeMessage.__struct_fields__}
    assert {*rank_view.SHOWN} == {
        *("batches", "data_wait_s", "frameworks", "global_step", "metrics"),
        *("metric_reports", "batch_hashes", "repeated_epoch", "data_position", "loader_workers"),
        *("epoch_batches", "batch_size", "unpinned_bytes"),
        *("batches_skipped", "learning_rate", "optimizer_steps", "python_blocks"),
        "device_allocated_bytes",
        *("weight_groups", "weight_hashes"),
        *("ddp_world_size", "cpu_wait_total_s", "until_backward_total_s", "resources"),
        *("ddp", "not_learning"),
        *("replicas", "step_time_s", *rank_view.OF_STEPS, *rank_view.OF_LOSS, *rank_view.RANGE),
    }


def test_an_epoch_is_no_longer_repeated_once_the_probe_says_so() -> None:
    known = {"repeated_epoch": 3, "epoch_batches": 9, "loader_workers": 2}
    before = ProbeMessage(v=1, pid=1, seq=1, t=0.0, **known)
    after = rank_view.merged(before, ProbeMessage(v=1, pid=1, seq=2, t=1.0))
    assert [getattr(after, name) for name in known] == [None, None, 2]


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
