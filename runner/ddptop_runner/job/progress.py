"""Combines the current attempt's output and files with its probes' figures."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

from ddptop_runner.base.clock import boottime_s, utc_from_boottime, utc_now
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.job.ranks import OwnRanks, RankRecord
from ddptop_runner.model.run_step import RankSteps
from ddptop_runner.model.snapshot import Progress, RankSample
from ddptop_runner.reading.event_files import EventFiles
from ddptop_runner.reading.progress import combine
from ddptop_runner.reading.progress.from_text import TextProgress
from ddptop_runner.reading.progress.rank_view import fill
from ddptop_runner.reading.progress.text_watch import TextWatch

TRACES_AFTER_S = 15.0
"""Age of an attempt when the search for files begins; most sources report a loss by then."""
TRACES_EVERY_S = 5.0
LOOKS_APART_S = 1.5
"""Maximum time between the output's and the ranks' last reports."""


class JobProgress:
    """Reads progress once a second. Close it.

    Args:
        folder: the job's run folder.
        cwd: its working directory, below which its files are searched for.
        command: the command line that started it.
    """

    def __init__(self, folder: RunFolder, cwd: str, command: Sequence[str] = ()) -> None:
        self._cwd = cwd
        self._text = TextWatch(folder, command)
        self._files: EventFiles | None = None
        self._is_without_loss = True
        """Whether some rank's loss is known only from files."""
        self._attempt: int | None = None
        self._began_s = 0.0
        """Unix time of the attempt's start, set once because it identifies the files."""

    def look(self, table: OwnRanks, attempt: int, started_s: float) -> None:
        """Read what is new.

        Args:
            table: the ranks of the current attempt.
            attempt: its number.
            started_s: CLOCK_BOOTTIME of its start.
        """
        age_s, now = boottime_s() - started_s, utc_now()
        if attempt != self._attempt:
            self._attempt = attempt
            self._began_s = utc_from_boottime(started_s).timestamp()
            self._end_search()  # it found the previous attempt's files
        ranks = [record.rank for record in table]
        self._text.look(attempt, age_s, ranks, now)
        for record in table:
            text = self._text.ranks.get(record.rank)
            if text is not None and record.has_reported and not record.steps:
                text.restart_pace()
        self._is_without_loss = self._lacks_a_loss(table)
        if not self._is_without_loss and 0 not in ranks:
            self._end_search()  # else every node would report the same values
        elif self._files is None and age_s > TRACES_AFTER_S:
            self._files = EventFiles(self._cwd, self._began_s)
            self._files.start(TRACES_EVERY_S)
        if self._files is not None:
            pids = {record.rank: _pids(record) for record in table}
            others = () if table.launcher is None else _pids(table.launcher)
            self._files.look(pids, others, now)

    def _lacks_a_loss(self, table: OwnRanks) -> bool:
        printed = self._text.ranks
        return any(
            (record.alive or record.exit is not None)  # its last sample needs the files too
            and record.reported.loss_state is None
            and (record.rank not in printed or printed[record.rank].loss_state is None)
            for record in table
        )

    def _in_files(self, rank: int, without_loss: bool = True) -> TextProgress | None:
        """A rank's progress from files that provide its loss, or only other values."""
        if self._files is None or self._is_without_loss != without_loss:
            return None
        return self._files.ranks.get(rank)

    @property
    def is_printed(self) -> bool:
        """Whether the output contains steps or losses."""
        return any(
            known.step is not None or known.loss_state is not None
            for known in self._text.ranks.values()
        )

    def fill(
        self, samples: list[RankSample], attempt: int | None, table: OwnRanks
    ) -> list[RankSample]:
        """The ranks of an attempt, completed with values that their probes do not report."""
        if attempt != self._attempt:  # it has begun since the last read
            return samples
        now = utc_now()
        over = {record.rank for record in table if record.exit is not None}
        return [
            fill(
                one,
                self._text.ranks.get(one.rank),
                self._in_files(one.rank),
                now,
                scalars=self._in_files(one.rank, without_loss=False),
                is_over=one.rank in over,
            )
            for one in samples
        ]

    def of_job(
        self, table: OwnRanks, attempt: int | None, run_steps: Mapping[int, int | None]
    ) -> Progress | None:
        """The job's progress; None if no source reports a total.

        Args:
            table: its ranks.
            attempt: their attempt.
            run_steps: the step of the run, by rank.
        """
        now, now_s = utc_now(), boottime_s()
        texts: dict[int, tuple[Progress | None, int | None]] = {}
        if attempt == self._attempt:
            for rank, known in self._text.ranks.items():
                record, step = table.get(rank), run_steps.get(rank)
                if record is not None and step is not None:
                    known.compare(step, _slack(record))
                texts[rank] = known.progress(now), known.every
        return of_table(table, texts, now_s, run_steps)

    def steps(self, table: OwnRanks, attempt: int | None) -> dict[int, RankSteps]:
        """Each rank's steps according to its output and probe."""
        found = {}
        for record in table:
            known = None
            if attempt == self._attempt:
                known = self._text.ranks.get(record.rank) or self._in_files(record.rank)
            found[record.rank] = RankSteps(
                own=record.steps,
                reported=record.reported.global_step,
                total=record.reported.total_steps,
                printed=None if known is None else known.printed,
                resumed_at=None if known is None else known.resumed_at,
                slack=_slack(record),
            )
        return found

    def close(self) -> None:
        """Close all files, keeping what they reported."""
        self._text.close()
        if self._files is not None:
            self._files.close()

    def _end_search(self) -> None:
        if self._files is not None:
            self._files.close()
            self._files = None


def of_table(
    table: OwnRanks,
    texts: Mapping[int, tuple[Progress | None, int | None]],
    now_s: float,
    run_steps: Mapping[int, int | None],
) -> Progress | None:
    """The job's progress; see `combine`.

    Args:
        table: its ranks.
        texts: by rank, its output's report and the distance between the last two steps in it.
        now_s: CLOCK_BOOTTIME.
        run_steps: the step of the run, by rank.
    """
    progress, others = [], dict(texts)
    for record in table:
        text = others.pop(record.rank, (None, None))
        left_s = None if record.quiet else functools.partial(record.pace.left_s, now_s=now_s)
        progress.append(combine.of_rank(record.reported, run_steps.get(record.rank), left_s, *text))
    return combine.of_job([*progress, *(text for text, _ in others.values())])


def _slack(record: RankRecord) -> int:
    """How far a rank's counters may be apart, which are read at different times."""
    return math.ceil(LOOKS_APART_S * (record.steps_per_s or 0.0)) + 1


def _pids(record: RankRecord) -> tuple[int, ...]:
    """The pids of a rank's process and of those that it started."""
    own = () if record.pid is None else (record.pid,)
    return own if record.usage is None else (*own, *record.usage.tree_pids)
