"""Outputs in the style of many trainings, with the true share and the true time left at any moment.

Time is simulated. Each case is written by a generator of its own words; what a reader can know from
the text is named beside it. `replay` sends a case through the code that reads real logs.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.model.snapshot import Progress
from ddptop_runner.reading.progress import combine
from ddptop_runner.reading.progress.text_watch import TextWatch

Answer = Literal["run", "estimate", "epoch", "nothing"]
"""What is known: the share of the run; the same as an estimate; that of the epoch; nothing."""
START = dt.datetime(2026, 3, 14, 12, tzinfo=dt.timezone.utc)
POINTS = tuple(range(5, 105, 10))
"""Percent of the run at which is compared."""


class Tick(NamedTuple):
    """One step of a training."""

    at_s: float
    epoch: int
    """From 0."""
    step: int
    """In its epoch, from 1."""
    of: int
    """Steps of this epoch."""
    done: int
    """Steps of the whole run."""


class Run(NamedTuple):
    """A training, and where its output begins."""

    epochs: int = 4
    steps: int = 188
    """In each epoch."""
    step_s: float = 0.25
    last: int | None = None
    """Steps of the last epoch, where it is shorter."""
    validation_s: float = 0.0
    """After each epoch."""
    began_at: int = 0
    """Steps done by an earlier attempt."""

    def epoch_of(self, number: int) -> int:
        """Steps of one epoch."""
        return self.last if self.last is not None and number == self.epochs - 1 else self.steps

    @property
    def total(self) -> int:
        """Steps of the whole run."""
        return sum(map(self.epoch_of, range(self.epochs)))

    def ticks(self) -> Iterator[Tick]:
        """Its steps."""
        at_s, done = 0.0, 0
        for epoch in range(self.epochs):
            of = self.epoch_of(epoch)
            for step in range(1, of + 1):
                done += 1
                if done <= self.began_at:
                    continue
                at_s += self.step_s
                yield Tick(at_s, epoch, step, of, done)
            if done > self.began_at:
                at_s += self.validation_s

    @property
    def end_s(self) -> float:
        """When it ends."""
        return max(tick.at_s for tick in self.ticks()) + self.validation_s


Written = tuple[float, str]
Writer = Callable[[Run, Tick], Iterator[Written]]
"""(when, what) that is written at a step."""


class Case(NamedTuple):
    """One style of output."""

    name: str
    write: Writer
    answer: Answer = "run"
    run: Run = Run()
    command: tuple[str, ...] = ()
    known_from: float = 0.0
    """Share of the run from which on the text holds the answer."""
    looked_from: float = 0.0
    """Share of the run at which somebody begins to look."""
    off: float = 0.04
    """So far from the true share the shown one may be, where the text says no more."""


class Point(NamedTuple):
    """What was shown at one moment, beside the truth."""

    share: float
    epoch_share: float
    eta_s: float
    step_s: float
    shown: Progress | None
    shown_step_s: float | None


def output_of(case: Case) -> list[Written]:
    """Everything that the case writes, in order."""
    written = (one for tick in case.run.ticks() for one in case.write(case.run, tick))
    return sorted(written, key=lambda one: one[0])


def replay(case: Case, folder: Path) -> list[Point]:
    """What is shown of the case at each of the points. `folder` is empty."""
    (folder / "logs" / "attempt-0").mkdir(parents=True)
    (folder / "logs" / "attempt-1").mkdir()
    attempt = 1 if case.run.began_at else 0
    watch = TextWatch(RunFolder(folder), case.command)
    log = RunFolder(folder).log_file(attempt, 0)
    ticks, written = list(case.run.ticks()), output_of(case)
    total, end_s = case.run.total, case.run.end_s
    begin = max(case.looked_from, (case.run.began_at + 1) / total)
    moments = [
        next(tick.at_s for tick in ticks if tick.done >= total * percent / 100)
        for percent in POINTS
        if percent / 100 > begin
    ]
    began_s = next(tick.at_s for tick in ticks if tick.done >= total * begin)
    points, at_s, place, told = [], began_s if case.looked_from else -1.0, 0, 0
    with log.open("ab", buffering=0) as file:
        while moments:
            at_s = min(at_s + 1.0, moments[0])
            while place < len(written) and written[place][0] <= at_s + 1e-6:
                file.write(written[place][1].encode())
                place += 1
            now = START + dt.timedelta(seconds=at_s)
            watch.look(attempt, at_s, [0], now)
            while told + 1 < len(ticks) and ticks[told + 1].at_s <= at_s + 1e-6:
                told += 1
            if at_s >= moments[0]:
                moments.pop(0)
                known = watch.ranks.get(0)
                texts = [] if known is None else [known.progress(now)]
                shown = combine.of_job(texts)
                rate = None if known is None else known.steps_per_s(now)
                shown_step_s = 1 / rate if rate else None
                tick = ticks[told]
                truth = (tick.done / total, tick.step / tick.of, end_s - at_s, case.run.step_s)
                points.append(Point(*truth, shown, shown_step_s))
    watch.close()
    return points


# -- how the outputs look -----------------------------------------------------------------------


def _loss(tick: Tick) -> float:
    return 2.5 / (1 + tick.done / 400)


def lines(form: str, every: int = 20, first: int = 0) -> Writer:
    """A line every so many steps; `first` is what the script counts epochs from."""

    def write(run: Run, tick: Tick) -> Iterator[Written]:
        if tick.step % every == 0 or tick.step == tick.of:
            yield tick.at_s, form.format(**_words(run, tick, first)) + "\n"

    return write


def running_on(form: str, every: int = 20, first: int = 0) -> Writer:
    """The same for a counter that runs on over all epochs: by it is decided when a line is due."""

    def write(run: Run, tick: Tick) -> Iterator[Written]:
        if tick.done % every == 0:
            yield tick.at_s, form.format(**_words(run, tick, first)) + "\n"

    return write


def _words(run: Run, tick: Tick, first: int) -> dict[str, object]:
    return {
        "epoch": tick.epoch + first,
        "epochs": run.epochs,
        "last": run.epochs - 1 + first,
        "step": tick.step,
        "before": tick.step - 1,
        "of": tick.of,
        "done": tick.done,
        "total": run.total,
        "loss": _loss(tick),
        "ms": 1000 * run.step_s,
        "percent": 100.0 * tick.step / tick.of,
        "samples": 64 * tick.step,
        "of_samples": 64 * tick.of,
        "run_eta": _clock((run.total - tick.done) * run.step_s),
        "part": tick.epoch + tick.step / tick.of,
    }


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _short(seconds: float) -> str:
    return f"{round(seconds) // 60:02d}:{round(seconds) % 60:02d}"


def _drawn(step: int, of: int, step_s: float, what: str = "", rest: str = "") -> str:
    share, passed, left = step / of, _short(step * step_s), _short((of - step) * step_s)
    full = "█" * int(10 * share)
    return (
        f"\r{what}{share:4.0%}|{full:<10}| {step}/{of} [{passed}<{left},"
        f" {1 / step_s:5.2f}it/s{rest}]"
    )


def bars(
    what: str = "", loss: bool = True, of_run: bool = False, first: int = 0, validation: str = ""
) -> Writer:
    """A bar of tqdm for each epoch, or one of the run; `validation` draws another after each."""

    def write(run: Run, tick: Tick) -> Iterator[Written]:
        said = what.format(**_words(run, tick, first))
        rest = f", loss={_loss(tick):.3f}" if loss else ""
        if of_run:
            yield tick.at_s, _drawn(tick.done, run.total, run.step_s, said, rest)
            return
        if tick.step == 1:
            yield tick.at_s - run.step_s, _drawn(0, tick.of, run.step_s, said)
        yield tick.at_s, _drawn(tick.step, tick.of, run.step_s, said, rest)
        if tick.step == tick.of:
            yield tick.at_s, "\n"
            for part in range(41 if validation else 0):
                at_s = tick.at_s + run.validation_s * part / 41
                yield at_s, _drawn(part, 40, run.validation_s / 41, validation.strip("-"))
            if validation:
                yield tick.at_s + run.validation_s * 0.999, "\n"

    return write


def nested(run: Run, tick: Tick) -> Iterator[Written]:
    """A bar of the epochs, and below it one of each epoch's steps."""
    if tick.step == 1:
        outer = _drawn(tick.epoch, run.epochs, run.step_s * tick.of, "Epochs: ")
        yield tick.at_s - run.step_s, outer + "\n"
    yield from bars(loss=False)(run, tick)


