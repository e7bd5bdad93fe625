"""What a rank's output adds, and what it must leave as the probe reported it."""

from __future__ import annotations

import datetime as dt

import pytest

from ddptop_runner.base.clock import utc_now
from ddptop_runner.job.ranks import RankRecord
from ddptop_runner.model.snapshot import RankSample
from ddptop_runner.reading.progress.from_text import TextProgress
from ddptop_runner.reading.progress.rank_view import PATIENCE_S, fill
from ddptop_runner.reading.text.parser import Reading

NOW = utc_now()
LATER = NOW + dt.timedelta(seconds=PATIENCE_S + 1)


def sample(**changes) -> RankSample:
    return RankSample(rank=0, local_rank=0, host="h", pid=7, state="running", **changes)


def text(*losses: float, step: int | None = 5, first: int = 0, **more) -> TextProgress:
    progress = TextProgress()
    for place, loss in enumerate(losses):
        at = NOW + dt.timedelta(seconds=place)
        number = None if step is None else step + place
        progress.add(Reading(step=number, loss=loss, **more), at, first)
    return progress


def test_rank_without_a_probe_has_values_from_its_output() -> None:
    filled = fill(sample(), text(2.5, 2.0, epoch=1.5), None, NOW)
    assert (filled.loss, filled.loss_state, filled.loss_source) == (2.0, "ok", "log")
    assert (filled.loss_min, filled.loss_max, filled.loss_step) == (2.0, 2.5, 6)
    assert (filled.step, filled.global_step, filled.step_source) == (6, 6, "log")
    assert filled.steps_per_s == pytest.approx(1)
    assert filled.metrics == {"epoch": 1.5}
    assert filled.last_progress_at is not None


@pytest.mark.parametrize(("has_probe", "at_once"), [(True, False), (False, False), (None, True)])
def test_a_probe_is_waited_for(has_probe, at_once) -> None:
    told = text(2.5)
    waits = sample(has_probe=has_probe)
    now = NOW + dt.timedelta(seconds=1)
    assert (fill(waits, told, None, now).loss == 2.5) is at_once
    assert (fill(waits, told, None, now).step == 5) is at_once
    assert fill(waits, told, None, LATER).loss == 2.5
    assert fill(waits, told, None, now, is_over=True).loss == 2.5


def test_files_come_after_the_output() -> None:
    assert fill(sample(), text(2.5), text(1.5), NOW).loss == 2.5
    assert fill(sample(), None, text(1.5), NOW).loss == 1.5
    only_steps = TextProgress()
    only_steps.add(Reading(step=9, total=10), NOW)
    filled = fill(sample(), only_steps, text(1.5), NOW)
    assert (filled.step, filled.loss, filled.loss_source) == (9, 1.5, "log")


def test_a_rank_whose_output_steps_is_not_starting() -> None:
    waits = RankSample(rank=0, local_rank=0, host="h", pid=7, state="starting", has_probe=False)
    assert fill(waits, text(2.5), None, LATER).state == "running"
    ended = RankSample(rank=0, local_rank=0, host="h", pid=7, state="failed")
    assert fill(ended, text(2.5, 2.0), None, NOW).state == "failed"
    assert fill(ended, text(2.5, 2.0), None, NOW).steps_per_s is None


def test_a_supervisor_that_starts_again_takes_no_printed_step_for_the_probes() -> None:
    filled = fill(sample(has_probe=True), text(2.5, 2.0), None, LATER)
    record = RankRecord(0, 0, 0.0)
    record.restore(filled, 7)
    assert (record.steps, record.last_step_boottime_s) == (None, None)
    said = record.reported
    assert (said.global_step, said.loss, said.loss_state, said.step_time_s) == (None,) * 4
    record.restore(sample(step=4, step_source="probe", last_progress_at=NOW), 7)
    assert record.steps == 4
    assert record.last_step_boottime_s is not None
    old = sample(step=4, last_progress_at=NOW)  # written by a version that did not record it
    record.restore(old, 7)
    assert record.steps == 4


def test_what_is_printed_beside_a_probes_losses_is_taken() -> None:
    probed = sample(step=3, step_source="probe", loss=9.0, loss_state="ok", loss_source="probe")
    said = text(2.5, scalars=(("learning rate", 3e-4), ("gradient norm", float("nan"))))
    said.add(Reading(loss=1.5, kind="val"), NOW)
    filled = fill(probed, said, None, LATER)
    assert (filled.loss, filled.loss_source) == (9.0, "probe")
    assert filled.metrics == {"learning rate": 3e-4, "validation loss": 1.5}
    for _ in range(2):
        said.add(Reading(loss=1.25, kind="val"), NOW)
    again = fill(probed, said, None, LATER)
    assert again.metric_reports == {"learning rate": 1, "validation loss": 3}, "the same is news"
    record = RankRecord(0, 0, 0.0)
    record.restore(filled, 7)
    assert record.reported.metrics == {}, "else a new supervisor would show them for ever"
    reported = sample(loss=1.0, loss_source="api", metrics={"validation loss": 7.0})
    assert fill(reported, said, None, LATER).metrics["validation loss"] == 7.0
    record.restore(reported, 7)
    assert record.reported.metrics == {"validation loss": 7.0}
