"""When a bad loss is acted on, and when a rank's loss has left the others'."""

from __future__ import annotations

import os
import random

import msgspec
import pytest

from ddptop_runner.model import RankSample
from ddptop_runner.saves.loss_watch import APART_FOR_S, ENOUGH_LOOKS, LossWatch

LIVES = int(os.environ.get("DDPTOP_LOSS_LIVES", "6"))
"""Of each shape of healthy losses; 60 of each make 300."""

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
    """One rank's losses, one a second: what is to be acted on at each look."""
    found, since, good = [], None, None
    for second, (loss, step) in enumerate(losses):
        sample = rank(0, loss, step, **changes)
        is_bad = sample.loss_state in ("nan", "inf")
        since = None if not is_bad else step if since is None else since
        good = good if is_bad else loss
        sample = msgspec.structs.replace(sample, loss_bad_since=since, loss_last_good=good)
        found.append(watch.look([sample], float(second))[0])
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
    for second, (loss, step) in enumerate(losses):
        sample = msgspec.structs.replace(rank(0, loss, step), loss_min=0.7)
        assert watch.look([sample], float(second))[0] is None


def test_by_default_nothing_is_acted_on():
    assert looks(LossWatch("alert"), [(NAN, step) for step in range(9)]) == [None] * 9


def test_a_bad_loss_says_where_it_came_from():
    found = looks(LossWatch("restart"), [(2.5, 7), (NAN, 8), (NAN, 9), (NAN, 10)])[-1]
    assert (found.rank, found.step, found.what) == (0, 8, "NaN")
    assert found.in_words() == (
        "The loss of rank 0 became NaN at step 8; the last good one was 2.5."
    )
    found = looks(LossWatch("stop"), [(INF, None)] * 3)[-1]
    assert found.in_words() == "The loss of rank 0 became infinite."


def test_losses_of_a_log_are_acted_on_without_the_steps_of_a_probe():
    watch = LossWatch("stop")
    watch.look([rank(0, 2.5, 1)], 0.0)
    found = [watch.look([rank(0, NAN, step)], float(step))[0] for step in (2, 3, 4)]
    assert found[-1] is not None
    assert found[-1].in_words() == "The loss of rank 0 became NaN; the last good one was 2.5."


def test_a_finite_loss_that_no_look_saw_begins_anew():
    watch = LossWatch("stop")
    for step in range(2, 40):  # bad at each look, each time since another step
        assert watch.look([rank(0, NAN, step, loss_bad_since=step)], float(step))[0] is None


def test_the_rank_that_went_bad_first_is_named():
    watch, bad = LossWatch("stop"), None
    for second in range(1, 9):
        later = rank(0, NAN, 10 * second, loss_bad_since=11)
        # seen bad one look later, although it was so one step earlier
        first = rank(1, 1.0 if second < 2 else NAN, 10 * second, loss_bad_since=10)
        if second < 2:
            first = rank(1, 1.0, 9)
        bad, _ = watch.look([later, first], float(second))
        if bad is not None:
            break
    assert bad is not None
    assert (bad.rank, bad.step, second) == (1, 10, 3)


def test_ranks_that_ended_and_earlier_attempts_do_not_count():
    watch = LossWatch("stop")
    assert looks(watch, [(NAN, step) for step in range(9)], state="failed") == [None] * 9
    looks(watch, [(NAN, 1), (NAN, 2)])
    watch.begin_attempt()
    assert looks(watch, [(NAN, 1), (NAN, 2), (1.0, 3)]) == [None] * 3


# --- one rank leaves the others -----------------------------------------------------------------


def found_in(losses_at, ranks: int, seconds: int, steps_per_s: int = 5) -> list[tuple[int, object]]:
    """(second, finding) of each look that found something."""
    watch, found = LossWatch("alert"), []
    for second in range(seconds):
        step = second * steps_per_s
        samples = [rank(number, losses_at(number, second), step) for number in range(ranks)]
        found += [(second, finding) for finding in watch.look(samples, float(second))[1]]
    return found


