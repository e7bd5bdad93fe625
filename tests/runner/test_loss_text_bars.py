"""A progress bar's position, its speed, and the time left."""

from __future__ import annotations

import pytest

from ddptop_runner.reading.text.parser import LossParser, Reading

HEAVY = "━━━━━━╸━━━"


def bar(line: str) -> Reading:
    (reading,) = LossParser().feed(f"{line}\n".encode())
    return reading


@pytest.mark.parametrize(
    ("line", "step", "total", "counts", "eta_s", "rate_per_s"),
    [
        (" 5%|█ | 6/120 [00:24<01:10,  4.88it/s, loss=2.5]", 6, 120, "run", 70.0, 4.88),
        (" 5%|█ | 6/120 [00:24<1:02:03,  1.60s/it, loss=2.5]", 6, 120, "run", 3723.0, 0.625),
        (" 5%|█ | 6/120 [00:24<?, ?it/s, loss=2.5]", 6, 120, "run", None, None),
        (" 5%|█ | 6/120 [00:24<01:10,  1.50kit/s, loss=2.5]", 6, 120, "run", 70.0, 1500.0),
        (" 5%|█ | 6/120 [00:24<01:10,  2.00batch/s, loss=2.5]", 6, 120, "run", 70.0, 2.0),
        (" 5%|█ | 6/120 [00:24<01:10,  2.00ex/s, loss=2.5]", 6, 120, "run", 70.0, 2.0),
        ("100%|██| 120/120 [00:24<00:00,  4.88it/s, loss=2.5]", 120, 120, "run", 0.0, 4.88),
        ("Epoch 1:  5%|#5 | 6/120 [00:24<01:10,  4.88it/s]", 6, 120, "epoch", 70.0, 4.88),
        (f"Epoch 1/1 {HEAVY} 49/50 0:00:07 • 0:00:01 6.40it/s loss: 2.", 49, 50, "epoch", 1.0, 6.4),
        (f"Epoch 0/1 {HEAVY} 0/50 0:00:00 • -:--:-- 0.00it/s loss: 2.", 0, 50, "epoch", None, None),
        (f" 1/64 {HEAVY} 1:09 1s/step - loss: 2.4", 1, 64, "epoch", 69.0, 1.0),
        (f"60/64 {HEAVY} 3s 125ms/step - loss: 2.4", 60, 64, "epoch", 3.0, 8.0),
        (f"64/64 {HEAVY} 8s 500us/step - loss: 2.4", 64, 64, "epoch", 0.0, 2000.0),
        ("64/64 - 8s - 125ms/step - loss: 2.4", 64, 64, "epoch", 0.0, 8.0),
        (" 10/64 [===>.......] - ETA: 1:05 - loss: 2.4", 10, 64, "epoch", 65.0, None),
        (" 10/64 [===>.......] - ETA: 5s - loss: 2.4", 10, 64, "epoch", 5.0, None),
        (f"62% {HEAVY} 5/8 3.1it/s 1.6s<0.9s loss: 2.4", 5, 8, "run", 0.9, 3.1),
        (f"62% {HEAVY} 8/8 3.1it/s 2.6s loss: 2.4", 8, 8, "run", 0.0, 3.1),
        ("Step 100/5000 loss: 2.4", 100, 5000, "run", None, None),
        ("step 100/5000 loss: 2.4 4.0it/s eta: 0:20:25", 100, 5000, "run", 1225.0, 4.0),
        ("Epoch 3, step 100/5000 loss: 2.4", 100, 5000, "epoch", None, None),
        ("iter 55/600 loss: 2.4", 55, 600, "run", None, None),
        ("iteration 10/ 500 loss: 2.4", 10, 500, "run", None, None),
        ("[11/25] loss: 2.4", 11, 25, "run", None, None),
        ("Epoch: [3][11/25] Loss 2.4", 11, 25, "epoch", None, None),
        ("Epoch: [0]  [ 10/938]  eta: 0:05:12  loss: 2.3 (2.3)", 10, 938, "epoch", 312.0, None),
    ],
)  # fmt: skip
def test_how_far_and_how_fast(
    line: str, step: int, total: int, counts: str, eta_s: float | None, rate_per_s: float | None
) -> None:
    reading = bar(line)
    assert (reading.step, reading.total, reading.counts) == (step, total, counts)
    assert (reading.eta_s, reading.rate_per_s) == (eta_s, rate_per_s)
    assert reading.run_eta_s is None


