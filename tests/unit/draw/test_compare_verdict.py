"""A comparison as text. Pure functions."""

from __future__ import annotations

import datetime as dt
import random

import pytest
from ddptop.charts.curves import ChartOptions, draw_curves
from ddptop.charts.plots import compared_curves, without_steps
from ddptop.commands.compare import report
from ddptop.draw.compare import companion_row, how_much_lower, rows, verdict
from ddptop.job.compare import LOSS, LossCurve, Run, Standing, compare
from ddptop.job.series import Points
from ddptop.style import plain
from msgspec.structs import replace
from tests.unit.job.test_compare_differences import NOW, view


def curve(times: list[float], steps: list[int | None], losses: list[float | None]) -> LossCurve:
    bad = [t for t, loss in zip(times, losses, strict=True) if loss is None]
    return LossCurve(Points(times, losses, losses, losses, bad, steps, [0] * len(times)))


def run(job: str, *losses: float | None, step_s: float = 1.0, steps: bool = True) -> Run:
    places = range(len(losses))
    found = curve([i * step_s for i in places], [i if steps else None for i in places], [*losses])
    return Run(view(job), found, attempts=((0, 0.0), (1, 2.0)))


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([1.0, 0.88], "12% lower"),
        ([1.0, 0.992], "0.8% lower"),
        ([1.0, 0.999], ""),
        ([3.1, 1.0], "3.1x lower"),
        ([42.0, 1.0], "42x lower"),
        ([1.0, -0.5], "150% lower"),
    ],
)
def test_how_much_lower_a_loss_is(losses: list[float], said: str) -> None:
    by = (losses[0] - losses[1]) / abs(losses[0])
    assert how_much_lower(Standing(LOSS, 1, 1.0, tuple(losses), 1, by)) == said
    assert how_much_lower(Standing(LOSS, 1, 1.0, tuple(losses), None, None)) == ""


def noisy(job: str, level: float, seed: int, **validation: list[float]) -> Run:
    chance = random.Random(seed)
    losses = [level * chance.uniform(0.8, 1.2) for _ in range(400)]
    scalars = {
        name: curve(
            [99.0 + 100 * i for i in range(len(of))],
            [99 + 100 * i for i in range(len(of))],
            [*of],
        )
        for name, of in validation.items()
    }
    return replace(run(job, *losses), scalars=scalars)


def test_a_difference_within_the_noise_of_batches_is_none() -> None:
    for seed in range(20):
        said = verdict(compare([noisy("a", 1.0, seed), noisy("b", 0.99, seed + 100)]))
        assert "lower" not in said, said
        clear = verdict(compare([noisy("a", 1.0, seed), noisy("b", 0.7, seed + 100)]))
        assert clear.startswith("B's training loss is"), clear


def test_the_validation_loss_decides_if_all_have_one() -> None:
    one, other = (
        noisy("a", 1.0, 1, val_loss=[3, 2, 1.5, 1.2]),
        noisy("b", 0.7, 2, val_loss=[3, 2, 2]),
    )
    found = compare([one, other])
    assert verdict(found) == "A's validation loss is 25% lower at step 299"
    assert report(found).better == "a" and report(found).compared_by == "val_loss"
    assert [job.validation_loss_at_common for job in report(found).jobs] == [1.5, 2]
    third = noisy("c", 1.0, 3, val_loss=[3, 2.5, 1.6])
    assert "than C's, the next, at step 299" in verdict(compare([one, other, third]))
    assert verdict(compare([one, noisy("b", 0.7, 2)])).startswith("B's training loss is")


def test_an_epoch_is_a_whole_number() -> None:
    counted = run("a", 3, 2)
    counted = replace(counted, scalars={"epoch": curve([1.0], [1], [6.0])})
    (row,) = [row for row in rows(compare([counted]), NOW) if row.label == "epoch"]
    assert row.values[0][0] == "6"
    curves = compared_curves([counted], "epoch", by_step=True)
    note = plain(draw_curves(curves, ChartOptions(), 99, 9).notes[0])
    assert "6.0" not in note and "6" in note


def test_who_learns_better_and_who_is_faster() -> None:
    slow, fast = run("a", 3, 2, 1), run("b", 3, 2.5, 2, step_s=0.5)
    said = verdict(compare([slow, fast]))
    assert said == "A's training loss is 2.0x lower at step 2; B is 2.0 times as fast per step"
    assert (
        verdict(compare([slow, run("b", 3, 2, 1)])) == "the training losses are the same at step 2"
    )
    assert verdict(compare([slow])) == "pick a job to compare with"
    assert verdict(compare([slow, run("b", 3, None)])) == "loss is no longer finite for B"
    assert verdict(compare([slow, run("b")])) == "no loss to compare for A and B"
    untold = verdict(compare([slow, run("b", 3, 1, 0.5, steps=False)]))
    assert untold == "B's training loss is 2.0x lower after 2s"


def test_figures_that_are_not_known_are_na() -> None:
    told = {row.label: [text for text, _ in row.values] for row in rows(compare([run("a")]), NOW)}
    for label in ("loss", "best loss", "last loss", "time per step", "steps", "restarts"):
        assert told[label] == ["n/a"], label


def test_rows_mark_what_was_given_and_not_what_was_measured() -> None:
    found = rows(compare([run("a", 3, 2), run("b", 3, 1)]), NOW)
    assert not any(row.differs for row in found if row.label.endswith(" loss"))
    other = Run(view("c", "--lr", "2"), run("c", 3, 1).curve)
    (given,) = (row for row in rows(compare([run("a", 3, 2), other]), NOW) if row.differs)
    assert (given.label, given.values[0], given.values[1][0]) == ("--lr", ("not set", "dim"), "2")


def test_curves_by_time_and_by_step() -> None:
    runs = [run("a", 3, None, 2), run("b", 3, 2, 1)]
    time, step = (compared_curves(runs, by_step=by_step) for by_step in (False, True))
    assert [curve.name for curve in step.curves] == ["A a", "B b"]
    assert list(step.curves[0].points.not_finite) == [1.0]
    assert time.marks == ((2.0, "A↻1"), (2.0, "B↻1"))
    # the other's restart does not interrupt it
    alone = Run(runs[1].view, runs[1].curve)
    curves = compared_curves([runs[0], alone], by_step=False).curves
    assert [curve.cuts for curve in curves] == [[2.0], []]
    assert without_steps(runs) is None
    reason = without_steps([runs[0], run("c", 1, steps=False)])
    assert reason is not None and reason.endswith("unknown for B c)")


def test_compared_job_is_described_by_its_differing_options() -> None:
    mine = view("a", "--lr", "1", "--amp")
    later = NOW + dt.timedelta(minutes=1)
    other = view("b", "--lr", "2", "--amp")
    assert companion_row(other, "B", mine)["what"] == ("--lr 2", "")
    assert companion_row(view("b", "--lr", "1"), "", mine)["what"][0] == "no --amp"
    assert companion_row(view("b", "--lr", "1", "--amp"), "", mine)["what"][0] == "none"
    assert companion_row(view("b", "2"), "", view("a", "1"))["what"][0] == "2"
    foreign = view("b", "--x", target="fit.py", created_at=later)
    assert companion_row(foreign, "", mine)["what"] == ("fit.py --x", "dim")