def test_a_rank_that_leaves_the_others_is_named_with_both_losses():
    def losses(number: int, second: int) -> float:
        return 2.0 + (max(0, second - 60) * 0.1 if number == 2 else 0.0)

    found = found_in(losses, 4, 120)
    second, finding = found[0]
    assert 70 < second < 100
    assert (finding.id, finding.severity, finding.ranks) == ("loss-diverged", "warning", (2,))
    assert finding.message.startswith("the loss of rank 2 has left the others': ")
    assert finding.message.endswith(", against 2")
    assert len(found) == 120 - second


def test_a_rank_far_below_the_others_is_told_as_well():
    found = found_in(lambda number, second: 0.2 if number == 1 and second > 40 else 2.0, 4, 120)
    assert found[-1][1].ranks == (1,)


def test_a_rank_that_comes_back_is_told_no_more():
    found = found_in(
        lambda number, second: 9.0 if number == 0 and 40 < second < 80 else 2.0, 4, 200
    )
    assert found
    assert found[-1][0] < 140


def test_a_distance_must_last_for_seconds_as_well():
    """Fast steps: many of them soon, but nothing is told before the seconds have passed."""
    found = found_in(lambda number, second: 9.0 if number == 0 else 2.0, 4, 60, steps_per_s=500)
    assert found[0][0] == (ENOUGH_LOOKS - 1) + APART_FOR_S


def test_slow_steps_must_be_many_too():
    found = found_in(lambda number, second: 9.0 if number == 0 else 2.0, 4, 60, steps_per_s=0)
    assert found == []
    watch = LossWatch("alert")
    for second in range(190):  # a step in ten seconds
        step = second // 10
        samples = [rank(number, 9.0 if number == 0 else 2.0, step) for number in range(4)]
        assert watch.look(samples, float(second))[1] == []


def test_one_rank_has_none_to_be_compared_with():
    assert found_in(lambda number, second: 2.0 + second, 1, 120) == []


def test_of_two_ranks_none_is_blamed():
    found = found_in(lambda number, second: 3.5 if number and second > 30 else 2.0, 2, 60)
    message = found[0][1].message
    assert message.startswith("the losses of the ranks lie apart: rank 0 2, rank 1 3.5")
    assert found[0][1].ranks == (0, 1)


def test_of_two_ranks_the_one_that_explodes_is_named():
    found = found_in(lambda number, second: 2.0 + number * max(0, second - 30) * 0.5, 2, 90)
    assert found[-1][1].ranks == (1,)
    assert found[-1][1].message.startswith("the loss of rank 1 has left the others': ")


def test_of_two_ranks_one_that_explodes_wildly_is_named():
    """Its noise has grown with it: at 1e7 it varies by more than the distance to the other."""

    def losses(number: int, second: int) -> float:
        calm = random.Random(f"{number} {second}").lognormvariate(0.0, 1.5)
        return calm * (1e6 * second if number == 1 and second > 30 else 1.0)

    found = found_in(losses, 2, 90)
    assert found and found[0][0] < 60
    assert found[-1][1].ranks == (1,)


def test_two_against_two_is_nobodys_fault():
    found = found_in(lambda number, second: 9.0 if number > 1 and second > 30 else 2.0, 4, 90)
    assert {finding.ranks for _, finding in found} <= {(0, 1, 2, 3)}


def healthy_life(shape: str, seed: int):
    """Losses of one training: by rank and second, each rank on batches of its own."""
    random_ = random.Random(f"{shape}{seed}")
    noise = random_.uniform(0.02, 0.5)
    offsets = [random_.uniform(-0.1, 0.1) for _ in range(4)]

    def losses(number: int, second: int) -> float:
        base = 2.0
        if shape == "falling":
            base = 0.3 + 10.0 * 0.97**second
        if shape == "offsets":
            base *= 1 + offsets[number]
        if shape == "lognormal":
            return base * random_.lognormvariate(0.0, noise)
        if shape == "spikes" and random_.random() < 0.02:
            return base * random_.uniform(2, 20)
        return base * (1 + random_.gauss(0.0, noise))

    return losses


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("shape", ["normal", "lognormal", "falling", "spikes", "offsets"])
def test_ten_minutes_of_healthy_noise_are_no_alarm(shape, ranks):
    lives = range(LIVES)
    assert [seed for seed in lives if found_in(healthy_life(shape, seed), ranks, 600)] == []