@pytest.mark.parametrize(
    ("line", "run_eta_s", "rate_per_s"),
    [
        ("Epoch(train) [1][ 4/9] eta: 1 day, 0:00:51 time: 0.5 data_time: 0 loss: 2", 86451.0, 2.0),
        ("eta: 0:01:00  iter: 20  total_loss: 2.3  time: 0.25  data_time: 0.01", 60.0, 4.0),
        ("epoch 3 loss: 2.2 time: 0.0  data_time: 0.0 eta: 2 days, 1:00:00", 176400.0, None),
    ],
)  # fmt: skip
def test_what_is_left_of_the_run(line: str, run_eta_s: float, rate_per_s: float | None) -> None:
    reading = bar(line)
    assert (reading.eta_s, reading.run_eta_s, reading.rate_per_s) == (None, run_eta_s, rate_per_s)


@pytest.mark.parametrize(
    ("line", "epoch", "epochs"),
    [
        ("Epoch 1/2 loss 0.5", 1.0, 2),
        ("Epoch [3/10], Step [100/600], Loss: 0.5", 3.0, 10),
        ("epoch 3 of 10 loss 0.5", 3.0, 10),
        ("epoch 3 loss 0.5", 3.0, None),
        ("Epoch: [0][11/25] Loss 0.5", 0.0, None),
    ],
)
def test_how_many_epochs(line: str, epoch: float, epochs: int | None) -> None:
    assert (bar(line).epoch, bar(line).epochs) == (epoch, epochs)


def test_count_without_a_loss_is_reported_once_it_advances() -> None:
    parser = LossParser()
    assert parser.feed(b"Step 100/5000\n") == []
    assert parser.feed(b"Step 200/5000, eta: 0:20:25\n") == [
        Reading(step=200, total=5000, eta_s=1225.0)
    ]
    assert parser.feed(b"Step 200/5000\n") == []  # nothing new
    for line in (b"Step 1/3: compiling\nStep 2/3: linking\n", b"[1/900] cc x.c\n[2/900] cc y.c\n"):
        assert LossParser().feed(line) == []
    assert [r.step for r in LossParser().feed(b"[rank1]: step 1/90\n[rank2]: step 2/90\n")] == []


def test_of_two_ranks_each_has_its_bar() -> None:
    parser = LossParser()
    text = b"".join(
        b"[default%d]: 5%%|#| %d/120 [00:24<01:10,  4.88it/s, loss=2.%d]\n" % (rank, step, rank)
        for step in (1, 2)
        for rank in (0, 1)
    )
    found = [(r.local_rank, r.step, r.loss) for r in parser.feed(text * 2)]
    assert found[:4] == [(0, 1, 2.0), (1, 1, 2.1), (0, 2, None), (1, 2, None)]


def test_a_validation_loss_that_stays_in_a_bar_is_one_evaluation() -> None:
    parser = LossParser()
    states = [(1, 2.5, 3.0), (2, 2.4, 3.0), (3, 2.3, 3.0), (4, 2.2, 2.75)]
    text = "".join(
        f"Epoch 1: 11%|# | {step}/9 [00:01<00:01, 4.88it/s, loss={loss}, val_loss={val}]\r"
        for step, loss, val in states
    )
    found = [one.loss for one in parser.feed(text.encode()) if one.kind == "val"]
    assert found == [3.0, 2.75]
