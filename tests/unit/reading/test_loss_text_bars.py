"""A progress bar's position and the time left."""

from __future__ import annotations

import pytest
from tests.support.tables import table

from ddptop_runner.reading.text.parser import LossParser, Reading

HEAVY = "━━━━━━╸━━━"


def bar(line: str) -> Reading:
    (reading,) = LossParser().feed(f"{line}\n".encode())
    return reading


@pytest.mark.parametrize(("line", "step", "total", "counts"), table(__file__, "counts"))
def test_what_a_bar_or_line_counts(line: str, step: int, total: int, counts: str) -> None:
    reading = bar(line)
    assert (reading.step, reading.total, reading.counts) == (step, total, counts)


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


@pytest.mark.parametrize(
    "line", ["Step 200/5000", "Step 2/3: linking", "[2/900] cc y.c", "iteration 3/9 | time"]
)
def test_count_without_a_loss_is_no_training(line: str) -> None:
    assert LossParser().feed(f"{line}\n".encode()) == []


def test_of_two_ranks_each_has_its_bar() -> None:
    parser = LossParser()
    text = b"".join(
        b"[default%d]: 5%%|#| %d/120 [00:24<01:10,  4.88it/s, loss=2.%d]\n" % (rank, step, rank)
        for step in (1, 2)
        for rank in (0, 1)
    )
    found = [(r.local_rank, r.step, r.loss) for r in parser.feed(text * 2)]
    assert found[:4] == [(0, 1, 2.0), (1, 1, 2.1), (0, 2, None), (1, 2, None)]


@pytest.mark.parametrize(
    ("line", "eta_s"),
    [
        (" 5%|█ | 6/120 [00:24<01:10,  4.88it/s, loss=2.5]", 70.0),
        (" 5%|█ | 6/120 [00:24<1:02:03,  1.60s/it, loss=2.5]", 3723.0),
        (" 5%|█ | 6/120 [00:24<?, ?it/s, loss=2.5]", None),
        (f"Epoch 1/1 {HEAVY} 49/50 0:00:07 • 0:00:01 6.40it/s loss: 2.", 1.0),
        (f"Epoch 0/1 {HEAVY} 0/50 0:00:00 • -:--:-- 0.00it/s loss: 2.", None),
        ("Step 100/5000 loss: 2.4", None),
    ],
)
def test_how_long_a_bar_will_take(line: str, eta_s: float | None) -> None:
    assert bar(line).eta_s == eta_s
