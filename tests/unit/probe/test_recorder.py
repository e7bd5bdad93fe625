"""Steps and losses: the decisions, without torch."""

import gc

import pytest

from ddptop_runner.probe.losses import BY_FRAMEWORK
from ddptop_runner.probe.recorder import (
    LEADER_PATIENCE_STEPS,
    Recorder,
)


class Optimizer:
    pass


class LBFGS(Optimizer):
    pass


class Custom(LBFGS):
    pass


def train(record: Recorder, optimizer: object, *losses: object) -> None:
    before = record.backwards
    for loss in losses:
        record.passed(loss)
        assert record.has_passed
    assert record.backwards == before + len(losses)
    record.is_look_due = False
    record.after_step(optimizer, (), {})
    assert record.backwards == before + len(losses) and not record.has_passed
    record.settle()


def loss_of(record: Recorder) -> object:
    return record.latest_loss[0]


def test_a_step_is_an_optimizer_call_with_a_backward_pass_since_its_last():
    record, optimizer = Recorder(), Optimizer()
    record.stepped(optimizer)  # as when states are broadcast before training
    assert record.progress is None
    for expected in (1, 2, 3):
        train(record, optimizer, 1.5)
        record.stepped(optimizer)  # a wrapper that calls its own hook as well
        assert record.steps == expected
    assert record.latest_loss == (1.5, "ok", 3, "probe", 1, None)
    assert (record.loss_sum, record.loss_n) == (4.5, 3)


def test_one_optimizer_per_parameter_makes_one_iteration():
    record, optimizers = Recorder(), [Optimizer() for _ in range(5)]
    for _ in range(3):
        train(record, optimizers[0], 2.0)
        for other in optimizers[1:]:
            record.stepped(other)
    assert record.steps == 3 and record.loss_n == 3


def test_two_optimizers_are_told_apart_and_the_first_ones_loss_is_shown():
    record, critic, generator = Recorder(), Optimizer(), Optimizer()
    for _ in range(4):
        train(record, critic, 1.0, 3.0)
        train(record, generator, 50.0)
    assert record.steps == 4
    assert loss_of(record) == 2.0 and record.loss_n == 4


@pytest.mark.parametrize("order", ["ccccg", "gcccc", "cg", "cgg"])
def test_the_iteration_follows_the_optimizer_that_steps_most(order):
    record, optimizers = Recorder(), {"c": Optimizer(), "g": Optimizer()}
    for name in order * 5:
        train(record, optimizers[name], 1.0)
    assert record.steps == 5 * max(order.count("c"), order.count("g"))


def test_second_phase_with_another_optimizer_continues_counting():
    record, first, second = Recorder(), Optimizer(), Optimizer()
    for _ in range(200):
        train(record, first, 1.0)
    for _ in range(200):
        train(record, second, 2.0)
    assert 399 <= record.steps <= 400
    assert loss_of(record) == 2.0  # the first has not stepped for long
    assert record.loss_n >= 400 - LEADER_PATIENCE_STEPS - 1


def test_an_optimizer_that_is_gone_gives_way_at_once():
    record, first = Recorder(), Optimizer()
    train(record, first, 1.0)
    del first
    gc.collect()
    train(record, Optimizer(), 7.0)
    assert loss_of(record) == 7.0


@pytest.mark.parametrize(
    ("divisor", "loss", "kind"),
    [(None, 3.0, "mean"), (3, 9.0, "sum"), (2, 3.0, "mean"), (BY_FRAMEWORK, 9.0, "sum")],
)
def test_accumulated_losses_are_a_sum_where_they_were_divided_by_their_number(divisor, loss, kind):
    record, optimizer = Recorder(), Optimizer()
    for step in (1, 2):
        for number, part in enumerate((1.0, 2.0, 6.0)):
            assert record.awaits_divisor == (number == 1)
            if record.awaits_divisor:
                record.divisor = divisor
            record.passed(part)
        record.stepped(optimizer)
        record.settle()
        assert record.latest_loss == (loss, "ok", step, "probe", 3, kind)
    train(record, optimizer, 5.0)
    assert record.latest_loss == (5.0, "ok", 3, "probe", 1, None)
    train(record, optimizer, 5.0, 7.0)  # what the losses before were divided by says nothing
    assert record.latest_loss == (6.0, "ok", 4, "probe", 2, "mean")


def test_optimizers_of_successive_phases_are_not_reported_separately():
    record = Recorder()
    for optimizer in [Optimizer() for _ in range(3)]:
        for _ in range(5):
            train(record, optimizer, 1.0)
    assert record.alternating() == {}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_optimizers_that_share_a_backward_pass_are_not_reported_separately(order):
    record, optimizers = Recorder(), [Optimizer() for _ in range(3)]
    for step in range(4):
        record.passed(2.0)
        # which of them is the first may change
        for index in range(3) if step % 2 else order:
            record.stepped(optimizers[index])
    assert record.alternating() == {} and record.steps == 4


