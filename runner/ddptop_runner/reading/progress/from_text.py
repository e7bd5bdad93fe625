"""The progress of a rank, from its output and the arguments of its command. Pure.

Output often counts within one epoch, and only the command shows the number of epochs. Progress that
depends on it is an estimate, since a script may use the option for something else.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from ddptop_runner.base.units import whole
from ddptop_runner.model.probe_message import MAX_METRICS
from ddptop_runner.model.run_step import Printed
from ddptop_runner.model.snapshot import MAX_NAME_LENGTH, Progress
from ddptop_runner.model.words import LossState, ProgressUnit
from ddptop_runner.reading.progress.pace import Pace
from ddptop_runner.reading.text.parser import Reading

# -- the command ------------------------------------------------------------------------

_EPOCHS = frozenset(  # not num_train_epochs: the bars of Hugging Face count the run
    {"epochs", "num_epochs", "n_epochs", "nepochs", "num_epoch", "nb_epochs", "niter"}
    | {"max_epochs", "total_epochs"}
)
_STEPS = frozenset(
    {"max_steps", "max_iters", "max_train_steps", "train_iters", "total_steps", "max_update"}
    | {"num_train_steps"}
)
_RESUMES = re.compile(r"resume|start_epoch|from_checkpoint|ckpt_path|init_from")
_OFF = frozenset({"", "0", "none", "false", "no", "null", "scratch"})
MAX_WORDS = 4096
VALIDATION_LOSS = "validation loss"


class CommandHints(NamedTuple):
    """What a command's options say; None without the option, or if two contradict."""

    epochs: int | None = None
    steps: int | None = None
    """In the whole run."""
    resumes: bool = False
    """Whether training may resume in the middle."""


