"""The progress of a rank, from its output and the arguments of its command. Pure.

Output often counts within one epoch, and only the command shows the number of epochs. Progress that
depends on it is an estimate, since a script may use the option for something else.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ddptop_runner.model.probe_message import MAX_METRICS, MAX_NAME_LENGTH
from ddptop_runner.model.run_step import Printed
from ddptop_runner.model.snapshot import Progress
from ddptop_runner.model.words import LossState, ProgressUnit
from ddptop_runner.reading.progress.counter import STRANGERS, Counter, Pace
from ddptop_runner.reading.text.parser import Reading

# -- the command ------------------------------------------------------------------------

_EPOCHS = frozenset(
    {"epochs", "num_epochs", "n_epochs", "nepochs", "num_epoch", "nb_epochs", "niter"}
    | {"max_epochs", "total_epochs"}
)
_RUN_BAR_EPOCHS = frozenset({"num_train_epochs"})
"""Used by Hugging Face's scripts, whose bars count the whole run."""
_STEPS = frozenset(
    {"max_steps", "max_iters", "max_train_steps", "train_iters", "total_steps", "max_update"}
    | {"num_train_steps"}
)
_RESUMES = re.compile(r"resume|start_epoch|from_checkpoint|ckpt_path|init_from")
_OFF = frozenset({"", "0", "none", "false", "no", "null", "scratch"})
MAX_WORDS = 4096
VALIDATION_LOSS = "validation loss"
MOST = 10**9


class CommandHints(NamedTuple):
    """What a command's options say; None without the option, or if two contradict."""

    epochs: int | None = None
    run_bars: bool = False
    """Whether a bar that does not say what it counts is that of the run."""
    steps: int | None = None
    """In the whole run."""
    resumes: bool = False
    """Whether training may resume in the middle."""