def keras(run: Run, tick: Tick) -> Iterator[Written]:
    """`fit` of Keras 3, to a pipe."""
    if tick.step == 1:
        yield tick.at_s - run.step_s / 2, f"Epoch {tick.epoch + 1}/{run.epochs}\n"
    left = f"{round((tick.of - tick.step) * run.step_s)}s"
    text = (
        f"\r\x1b[1m{tick.step:4d}/{tick.of}\x1b[0m \x1b[32m━━━━━━━━━━\x1b[0m\x1b[37m━━━━━━━━━━"
        f"\x1b[0m \x1b[1m{left}\x1b[0m {1000 * run.step_s:.0f}ms/step - accuracy: 0.4240"
        f" - loss: {_loss(tick):.4f}"
    )
    yield tick.at_s, "\b" * 78 + text + ("\n" if tick.step == tick.of else "")


def keras_2(run: Run, tick: Tick) -> Iterator[Written]:
    """`fit` of Keras 2."""
    if tick.step == 1:
        yield tick.at_s - run.step_s / 2, f"Epoch {tick.epoch + 1}/{run.epochs}\n"
    left = f"{round((tick.of - tick.step) * run.step_s)}s"
    yield (
        tick.at_s,
        f"\r{tick.step:4d}/{tick.of} [====>.........] - ETA: {left} - loss: {_loss(tick):.4f}",
    )
    if tick.step == tick.of:
        yield tick.at_s, "\n"