@pytest.mark.parametrize("kind", [LBFGS, Custom])
def test_lbfgs_shows_the_first_loss_of_a_step(kind):
    record = Recorder()
    train(record, kind(), 5.0, 4.0, 3.0)
    assert loss_of(record) == 5.0


def test_unseen_steps_are_looked_for_after_the_usual_number_of_backward_passes():
    record, optimizer = Recorder(), Optimizer()
    for parts in (1, 4, 2):
        train(record, optimizer, *[1.0] * parts)
        record.stepped(optimizer)  # a second hook of the same step changes nothing
        assert record.usual_backwards == parts
    record.passed(1.0)
    record.found_steps([optimizer], 1, 0)
    assert record.usual_backwards == 1


def test_a_step_without_a_readable_loss_still_counts():
    record = Recorder()
    train(record, Optimizer(), None)
    assert record.steps == 1 and record.latest_loss is None


@pytest.mark.parametrize(
    ("value", "state"), [(float("nan"), "nan"), (float("inf"), "inf"), (float("-inf"), "inf")]
)
def test_what_is_not_finite_is_a_state_and_no_number(value, state):
    record, optimizer = Recorder(), Optimizer()
    train(record, optimizer, 1.0)
    train(record, optimizer, value)
    assert record.latest_loss == (None, state, 2, "probe", 1, None)
    assert (record.loss_sum, record.loss_n, record.loss_range) == (1.0, 1, (1.0, 1.0))


def test_a_skipped_step_keeps_its_loss_from_the_next():
    record, optimizer = Recorder(), Optimizer()
    record.passed(float("inf"))
    record.step_skipped()
    record.settle()
    assert record.latest_loss == (None, "inf", 0, "probe", 1, None) and record.progress is None
    train(record, optimizer, 2.0)
    record.step_skipped()
    assert record.latest_loss == (2.0, "ok", 1, "probe", 1, None)


def test_losses_on_a_device_are_offered_and_not_read():
    record, optimizer, offered = Recorder(), Optimizer(), []
    record.offer_device_loss = lambda *what: offered.append(what)
    train(record, optimizer, "a tensor")
    train(record, optimizer, "one", "two")
    assert [what[:3] for what in offered] == [(["a tensor"], False, 1), (["one", "two"], False, 2)]
    train(record, Custom(), "generator's")
    (*what, seen, leads) = offered[-1]
    assert what == [["generator's"], False, 2] and seen.name == "Custom 2" and not leads


def test_the_range_is_taken_once_and_can_be_given_back():
    record, optimizer = Recorder(), Optimizer()
    for loss in (3.0, 1.0, 2.0):
        train(record, optimizer, loss)
    taken = record.take_loss_range()
    assert taken == (1.0, 3.0) and record.take_loss_range() is None
    train(record, optimizer, 2.5)
    record.give_back_loss_range(taken)
    assert record.take_loss_range() == (1.0, 3.0)


def test_reports_count_as_progress_if_their_step_is_new():
    record = Recorder()
    for step in (10, 10, 11, 12, 12):
        record.reported(step, 100, has_loss=True)
    assert (record.steps, record.global_step, record.total_steps) == (3, 12, 100)
    record.reported(None, None, has_loss=False)
    assert record.steps == 3 and record.total_steps == 100


def test_backward_passes_without_a_loss_do_not_crowd_out_the_losses_of_a_step():
    record, optimizer, inner = Recorder(), Optimizer(), [None] * 32
    for step in (1, 2, 3):
        train(record, optimizer, *(part for loss in range(1, 41) for part in (float(loss), *inner)))
        assert record.latest_loss == (20.5, "ok", step, "probe", 40, "mean")
        assert record.usual_backwards == 40 * 33
    assert record.loss_n == 3
    for loss in (1.0, None, 2.0, None):
        record.passed(loss)
    record.found_steps([optimizer], 1, 1)
    record.settle()
    assert record.latest_loss == (2.0, "ok", 4, "probe", 1, None) and not record.has_passed
    assert record.backwards == 3 * 40 * 33 + 4


def test_reports_do_not_count_next_to_an_optimizer():
    record, optimizer = Recorder(), Optimizer()
    record.reported(0, None, has_loss=False)
    for step in (1, 2, 3):
        train(record, optimizer, 1.0)
        record.reported(step, None, has_loss=True)
    assert record.steps == 3


def test_the_scripts_own_loss_wins():
    record, optimizer = Recorder(), Optimizer()
    train(record, optimizer, 1.0)
    record.reported(None, None, has_loss=True)
    record.set_loss(9.0, record.steps, "api")
    train(record, optimizer, 1.0, 2.0)
    assert record.latest_loss[:4] == (9.0, "ok", 1, "api")
