"""When ddptop acts on a bad loss."""

from __future__ import annotations

import msgspec
import pytest

from ddptop_runner.judge.losses import LossWatch
from ddptop_runner.model.snapshot import RankSample

NAN, INF = float("nan"), float("inf")


def rank(number: int, loss: float | None, step: int | None, **changes) -> RankSample:
    state = None if loss is None else "ok"
    if loss is not None and loss != loss:
        state = "nan"
    elif loss in (INF, -INF):
        state = "inf"
    finite = loss if state == "ok" else None
    sample = RankSample(
        rank=number, local_rank=number, host="h", state="running", loss=finite, loss_step=step
    )
    return msgspec.structs.replace(sample, loss_state=state, loss_min=finite, **changes)


def looks(watch: LossWatch, losses: list[tuple[float | None, int | None]], **changes):
    """One rank's losses, one per second; returns what to act on at each update."""
    found, since, good = [], None, None
    for loss, step in losses:
        sample = rank(0, loss, step, **changes)
        is_bad = sample.loss_state in ("nan", "inf")
        since = None if not is_bad else step if since is None else since
        good = good if is_bad else loss
        sample = msgspec.structs.replace(sample, loss_bad_since=since, loss_last_good=good)
        found.append(watch.update([sample]))
    return found


CASES = {
    "healthy": ([(1.0, 1), (0.9, 2), (0.8, 3), (0.7, 4)], None),
    "one NaN": ([(1.0, 1), (NAN, 2), (0.8, 3), (0.7, 4)], None),
    "every second one": ([(1.0, 1), (INF, 2), (1.0, 3), (INF, 4), (1.0, 5), (INF, 6)], None),
    "for good": ([(1.0, 1), (NAN, 2), (NAN, 3), (NAN, 4)], 3),
    "from the first": ([(NAN, 1), (NAN, 2), (NAN, 3)], 2),
    "infinite, then NaN": ([(1.0, 1), (INF, 2), (NAN, 3), (NAN, 4)], 3),
    "one bad step that lasts": ([(1.0, 1), *[(NAN, 2)] * 30], None),
    "slow steps": ([(1.0, 1), *[(NAN, 2)] * 10, (NAN, 3)], 11),
    "no steps known": ([(1.0, None), (NAN, None), (NAN, None), (NAN, None)], 3),
    "no loss at all": ([(None, None)] * 9, None),
    "back again, then for good": (
        [(NAN, 1), (NAN, 2), (1.0, 3), (NAN, 4), (NAN, 5), (NAN, 6)],
        5,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_loss_is_acted_on_when_it_stays_bad(name):
    losses, acted_at = CASES[name]
    found = looks(LossWatch("stop"), losses)
    at = next((index for index, bad in enumerate(found) if bad is not None), None)
    assert at == acted_at


def test_one_line_of_output_without_a_step_ends_no_job():
    losses, _ = CASES["no steps known"]
    assert looks(LossWatch("stop"), losses, loss_source="log") == [None] * len(losses)
    losses, acted_at = CASES["for good"]
    assert looks(LossWatch("stop"), losses, loss_source="log")[acted_at] is not None


def test_a_finite_loss_between_two_looks_counts():
    losses = [(NAN, step) for step in range(1, 30)]
    watch = LossWatch("stop")
    for loss, step in losses:
        sample = msgspec.structs.replace(rank(0, loss, step), loss_min=0.7)
        assert watch.update([sample]) is None


def test_the_rank_that_went_bad_first_is_named():
    watch, bad = LossWatch("stop"), None
    for second in range(1, 9):
        later = rank(0, NAN, 10 * second, loss_bad_since=11)
        # detected one update later, although it was bad one step earlier
        first = rank(1, 1.0 if second < 2 else NAN, 10 * second, loss_bad_since=10)
        if second < 2:
            first = rank(1, 1.0, 9)
        bad = watch.update([later, first])
        if bad is not None:
            break
    assert bad is not None
    assert (bad.rank, bad.loss_bad_since, second) == (1, 10, 3)


def test_ranks_that_ended_and_earlier_attempts_do_not_count():
    watch = LossWatch("stop")
    assert looks(watch, [(NAN, step) for step in range(9)], state="failed") == [None] * 9
    looks(watch, [(NAN, 1), (NAN, 2)])
    watch.begin_attempt()
    assert looks(watch, [(NAN, 1), (NAN, 2), (1.0, 3)]) == [None] * 3