def keras_lines(run: Run, tick: Tick) -> Iterator[Written]:
    """`fit` with one line for each epoch."""
    if tick.step == 1:
        yield tick.at_s - run.step_s / 2, f"Epoch {tick.epoch + 1}/{run.epochs}\n"
    if tick.step == tick.of:
        said = f"{tick.of}/{tick.of} - {tick.of * run.step_s:.0f}s - {1000 * run.step_s:.0f}ms/step"
        yield tick.at_s, f"{said} - accuracy: 0.17 - loss: {_loss(tick):.4f}\n"


def rich(run: Run, tick: Tick) -> Iterator[Written]:
    """Lightning's bar by rich, on a terminal: from 0, with the number of the last epoch."""
    left, passed = _clock((tick.of - tick.step) * run.step_s), _clock(tick.step * run.step_s)
    yield (
        tick.at_s,
        f"\r\x1b[2KEpoch {tick.epoch}/{run.epochs - 1} ━━━━━━━━━━╸━━━━━━━━━ {tick.step}/{tick.of} "
        f"{passed} • {left} {1 / run.step_s:.2f}it/s train_loss: {_loss(tick):.3f}",
    )


def ultralytics(run: Run, tick: Tick) -> Iterator[Written]:
    """A table whose rows are bars."""
    row = (
        f"{tick.epoch + 1:10d}/{run.epochs}      6.73G      1.235     0.5911       1.14   11  640: "
    )
    yield tick.at_s, _drawn(tick.step, tick.of, run.step_s, row)
    if tick.step == tick.of:
        yield tick.at_s, "\n"


def hf_trainer(run: Run, tick: Tick) -> Iterator[Written]:
    """One bar of the run, and a dictionary with a part of an epoch every 20 steps."""
    yield tick.at_s, _drawn(tick.done, run.total, run.step_s)
    if tick.done % 20 == 0:
        told = f"{{'loss': '{_loss(tick):.4f}', 'grad_norm': '0.77', 'epoch': '"
        yield tick.at_s, f"\r{told}{tick.epoch + tick.step / tick.of:.2f}'}}\n"


def tagged(form: str) -> Writer:
    """Two ranks in one output, each with its tag."""

    def write(run: Run, tick: Tick) -> Iterator[Written]:
        if tick.step % 10 == 0:
            said = form.format(**_words(run, tick, 1))
            yield tick.at_s, f"[1]<stdout>:{said}\n[0]<stdout>:{said}\n"

    return write


def headed(form: str, head: str = "Epoch {epoch}/{epochs}\n----------") -> Writer:
    """The epoch on a line of its own, and below it lines or bars that do not name it."""

    def write(run: Run, tick: Tick) -> Iterator[Written]:
        words = _words(run, tick, 1)
        if tick.step == 1:
            yield tick.at_s - run.step_s, head.format(**words) + "\n"
        if not form:
            yield from bars()(run, tick)
        elif tick.step % 10 == 0 or tick.step == tick.of:
            yield tick.at_s, form.format(**words) + "\n"

    return write


def seldom(run: Run, tick: Tick) -> Iterator[Written]:
    """A line every 47 steps whatever the epoch, of a counter that begins anew in each."""
    if tick.done % 47 == 0:
        yield tick.at_s, f"epoch {tick.epoch} step {tick.step}/{tick.of} loss {_loss(tick):.3f}\n"


def unknown_length(run: Run, tick: Tick) -> Iterator[Written]:
    """A bar without a total."""
    yield tick.at_s, f"\r{tick.done}it [00:10, 4.00it/s, loss={_loss(tick):.3f}]"


def tutorial(run: Run, tick: Tick) -> Iterator[Written]:
    """One line before each epoch, as in torch's tutorial."""
    if tick.step == 1:
        text = f"[GPU0] Epoch {tick.epoch} | Batchsize: 32 | Steps: 188\n"
        yield tick.at_s - run.step_s, text


MAKERS = {one.__name__: one for one in (lines, running_on, bars, tagged, headed)}
BARS = (nested, keras, keras_2, rich, ultralytics, hf_trainer, unknown_length)
WRITERS = {one.__name__: one for one in (*BARS, keras_lines, seldom, tutorial)}
LONG = Run(epochs=39, steps=131, step_s=0.25)  # 5,109 steps: not a round number of epochs
PAUSES = Run(epochs=8, steps=188, validation_s=10.0)
RUNS = {
    "long": LONG,
    "long, resumed": LONG._replace(began_at=2000),
    "short": Run(epochs=1, steps=600),
    "resumed": Run(began_at=300),
    "pauses": PAUSES,
    "uneven": Run(epochs=4, steps=188, last=61),
}


def _case(name: str, writer: str, **given: Any) -> Case:
    of_case = {key: given.pop(key) for key in Case._fields if key in given}
    if "run" in of_case:
        of_case["run"] = RUNS[of_case["run"]]
    of_case["command"] = tuple(of_case.get("command", ()))
    write = MAKERS[writer](**given) if writer in MAKERS else WRITERS[writer]
    return Case(name, write, **of_case)


def _cases(kind: str) -> tuple[Case, ...]:
    styles = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes())
    return tuple(_case(**style) for style in styles[kind])


CASES = _cases("case")
RESUMED_CASES = (*CASES, *_cases("resumed"))
"""Those of jobs that resume."""
