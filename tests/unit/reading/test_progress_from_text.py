"""A rank's progress from its output: bars, lines, epochs, and what must not count."""

from __future__ import annotations

import datetime as dt

import pytest

from ddptop_runner.base.clock import utc_now
from ddptop_runner.reading.progress.combine import total_steps
from ddptop_runner.reading.progress.from_text import HOLD_S, CommandHints, TextProgress
from ddptop_runner.reading.text.parser import LossParser, Reading

START = utc_now()


def after(seconds: float) -> dt.datetime:
    return START + dt.timedelta(seconds=seconds)


class Output:
    """A rank's output, written in pieces at given times."""

    def __init__(self) -> None:
        self.parser = LossParser()
        self.progress = TextProgress()
        self.at_s = 0.0

    def write(self, text: str, at_s: float | None = None) -> Output:
        self.at_s = self.at_s if at_s is None else at_s
        for reading in self.parser.feed(text.encode()):
            self.progress.add(reading, after(self.at_s))
        return self

    def now(self):
        return self.progress.progress(after(self.at_s))


def heard(*readings: Reading, every_s: float = 1.0) -> TextProgress:
    progress = TextProgress()
    for place, reading in enumerate(readings):
        progress.add(reading, after(place * every_s))
    return progress


def tqdm(step: int, total: int, what: str = "", rate: str = "4.00it/s", rest: str = "") -> str:
    share = 100 * step // total
    return f"\r{what}{share:3d}%|██  | {step}/{total} [00:10<01:20,  {rate}{rest}]"


def test_before_a_speed_was_measured_the_bar_is_believed() -> None:
    progress = heard(Reading(step=10, total=1000, eta_s=80.0))
    assert progress.progress(after(0)).eta_s == pytest.approx(80)
    assert progress.progress(after(30)).eta_s == pytest.approx(50)
    assert heard(Reading(step=10, total=1000)).progress(after(0)).eta_s is None


def test_speed_goes_on_from_epoch_to_epoch() -> None:
    readings = [
        Reading(step=step, total=10, counts="epoch", epoch=epoch, epochs=4)
        for epoch in (1, 2)
        for step in range(1, 11)
    ]
    progress = heard(*readings, every_s=2.0)
    done = progress.progress(after(38))
    assert done.fraction == pytest.approx(0.5)
    assert done.eta_s == pytest.approx(40)
    assert progress.steps_per_s(after(38)) == pytest.approx(0.5)
    assert total_steps(done) is None


@pytest.mark.parametrize(
    ("epoch", "epochs", "zero_seen", "fraction"),
    [
        (1, 4, False, 0.5 / 4),
        (4, 4, False, 3.5 / 4),
        (5, 4, False, None),  # it counts differently
        (0, 4, False, None),  # of four or of five?
        (3, 4, True, None),
        (4, 4, True, 4.5 / 5),  # of five
        (2, None, False, None),
    ],
)
def test_where_an_epoch_stands(epoch, epochs, zero_seen, fraction) -> None:
    progress = TextProgress()
    if zero_seen:
        progress.add(Reading(step=1, total=10, counts="epoch", epoch=0, epochs=epochs), after(0))
    bar = Reading(step=5, total=10, counts="epoch", epoch=epoch, epochs=epochs)
    progress.add(bar, after(1))
    done = progress.progress(after(1))
    assert done.fraction == (None if fraction is None else pytest.approx(fraction))
    assert (done.step, done.total) == (5, 10)


def test_more_done_than_the_total_gives_no_share() -> None:
    done = heard(Reading(step=30, total=20, loss=1.0)).progress(after(0))
    assert (done.fraction, done.eta_s) == (None, None)


@pytest.mark.parametrize(
    "bar",
    [
        tqdm(340, 1000, "Map: ", "512.22 examples/s"),
        tqdm(34, 100, "Downloading: ", "3.1MB/s"),
        tqdm(1, 2, "Loading checkpoint shards: ", "1.20s/it"),
        tqdm(34, 100, "Tokenizing: "),
        tqdm(9, 63, "Evaluating: "),
        tqdm(9, 63, "Validation DataLoader 0: "),
    ],
)
def test_other_bars_are_no_training(bar: str) -> None:
    assert Output().write(bar + "\r").now() is None


