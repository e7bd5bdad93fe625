"""Outputs in many styles: a job found late is read like one that ddptop started."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from tests.support.foreign_toys import census_of, job_of, long_ago, running
from tests.support.foreign_watching import look
from tests.support.progress_corpus import CASES, START, Case, output_of

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.foreign.watch import ForeignBook
from ddptop_runner.model.snapshot import Progress
from ddptop_runner.reading.progress import combine
from ddptop_runner.reading.progress.text_watch import TextWatch

FOUND_AT = (0.15, 0.6)
"""Parts of the output that were written when the job is found."""
ONE_OF_EACH_KIND = {case.write.__qualname__: case for case in CASES}.values()


def known(progress: Progress | None) -> object:
    """What does not depend on times."""
    if progress is None:
        return None
    return progress.step, progress.total, progress.counts, progress.epoch, progress.fraction


@pytest.mark.parametrize("case", ONE_OF_EACH_KIND, ids=lambda case: case.name)
def test_a_job_found_late_is_known_like_a_launched_one(case: Case, tmp_path: Path) -> None:
    written = output_of(case)
    for found_at in FOUND_AT:
        folder = tmp_path / str(found_at)
        (folder / "logs" / "attempt-0").mkdir(parents=True)
        log = RunFolder(folder).log_file(0, 0)
        own, at_s, now_s = TextWatch(RunFolder(folder), case.command), -1.0, [0.0]
        book = ForeignBook(clock=lambda now_s=now_s: now_s[0])
        with (
            log.open("wb", buffering=0) as file,
            running("sleep", "1000", stdout=file) as process,
        ):
            job = job_of(process.pid, started_at=long_ago(), command=" ".join(case.command))
            census, rest = census_of(job), list(written)
            while len(rest) > max(0.0, 0.8 - found_at) * len(written):
                at_s = max(at_s + 1.0, rest[0][0])
                while rest and rest[0][0] <= at_s:
                    file.write(rest.pop(0)[1].encode())
                now = START + dt.timedelta(seconds=at_s)
                own.look(0, at_s, [0], now)
                if len(rest) > (1 - found_at) * len(written):
                    continue
                now_s[0] = at_s
                for _ in range(2):  # a bar in the last line is read once nothing follows
                    own.look(0, at_s, [0], now)
                    view = look(book, census, job.name, now=now)
                text = own.ranks.get(0)
                expected = combine.of_job([] if text is None else [text.progress(now)])
                assert known(view.snapshot.progress) == known(expected)
                assert view.snapshot.step == (None if text is None else text.step)
        book.close()
        own.close()