def of_command(words: Sequence[str]) -> CommandHints:
    """Read options such as `--epochs 4`, `--epochs=4`, and `trainer.max_epochs=4`."""
    epochs: set[int] = set()
    steps: set[int] = set()
    run_bars = resumes = False
    known = list(words[:MAX_WORDS])
    for word, following in zip(known, [*known[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if not word.startswith("-") and not equals:
            continue
        if not equals:
            value = "" if following.startswith("--") else following
        name = name.lstrip("-+").rpartition(".")[2].replace("-", "_").lower()
        if name in _EPOCHS or name in _RUN_BAR_EPOCHS:
            epochs.add(_count(value))
            run_bars |= name in _RUN_BAR_EPOCHS
        elif name in _STEPS:
            steps.add(_count(value))
        elif _RESUMES.search(name) and (value.lower() not in _OFF or not equals):
            resumes = True
    return CommandHints(_only(epochs), run_bars, _only(steps), resumes)


def _count(text: str) -> int:
    """A positive integer; 0 for anything else."""
    whole = text.removesuffix(".0")
    known = whole.isascii() and whole.isdigit() and len(whole) <= 10
    return min(int(whole), MOST) if known else 0


def _only(found: set[int]) -> int | None:
    return found.pop() or None if len(found) == 1 else None


# -- the output -------------------------------------------------------------------------

HOLD_S = 600.0
"""How long a bar remains the counter while a smaller one without a loss moves: evaluations draw
such bars, even after the last step, without saying what they are."""
MAX_EPOCH = 1e12
SURE_PART = 1.5
"""A bar with at least this many epochs, by the epochs passed, is that of the run."""


class _Place(NamedTuple):
    """The current epoch."""

    before: int
    of: int
    estimated: bool


_NO_HINTS = CommandHints()


class TextProgress:
    """The progress of one rank, from its readings."""

    def __init__(
        self,
        hints: CommandHints = _NO_HINTS,
        from_start: bool = False,
        first_epoch: int | None = None,
    ) -> None:
        """See the parameters.

        Args:
            hints: from the command.
            from_start: whether the output is read from its beginning.
            first_epoch: whether epochs are numbered from 0 or 1, if an earlier attempt showed it.
        """
        self.loss: float | None = None
        self.loss_state: LossState | None = None
        self.loss_step: int | None = None
        self.loss_last_good: float | None = None
        self.loss_since: dt.datetime | None = None
        """When the first loss was read; None for one that was printed before the first look."""
        self.step_since: dt.datetime | None = None
        self.resumed_at: int | None = None
        """The step at which the run resumes, according to a line before the first step."""
        self.epoch: float | None = None
        self.epochs: int | None = None
        self.scalars: dict[str, float] = {}
        """By name, values other than losses and steps, and the validation loss."""
        self.reports: dict[str, int] = {}
        """By name, how often each of them was read."""
        self.last_at: dt.datetime | None = None
        """When something new was read."""
        self.loss_min: float | None = None
        self.loss_max: float | None = None
        self._hints = hints
        self._from_start = from_start
        self._steps = Counter(hints.resumes)
        self._samples = Counter(hints.resumes)
        """Samples of the epoch, in output that counts them."""
        self._outer: tuple[int, int] | None = None
        """(done, total) of a bar that counts epochs."""
        self._outer_moved = False
        """Whether it has moved while the bar below it has not started over."""
        self._epochs_done: float | None = None
        """For output with only one line at the end of each epoch."""
        self._epoch_pace = Pace()
        self._first_epoch: float | None = None
        self._from_zero = first_epoch == 0
        """Whether epochs are numbered from 0."""
        self._from_one = first_epoch == 1
        """Whether they are known to be numbered from 1."""
        self._names_last = False
        """Whether `epochs` is the number of the last, as in Lightning's bars."""
        self._counter: tuple[int, int | None] | None = None
        """The source of `step`, as (output, total): a log may contain both a bar and lines."""
        self._strangers = 0

    @property
    def step(self) -> int | None:
        """As printed, so possibly within the epoch."""
        return self._steps.step

    @property
    def run_step(self) -> int | None:
        """The step of the run, as printed or by its epochs; None if unknown."""
        printed = self.printed
        if printed is None or printed.of_run or printed.by_epoch is None:
            return printed.step if printed is not None and printed.of_run else None
        if self._from_start and self._first_epoch == self.first_epoch:
            return self._steps.position  # epochs may differ in length
        return printed.by_epoch

    @property
    def position(self) -> int | None:
        """The step, counted on across epochs; None if earlier epochs were not read."""
        run_step = self.run_step
        if run_step is None and self._from_start and self._steps.step is not None:
            return self._steps.position
        return run_step

    @property
    def every(self) -> int | None:
        """The distance between the last two steps that were printed."""
        return self._steps.every

    @property
    def printed(self) -> Printed | None:
        """What its printed steps count; None before the first."""
        known = self._steps
        if known.step is None or known.first is None:
            return None
        every, by_epoch, first = known.every or max(1, known.first), None, self.first_epoch
        if known.unit == "epoch" and known.epoch is not None and known.total and first is not None:
            by_epoch = (known.epoch - first) * known.total + known.step
        of_run = self.counts_run
        return Printed(known.step, known.first, every, known.total, of_run, by_epoch)

    @property
    def first_epoch(self) -> int | None:
        """The number of the first epoch; None if unknown."""
        return 0 if self._from_zero else 1 if self._from_one else None

    @property
    def counts_run(self) -> bool:
        """Whether `step` counts the whole run, as far as the log shows."""
        return self._steps.unit == "run" and not self._counts_epoch(self._steps)

    def begin_look(self) -> None:
        """Restart the range of the loss, which covers the time since the previous look."""
        self.loss_min = self.loss_max = None

    def add(self, reading: Reading, at: dt.datetime | None, source: int = 0) -> None:
        """Fold in one reading.

        Args:
            reading: of this rank.
            at: when it was written; None if unknown, because that was before the first look.
            source: the output that it was read from.
        """
        if reading.epoch is not None and not 0 <= reading.epoch < MAX_EPOCH:  # from a broken table
            reading = msgspec.structs.replace(reading, epoch=None)
        if at is not None:
            self.last_at = at
        if reading.epoch is not None:
            self._take_epoch(reading, at)
        for name, value in reading.scalars:
            self._take_scalar(name, value)
        if reading.kind == "resume":
            if self._steps.step is None:
                self.resumed_at = reading.step
            return
        if reading.kind == "val":
            if reading.loss is not None:
                self._take_scalar(VALIDATION_LOSS, reading.loss)
            return
        at_s = None if at is None else at.timestamp()
        if reading.counts == "epochs":
            if reading.step is not None and reading.total:
                self._outer_moved = self._outer not in (None, (reading.step, reading.total))
                self._outer = (reading.step, reading.total)
                if at_s is not None:
                    self._epoch_pace.mark(at_s, reading.step)
        elif reading.counts == "samples":
            self._samples.take(reading, at_s, self._from_start)
        elif reading.step is not None and self._is_counter(reading, source, at_s):
            self.step_since = self.step_since or at
            self._steps.take(reading, at_s, self._from_start)
            self._outer_moved = False
            if (place := self._place(self._steps)) is not None:
                sure = self.first_epoch is not None
                self._steps.judge(place.before, place.before + (not sure), place.of)
        if reading.loss is not None:
            self._take_loss(reading.loss, reading, at)

    def _take_scalar(self, name: str, value: float) -> None:
        is_known = name in self.scalars
        if is_known or (len(self.scalars) < MAX_METRICS and len(name) <= MAX_NAME_LENGTH):
            self.scalars[name] = value
            self.reports[name] = self.reports.get(name, 0) + 1

    def written_last(self, at: dt.datetime) -> None:
        """Set the time of the last reading, which was added without one."""
        self.last_at = at
        self._steps.update_estimates(at.timestamp())
        self._samples.update_estimates(at.timestamp())

    def _take_epoch(self, reading: Reading, at: dt.datetime | None) -> None:
        self.epoch = reading.epoch
        self.epochs = reading.epochs or self.epochs
        self._first_epoch = reading.epoch if self._first_epoch is None else self._first_epoch
        self._from_zero = self._from_zero or reading.epoch == 0 or reading.from_zero
        if self._from_start and self._first_epoch == 1 and not self._hints.resumes:
            self._from_one = True
        self._names_last = reading.from_zero
        self._confirm(reading)
        ended = reading.step is None and reading.loss is not None and reading.kind == "train"
        self._epochs_done = reading.epoch if ended else None
        if ended and at is not None and reading.epoch is not None:
            self._epoch_pace.mark(at.timestamp(), reading.epoch)

    def _confirm(self, reading: Reading) -> None:
        """A fractional epoch beside a bar shows whether the bar spans several, and is the run's."""
        steps, part = self._steps, reading.epoch
        if reading.step is not None or not part or part >= 1 or not steps.total or not steps.step:
            return
        if steps.unit == "run" and steps.total * part / steps.step >= SURE_PART:
            steps.presumed, steps.confirmed = False, True

    def _take_loss(self, loss: float, reading: Reading, at: dt.datetime | None) -> None:
        self.loss_since = self.loss_since or at
        self.loss_step = reading.step if reading.counts != "samples" else None
        if math.isfinite(loss):
            self.loss, self.loss_state = loss, "ok"
            self.loss_last_good = loss
            self.loss_min = loss if self.loss_min is None else min(self.loss_min, loss)
            self.loss_max = loss if self.loss_max is None else max(self.loss_max, loss)
        else:
            self.loss, self.loss_state = None, "nan" if math.isnan(loss) else "inf"

    # -- which counter -------------------------------------------------------------------------

    def _is_counter(self, reading: Reading, source: int, at_s: float | None) -> bool:
        """Whether the step is read from this: a counter of the run is preferred."""
        counter = (source, reading.total)
        if counter == self._counter or self._is_shorter(reading, source):
            self._counter, self._strangers = counter, 0
            return True
        self._strangers += 1
        known_of_run = self._steps.unit == "run"
        counts_run = reading.counts == "run" and not reading.open
        better = self._counter is None or (counts_run and not known_of_run)
        if not better and (self._strangers < STRANGERS or self._holds(reading, at_s)):
            return False
        self._counter, self._strangers = counter, 0
        self._steps = Counter(self._hints.resumes)
        return True

    def _is_shorter(self, reading: Reading, source: int) -> bool:
        """Whether it is the same counter in an epoch of another length, such as the last."""
        known = self._steps
        if self._counter is None or source != self._counter[0] or reading.epoch is None:
            return False
        named = known.unit == reading.counts == "epoch" and not reading.open
        return named and known.epoch is not None and int(reading.epoch) > known.epoch

    def _holds(self, reading: Reading, at_s: float | None) -> bool:
        """Whether the present counter moved recently, and the other is a smaller bar."""
        known, other = self._steps, reading.total
        if not known.total or known.step is None or reading.loss is not None or other is None:
            return False
        names_epoch = known.epoch is not None and reading.epoch is None and reading.open
        if other >= known.total and not names_epoch:
            return False
        return at_s is None or known.at_s is None or at_s - known.at_s < HOLD_S

    # -- results ----------------------------------------------------------------------

    def steps_per_s(self, now: dt.datetime) -> float | None:
        """From the log; None before two different steps, and once the log falls silent."""
        return None if self._steps.unnamed else self._steps.pace.per_s(now.timestamp())

    def restart_pace(self) -> None:
        """Forget the pace so far: batches that a resumed script skips are no training."""
        for pace in (self._steps.pace, self._samples.pace, self._epoch_pace):
            pace.clear()

    def compare(self, run_step: int, slack: int) -> None:
        """Learn by the step of the run what the counter counts, and how epochs are numbered.

        Only after the first epoch, in which a counter of its steps shows the same.

        Args:
            run_step: from another source.
            slack: tolerance, in steps.
        """
        known = self._steps
        if known.step is None or not known.total:
            return
        apart, ahead = (known.every or 1) + slack, run_step - known.step
        passed = round(ahead / known.total)
        if known.total <= 2 * apart:
            return
        if known.epoch is None:
            if known.rounds is None and -slack <= ahead - passed * known.total <= apart:
                known.rounds = passed
        elif known.unit == "run" or known.epoch < 1:
            return
        elif -slack <= ahead <= apart and known.epoch > (0 if self._from_zero else 1):
            known.count_run()
        elif passed and -slack <= ahead - passed * known.total <= apart:
            self._from_zero = self._from_zero or known.epoch == passed
            self._from_one = self._from_one or known.epoch == passed + 1

    def progress(self, now: dt.datetime) -> Progress | None:
        """Progress of the run; None without a total or an epoch."""
        now_s = now.timestamp()
        if self._steps.step is not None and (self._steps.total or self._hints.steps):
            return self._of_count(self._steps, now_s)
        if self._samples.step is not None and self._samples.total:
            return self._of_count(self._samples, now_s)
        return self._of_epochs(now_s)

    def _of_epochs(self, now_s: float) -> Progress | None:
        """For output without a total number of steps."""
        fraction = eta_s = None
        epoch, done, epochs = self.epoch, self._epochs_done, self.epochs
        if self._outer is not None:
            epoch = done = float(self._outer[0])
            epochs = self._outer[1]
        elif self._from_zero:
            done = None
        if not epochs:
            return None if epoch is None else Progress(epoch=epoch, source="log")
        if done is not None and 0 < done <= epochs:
            fraction = done / epochs
            eta_s = self._epoch_pace.left_s(epochs - done, now_s)
        return Progress(epoch=epoch, epochs=epochs, fraction=fraction, eta_s=eta_s, source="log")

    def _counts_epoch(self, count: Counter) -> bool:
        """Whether a counter that does not say what it counts is assumed to count an epoch."""
        if self._outer is not None:
            return count.unit == "run" and not count.confirmed
        hints = self._hints
        if hints.epochs is None or hints.epochs < 2 or hints.run_bars:
            return False
        return count.presumed and count.total != hints.steps

    def _of_count(self, count: Counter, now_s: float) -> Progress:
        last_read_s = None if self.last_at is None else self.last_at.timestamp()
        unit: ProgressUnit = count.unit or "epoch"
        if unit == "run" and self._counts_epoch(count):
            unit = "epoch"
        if unit == "run":
            return self._of_run(count, now_s, last_read_s)
        share, place = 0.0 if self._outer_moved else count.share(), self._place(count)
        fraction = eta_s = epoch_eta_s = None
        if count.unit is None:
            share = None
        if share is not None:
            epoch_eta_s = count.left_s(0, now_s, last_read_s)
            if place is not None:
                fraction = min(1.0, (place.before + share) / place.of)
                further = place.of - place.before - (0 if self._outer_moved else 1)
                eta_s = count.left_s(further, now_s, last_read_s)
            elif (rest := self._rest(count, now_s)) is not None:
                eta_s, fraction = rest
        epoch, epochs = self.epoch, self.epochs
        if count.epoch is None and place is not None:
            epoch, epochs = float(place.before + 1), place.of
        return Progress(
            step=count.step,
            total=count.total,
            counts=unit,
            epoch=epoch,
            epochs=epochs,
            fraction=fraction,
            eta_s=eta_s,
            estimated=fraction is not None and (place is None or place.estimated),
            epoch_fraction=share,
            epoch_eta_s=epoch_eta_s,
            source="log",
        )

    def _rest(self, count: Counter, now_s: float) -> tuple[float, float] | None:
        """(seconds left, share done) from the output's own estimate of the rest, as in mmengine."""
        rate = count.pace.per_s(now_s) or count.rate_per_s
        knows = count.run_estimate is not None and count.epoch and not self._from_zero
        if not knows or not rate or not count.total or count.step is None:
            return None
        assert count.run_estimate is not None and count.epoch is not None
        at_s, estimated_s = count.run_estimate
        done = (count.epoch - 1) * count.total + count.step
        left_s = max(0.0, estimated_s - max(0.0, now_s - at_s))
        return left_s, done / max(1.0, done + estimated_s * rate)

    def _of_run(self, count: Counter, now_s: float, last_read_s: float | None) -> Progress:
        total, fraction, eta_s = count.total or self._hints.steps, count.share(), None
        if not count.total and total and count.step is not None and count.step <= total:
            fraction = count.step / total
            eta_s = count.pace.left_s(total - count.step, now_s, last_read_s)
        elif fraction is not None:
            eta_s = count.left_s(0, now_s, last_read_s)
        hints = self._hints
        sure = count.confirmed or count.total == hints.steps or hints.epochs == 1
        repeats = hints.epochs is not None and count.epoch is None and not hints.run_bars
        doubtful = not count.total or (not sure and (count.presumed or repeats))
        return Progress(
            step=count.step,
            total=total,
            epoch=self.epoch,
            epochs=self.epochs,
            fraction=fraction,
            eta_s=eta_s,
            estimated=fraction is not None and doubtful,
            source="log",
        )

    def _place(self, count: Counter) -> _Place | None:
        """The current epoch; None if unknown.

        `epoch 0/4` may be one of four or of five epochs, until epoch 4 appears.
        """
        if self._outer is not None:
            done, epochs = self._outer
            return _Place(done, epochs, False) if done < epochs else None
        expected = self._hints.epochs
        if count.epoch is None:
            if expected is None or count.rounds is None or count.rounds >= expected:
                return None
            return _Place(count.rounds, expected, True)
        number, of = count.epoch, self.epochs
        if of is None:
            first = self.first_epoch
            if expected is None or first is None or not first <= number < expected + first:
                return None
            return _Place(number - first, expected, True)
        if self._names_last:
            return _Place(number, of + 1, False) if number <= of else None
        if not self._from_zero:
            return _Place(number - 1, of, False) if 1 <= number <= of else None
        if number == of:
            return _Place(number, of + 1, False)
        known = expected in (of, of + 1) and number < of
        return _Place(number, expected, True) if known and expected is not None else None
