"""After a restart it is told what came back, as far as the attempt before tells."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.judge.test_training import NOON, hashes, ids, watched

from ddptop_runner.job.resume_text import resumed
from ddptop_runner.judge.balance.job_watch import JobWatch
from ddptop_runner.model.snapshot import Alert, Checkpoint

SAVED = Checkpoint(path="/c", at=NOON, attempt=0, step=100, data_position=[1, 36])
Figures = Callable[[int], dict[str, object]]


def decayed(run_step: int) -> float:
    return 0.1 if run_step < 60 else 0.01


def restarted(after: Figures, before: Figures | None = None) -> tuple[str | None, list[Alert]]:
    """The line and the alerts after an attempt of 150 steps and 5 s of one from step 100."""

    def first(second: int, rank: int) -> dict[str, object]:
        step = 10 * second
        return {
            "run_step": step, "optimizer_steps": step, "learning_rate": decayed(step),
            "batch_hashes": hashes(11 + rank, 22 + rank, 33 + rank, 44 + rank),
            **(before(step) if before else {}),
        }  # fmt: skip

    def second_time(second: int, rank: int) -> dict[str, object]:
        step = 10 * second
        return {"run_step": 100 + step, **after(step)}

    watch = JobWatch()
    watched(first, 16, watch=watch, checkpoint=SAVED)
    alerts = watched(second_time, 5, watch=watch, attempt=1, checkpoint=SAVED)
    return None if watch.resume is None else resumed(watch.resume), alerts


def test_what_came_back_is_told_and_is_no_alert() -> None:
    line, alerts = restarted(
        lambda step: {
            "optimizer_steps": 100 + step, "learning_rate": decayed(100 + step),
            "batches_skipped": 36,
        }
    )  # fmt: skip
    assert line == (
        "resumed at step 100: data continues at batch 36; the optimizer's state came back; "
        "the learning rate is 0.01, as before"
    )
    assert alerts == []


def test_lost_state_is_a_warning() -> None:
    line, alerts = restarted(
        lambda step: {
            "optimizer_steps": step, "learning_rate": decayed(step),
            "batch_hashes": hashes(11, 22, 33, 44),
        }
    )  # fmt: skip
    assert line == (
        "resumed at step 100: data starts at batch 0, the checkpoint is at batch 36; the "
        "optimizer's state did not come back; the learning rate is 0.1, it was 0.01 at this step"
    )
    assert ids(alerts) == ["resume-state", "data-replayed"]
    assert alerts[0].evidence == {"step": 100, "learning_rate": 0.1, "learning_rate_before": 0.01}


@pytest.mark.parametrize(
    ("after", "before"),
    [
        (lambda step: {"batches_skipped": 0}, None),
        (lambda step: {"optimizer_steps": step}, lambda step: {"optimizer_steps": None}),
        (lambda step: {"learning_rate": 0.5}, None),  # someone chose another
        # warm restarts: at this step it was high before, too
        (
            lambda step: {"learning_rate": 0.1},
            lambda step: {"learning_rate": 0.1 - step % 50 / 1e3},
        ),
        (lambda step: {"learning_rate": 0.1, "optimizer_steps": None, "run_step": None}, None),
    ],
)
def test_what_is_unknown_is_silent(after: Figures, before: Figures | None) -> None:
    line, alerts = restarted(after, before)
    assert alerts == []
    assert line is None or "as before" in line


def test_an_attempt_that_begins_at_step_0_resumes_nothing() -> None:
    assert restarted(lambda step: {"run_step": step, "optimizer_steps": step}) == (None, [])