def test_the_bare_bar_of_an_evaluation_is_not_the_training() -> None:
    output = Output().write(tqdm(500, 1500) + "\r", 0).write(tqdm(510, 1500) + "\r", 10)
    for place, step in enumerate(range(63)):
        output.write(tqdm(step, 63) + "\r", at_s=11 + place / 10)
    output.write(tqdm(520, 1500) + "\r", 20)
    done = output.now()
    assert (done.step, done.total, done.counts) == (520, 1500, "run")
    assert done.eta_s == pytest.approx(980)
    output.write(tqdm(1500, 1500) + "\r", 900)
    for place, step in enumerate(range(64)):
        output.write(tqdm(step, 63) + "\r", at_s=901 + place / 10)
    assert (output.now().step, output.now().fraction) == (1500, 1.0)


def test_another_training_takes_over_in_the_end() -> None:
    abandoned = Output().write(tqdm(600, 1000) + "\r", 0)
    for step in range(15):
        abandoned.write(tqdm(step, 500) + "\r", at_s=HOLD_S + step)
    assert abandoned.now().total == 500
    longer = Output().write(tqdm(1000, 1000) + "\r", 0)
    for step in range(15):
        longer.write(tqdm(step, 5000) + "\r", at_s=step)
    assert longer.now().total == 5000
    with_loss = Output().write(tqdm(600, 1000) + "\r", 0)
    for step in range(15):
        with_loss.write(tqdm(step, 500, rest=f", loss=2.{step}") + "\r", at_s=step)
    assert with_loss.now().total == 500


def test_missing_output_means_nothing_is_known() -> None:
    assert TextProgress().progress(START) is None
    assert Output().write("iter 5: loss 3.1, time 3ms\n").now() is None
    only_epoch = Output().write("Epoch 3 loss 3.1\n").now()
    assert (only_epoch.epoch, only_epoch.fraction, only_epoch.total) == (3, None, None)


FOUR = CommandHints(epochs=4)


@pytest.mark.parametrize(
    ("hints", "from_start", "first"),
    [
        (FOUR, False, 94),  # watched from the middle
        (FOUR._replace(resumes=True), True, 0),
        (CommandHints(), True, 0),
    ],
)
def test_without_a_known_epoch_there_is_but_its_own_bar(hints, from_start, first) -> None:
    known = TextProgress(hints, from_start=from_start)
    for place, step in enumerate((first, 180, 188, 0, 94)):
        known.add(Reading(step=step, total=188, open=True), after(float(place)))
    done = known.progress(after(5))
    assert (done.fraction, done.eta_s, done.epoch_fraction) == (None, None, 0.5)


def test_going_back_to_a_checkpoint_is_no_new_epoch() -> None:
    output = Output()
    for place, step in enumerate((*range(100, 700, 20), *range(400, 500, 20))):
        output.write(f"step {step}/1000 loss 2.5\n", at_s=place * 2.0)
    done = output.now()
    assert (done.step, done.counts, done.fraction) == (480, "run", 0.48)
    assert done.eta_s == pytest.approx(520 / 10)


def test_a_second_process_in_the_same_output_does_not_count_backwards() -> None:
    output = Output()
    for place, step in enumerate(range(20, 400, 20)):
        output.write(f"step {step}/1000 loss 2.5\n", at_s=place * 2.0)
        output.write(f"step {max(20, step - 20)}/1000 loss 2.4\n", at_s=place * 2.0 + 1)
    done = output.now()
    assert (done.step, done.counts, done.fraction) == (380, "run", 0.38)
    assert output.progress.steps_per_s(after(38)) == pytest.approx(10)


def test_a_pause_between_epochs_is_in_the_eta_and_not_in_the_step_time() -> None:
    readings = []
    for step in range(1, 481):
        at_s = step * 0.5 + 30 * (step // 60)
        readings.append((Reading(step=step, total=960, loss=1.0), at_s))
    known = TextProgress()
    for reading, at_s in readings:
        known.add(reading, after(at_s))
    now = after(readings[-1][1])
    assert known.steps_per_s(now) == pytest.approx(2.0)
    assert known.progress(now).eta_s == pytest.approx(480, rel=0.15)