def of_command(words: Sequence[str]) -> CommandHints:
    """Read options such as `--epochs 4`, `--epochs=4`, and `trainer.max_epochs=4`."""
    epochs: set[int] = set()
    steps: set[int] = set()
    resumes = False
    known = list(words[:MAX_WORDS])
    for word, following in zip(known, [*known[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if not word.startswith("-") and not equals:
            continue
        if not equals:
            value = "" if following.startswith("--") else following
        name = name.lstrip("-+").rpartition(".")[2].replace("-", "_").lower()
        if name in _EPOCHS:
            epochs.add(_count(value))
        elif name in _STEPS:
            steps.add(_count(value))
        elif _RESUMES.search(name) and (value.lower() not in _OFF or not equals):
            resumes = True
    return CommandHints(_only(epochs), _only(steps), resumes)


def _count(text: str) -> int:
    """A positive integer; 0 for anything else."""
    return whole(text.removesuffix(".0")) or 0


def _only(found: set[int]) -> int | None:
    return found.pop() or None if len(found) == 1 else None


# -- one counter ------------------------------------------------------------------------

# What a line says about its counter is believed until another line contradicts it. If a line leaves
# open what its total is the total of, the change of the epoch decides: a counter that rises then
# counts the run, one that falls counts the epoch.

STRANGERS = 10
"""After so many steps in a row, another counter replaces the present one."""
LAG_INTERVALS = 3
"""How far a second process that writes to the same output may lag behind."""

Basis = Literal["guessed", "stated", "observed"]
"""How it is known what a counter counts: by default, from its lines, or from how it moved."""


class Counter:
    """Something that an output counts, usually up to a total.

    Args:
        reading: the first one.
        source: the output that it was read from.
        from_start: whether counting began with this reading.
    """

    def __init__(self, reading: Reading, source: int, *, from_start: bool = False) -> None:
        self.source = source
        self.step = self.first = self.position = reading.step or 0
        """`position`: steps since the first, not affected by starting over."""
        self.total = reading.total
        self.epoch = None if reading.epoch is None else int(reading.epoch)
        """As the output numbers them."""
        self.unit: ProgressUnit | None = None
        """None while `total` may be that of an epoch or of the run."""
        self.basis: Basis = "guessed" if reading.open else "stated"
        if reading.counts != "epochs" and not (reading.open and reading.counts == "epoch"):
            self.unit = reading.counts
        self.rounds = 0 if from_start else None
        """How often it started over in the run, if no epoch is named; None if unknown."""
        self.every: int | None = None
        """The distance between the last two steps."""
        self.is_unnamed = reading.unnamed
        """Whether its last line does not say that it counts steps."""
        self.eta_s = reading.eta_s
        """Seconds until the total is reached, according to the last line."""
        self.at_s: float | None = None
        """When that was written, in Unix seconds; None if unknown."""
        self.pace = Pace()
        self._lagging = 0

    def add(self, reading: Reading, at_s: float | None) -> None:
        """Fold in a reading with a step, of this counter.

        Args:
            reading: what was read.
            at_s: when it was written, in Unix seconds; None if unknown.
        """
        step, grown = reading.step or 0, 0
        if reading.epoch is not None and self.epoch is not None:
            grown = int(reading.epoch) - self.epoch
        moved, wraps = step - self.step, self._wraps(step)
        little_back = 0 < -moved <= LAG_INTERVALS * (self.every or 0) and not wraps
        lags = grown < 0 or (grown == 0 and little_back)  # another process wrote it
        self._lagging = self._lagging + 1 if lags else 0
        if lags and self._lagging < STRANGERS:
            return
        self._learn(grown, moved, wraps, may_restart=at_s is not None)
        if moved > 0 and (grown == 0 or self.unit == "run"):
            self.every = moved
        laps = grown if grown > 0 and self.unit != "run" else int(wraps)
        if wraps and self.rounds is not None:
            self.rounds += 1
        moved += laps * (self.total or 0)
        if grown < 0 or moved < 0 or (laps and not self.total):
            self.pace.clear()
            self.position = step
        else:
            self.position += moved
        self.step, self.is_unnamed, self.eta_s = step, reading.unnamed, reading.eta_s
        self.total = self.total if reading.total is None else reading.total
        self.epoch = self.epoch if reading.epoch is None else int(reading.epoch)
        self.at_s = self.at_s if at_s is None else at_s
        if at_s is not None:
            self.pace.mark(at_s, self.position)

    def _wraps(self, step: int) -> bool:
        """Whether it started over from the present step, which was near the total."""
        if not self.total or step >= self.step:
            return False
        reach = 1.5 * (self.every or 1)
        ended = self.step >= 0.8 * self.total or self.step + reach >= self.total
        return ended and step <= max(reach, 0.2 * self.total)

    def _learn(self, grown: int, moved: int, wraps: bool, *, may_restart: bool) -> None:
        """Learn what it counts from how it moves."""
        if self.unit in ("epoch", "samples") and self.basis != "guessed":
            return
        if grown > 0 and moved > 0:
            self.unit, self.basis = "run", "observed"
        elif moved < 0 and (grown > 0 or wraps):
            self.unit, self.basis = "epoch", "observed"
        elif moved < 0 and self.unit == "run" and may_restart:
            near_zero = max(1.5 * (self.every or 1), 0.05 * (self.total or 0))
            if self.step + moved <= near_zero:  # epochs end early, or this is another run
                self.unit, self.basis, self.rounds = "epoch", "observed", None

    def judge(self, first: int, last: int, epochs: int) -> None:
        """Check whether it can count the run, given the range of the current epoch, from 0.

        Half an epoch of tolerance allows for epochs of different lengths. A single epoch is the
        run.
        """
        if self.unit is None and self.total:
            passed = epochs * self.step / self.total
            if epochs == 1 or not first - 0.5 <= passed <= last + 1.5:
                self.unit = "epoch"

    def share(self) -> float | None:
        """The fraction of the total that is done; None if unknown or more than 1."""
        return self.step / self.total if self.total and 0 <= self.step <= self.total else None

    def left_s(self, end: int, now_s: float, last_read_s: float | None = None) -> float | None:
        """Seconds until it reaches `end`, starting over if that is beyond its total.

        Follows the measured pace, or else what the bar says.

        Args:
            end: the step at which it ends.
            now_s: Unix seconds.
            last_read_s: when anything at all was last read.
        """
        measured = self.pace.left_s(end - self.step, now_s, last_read_s)
        if measured is not None or self.eta_s is None or self.at_s is None or end != self.total:
            return measured
        return max(0.0, self.eta_s - max(0.0, now_s - self.at_s))


# -- the output -------------------------------------------------------------------------

HOLD_S = 600.0
"""How long a bar remains the counter while a smaller one without a loss moves: evaluations draw
such bars, even after the last step, without saying what they are."""


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
            first_epoch: of an earlier attempt.
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
        self.first_epoch = first_epoch
        """The number of the first epoch, 0 or 1; None if unknown."""
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
        self._count: Counter | None = None
        self._strangers = 0
        """How many readings in a row were of another counter."""
        self._outer: tuple[int, int] | None = None
        """(done, total) of a bar that counts epochs."""
        self._epochs_done: float | None = None
        """For output with only one line at the end of each epoch."""
        self._epoch_pace = Pace()
        self._epoch_read_first: float | None = None
        self._names_last = False
        """Whether `epochs` is the number of the last, as in Lightning's bars."""

    @property
    def _steps(self) -> Counter | None:
        """The counter, unless it counts samples."""
        return None if self._count is None or self._count.unit == "samples" else self._count

    @property
    def step(self) -> int | None:
        """As printed, so possibly within the epoch."""
        return None if self._steps is None else self._steps.step

    @property
    def run_step(self) -> int | None:
        """The step of the run, as printed or by its epochs; None if unknown."""
        known, printed = self._steps, self.printed
        if known is None or printed is None or (not printed.of_run and printed.by_epoch is None):
            return None
        if printed.of_run:
            return printed.step
        if self._from_start and self._epoch_read_first == self.first_epoch:
            return known.position  # epochs may differ in length
        return printed.by_epoch

    @property
    def position(self) -> int | None:
        """The step, counted on across epochs; None if earlier epochs were not read."""
        run_step, known = self.run_step, self._steps
        if run_step is None and self._from_start and known is not None:
            return known.position
        return run_step

    @property
    def every(self) -> int | None:
        """The distance between the last two steps that were printed."""
        return None if self._steps is None else self._steps.every

    @property
    def printed(self) -> Printed | None:
        """What its printed steps count; None before the first."""
        known, by_epoch, first = self._steps, None, self.first_epoch
        if known is None:
            return None
        if known.unit == "epoch" and known.epoch is not None and known.total and first is not None:
            by_epoch = (known.epoch - first) * known.total + known.step
        every = known.every or max(1, known.first)
        return Printed(known.step, known.first, every, known.total, self.counts_run, by_epoch)

    @property
    def counts_run(self) -> bool:
        """Whether `step` counts the whole run, as far as the log shows."""
        return self._steps is not None and self._unit(self._steps) == "run"

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
        if at is not None:
            self.last_at = at
        if reading.epoch is not None:
            self._take_epoch(reading, at)
        for name, value in reading.scalars:
            self._take_scalar(name, value)
        if reading.kind == "resume":
            if self._count is None:
                self.resumed_at = reading.step
            return
        if reading.kind == "val":
            if reading.loss is not None:
                self._take_scalar(VALIDATION_LOSS, reading.loss)
            return
        if reading.counts == "epochs":
            self._take_epochs_bar(reading, at)
        elif reading.step is not None:
            self._take_step(reading, at, source)
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
        if self._count is not None:
            self._count.at_s = at.timestamp()

    def _take_epoch(self, reading: Reading, at: dt.datetime | None) -> None:
        self.epoch = reading.epoch
        self.epochs = reading.epochs or self.epochs
        if self._epoch_read_first is None:
            self._epoch_read_first = reading.epoch
        if reading.epoch == 0 or reading.from_zero:
            self.first_epoch = 0
        elif self._from_start and self._epoch_read_first == 1 and not self._hints.resumes:
            self.first_epoch = 1 if self.first_epoch is None else self.first_epoch
        self._names_last = reading.from_zero
        ended = reading.step is None and reading.loss is not None and reading.kind == "train"
        self._epochs_done = reading.epoch if ended else None
        if ended and at is not None and reading.epoch is not None:
            self._epoch_pace.mark(at.timestamp(), reading.epoch)

    def _take_epochs_bar(self, reading: Reading, at: dt.datetime | None) -> None:
        if reading.step is None or not reading.total:
            return
        if self._count is not None and self._outer not in (None, (reading.step, reading.total)):
            self._count.step = 0  # the bar below starts over
        self._outer = (reading.step, reading.total)
        if at is not None:
            self._epoch_pace.mark(at.timestamp(), reading.step)

    def _take_step(self, reading: Reading, at: dt.datetime | None, source: int) -> None:
        at_s, known = None if at is None else at.timestamp(), self._count
        if known is not None and not self._is_same(known, reading, source):
            if not self._replaces(known, reading, at_s):
                return
            known = None
        self._strangers = 0
        if known is None:
            begins = self._from_start or (reading.step or 0) <= 1
            known = self._count = Counter(
                reading, source, from_start=begins and not self._hints.resumes
            )
            if at_s is not None:
                known.at_s = at_s
                known.pace.mark(at_s, known.position)
        else:
            known.add(reading, at_s)
        if known.unit != "samples":
            self.step_since = self.step_since or at
        if (place := self._place(known)) is not None:
            known.judge(place.before, place.before + (self.first_epoch is None), place.of)

    def _is_same(self, known: Counter, reading: Reading, source: int) -> bool:
        """Whether a reading is of the counter, maybe in an epoch of another length."""
        if source != known.source or (reading.counts == "samples") != (known.unit == "samples"):
            return False
        if reading.total == known.total:
            return True
        if reading.epoch is None or known.epoch is None or int(reading.epoch) <= known.epoch:
            return False
        return known.unit == reading.counts != "run"

    def _replaces(self, known: Counter, reading: Reading, at_s: float | None) -> bool:
        """Whether another counter replaces the present one, since it says more or that ended."""
        says_run = reading.counts == "run" and not reading.open
        may_be_run = known.unit is None and known.total is not None
        if says_run and may_be_run and reading.total is None:
            return False
        if known.unit == "samples" or (says_run and known.unit != "run"):
            return True
        if reading.counts == "samples":
            return False
        self._strangers += 1
        if self._strangers < STRANGERS:
            return False
        smaller = reading.total is not None and (
            reading.total < (known.total or 0)
            or (known.epoch is not None and reading.epoch is None and reading.open)
        )
        if not smaller or not known.total or reading.loss is not None:
            return True
        return at_s is not None and known.at_s is not None and at_s - known.at_s >= HOLD_S

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

    # -- results ----------------------------------------------------------------------

    def steps_per_s(self, now: dt.datetime) -> float | None:
        """From the log; None before two different steps, and once the log falls silent."""
        known = self._steps
        if known is None or known.is_unnamed:
            return None
        return known.pace.per_s(now.timestamp())

    def restart_pace(self) -> None:
        """Forget the pace so far: batches that a resumed script skips are no training."""
        self._epoch_pace.clear()
        if self._count is not None:
            self._count.pace.clear()

    def compare(self, run_step: int, slack: int) -> None:
        """Learn by the step of the run which epoch it is, or how epochs are numbered.

        Args:
            run_step: from another source.
            slack: tolerance, in steps.
        """
        known = self._steps
        if known is None or not known.total or self.counts_run:
            return
        apart, ahead = (known.every or 1) + slack, run_step - known.step
        passed = round(ahead / known.total)
        if known.total <= 2 * apart or not -slack <= ahead - passed * known.total <= apart:
            return
        if known.epoch is None:
            known.rounds = passed if known.rounds is None else known.rounds
        elif passed and known.epoch - passed in (0, 1):
            self.first_epoch = known.epoch - passed

    def progress(self, now: dt.datetime) -> Progress | None:
        """Progress of the run; None without a total or an epoch."""
        now_s, count = now.timestamp(), self._count
        if count is None or not (count.total or (self._hints.steps and self._steps)):
            return self._of_epochs(now_s)
        if self._unit(count) == "run":
            return self._of_run(count, now_s)
        return self._of_epoch(count, now_s)

    def _unit(self, count: Counter) -> ProgressUnit | None:
        """What a counter counts; one that does not say so counts an epoch if there are several."""
        hints = self._hints
        if count.unit != "run" or count.basis == "observed":
            return count.unit
        if self._outer is not None:
            return "epoch"
        several = (hints.epochs or 0) > 1 and count.total != hints.steps
        return "epoch" if several and count.basis == "guessed" else "run"

    def _of_epochs(self, now_s: float) -> Progress | None:
        """For output without a total number of steps."""
        fraction = eta_s = None
        epoch, done, epochs = self.epoch, self._epochs_done, self.epochs
        if self._outer is not None:
            epoch = done = float(self._outer[0])
            epochs = self._outer[1]
        elif self.first_epoch == 0:
            done = None
        if epoch is None and not epochs:
            return None
        if done is not None and epochs and 0 < done <= epochs:
            fraction = done / epochs
            eta_s = self._epoch_pace.left_s(epochs - done, now_s)
        return Progress(epoch=epoch, epochs=epochs, fraction=fraction, eta_s=eta_s, source="log")

    def _of_run(self, count: Counter, now_s: float) -> Progress:
        hints, total = self._hints, count.total or self._hints.steps or 0
        fraction = eta_s = None
        if count.step <= total:
            fraction = count.step / total
            eta_s = count.left_s(total, now_s, self._last_read_s)
        repeats = hints.epochs not in (None, 1) and count.epoch is None
        is_sure = count.basis == "observed" or count.total == hints.steps or hints.epochs == 1
        doubtful = not count.total or (not is_sure and (count.basis == "guessed" or repeats))
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

    def _of_epoch(self, count: Counter, now_s: float) -> Progress:
        unit, place, read_s = self._unit(count), self._place(count), self._last_read_s
        share = None if unit is None else count.share()
        fraction = eta_s = epoch_eta_s = None
        epoch, epochs = self.epoch, self.epochs
        if share is not None and count.total:
            epoch_eta_s = count.left_s(count.total, now_s, read_s)
            if place is not None:
                fraction = min(1.0, (place.before + share) / place.of)
                eta_s = count.left_s(count.total * (place.of - place.before), now_s, read_s)
        if count.epoch is None and place is not None:
            epoch, epochs = float(place.before + 1), place.of
        return Progress(
            step=count.step,
            total=count.total,
            counts=unit or "epoch",
            epoch=epoch,
            epochs=epochs,
            fraction=fraction,
            eta_s=eta_s,
            estimated=place is not None and fraction is not None and place.estimated,
            epoch_fraction=share,
            epoch_eta_s=epoch_eta_s,
            source="log",
        )

    @property
    def _last_read_s(self) -> float | None:
        return None if self.last_at is None else self.last_at.timestamp()

    def _place(self, count: Counter) -> _Place | None:
        """The current epoch; None if unknown.

        `epoch 0/4` may be one of four or of five epochs, until epoch 4 appears.
        """
        if self._outer is not None:
            done, epochs = self._outer
            return _Place(done, epochs, False) if done < epochs else None
        expected, number, of = self._hints.epochs, count.epoch, self.epochs
        if number is None:
            before, of, estimated = count.rounds, expected, True
        elif self._names_last:
            before, of, estimated = number, (of or 0) + 1, False
        elif of is None:
            first = self.first_epoch
            before, of, estimated = None if first is None else number - first, expected, True
        elif self.first_epoch != 0:
            before, estimated = number - 1, False
        elif number == of:
            before, of, estimated = number, of + 1, False
        else:
            before, of, estimated = number, expected if expected in (of, of + 1) else None, True
        if before is None or of is None or not 0 <= before < of:
            return None
        return _Place(before, of, estimated)
