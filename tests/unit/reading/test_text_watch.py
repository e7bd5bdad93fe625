"""The logs of a live job, followed within a budget: floods, gaps, attempts, launchers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.paths import LAUNCHER, RunFolder
from ddptop_runner.reading.progress import text_watch
from ddptop_runner.reading.progress.text_watch import TextWatch
from ddptop_runner.store.disk import BLOCK_BYTES, punch


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    for attempt in (0, 1):
        (tmp_path / "logs" / f"attempt-{attempt}").mkdir(parents=True)
    return RunFolder(tmp_path)


@pytest.fixture
def watch(folder: RunFolder):
    watch = TextWatch(folder)
    yield watch
    watch.close()


def write(folder: RunFolder, rank: int, text: str | bytes, attempt: int = 0) -> None:
    data = text.encode() if isinstance(text, str) else text
    with folder.log_file(attempt, rank).open("ab") as file:
        file.write(data)


def drop_head(path: Path, size: int) -> None:
    """Drop that many bytes, in whole blocks."""
    with path.open("rb+") as file:
        punch(file.fileno(), 0, size)


def look(watch: TextWatch, attempt: int = 0, age_s: float = 0.0, ranks=(0, 1)) -> int:
    return watch.look(attempt, age_s, ranks, utc_now())


def told(watch: TextWatch, rank: int):
    known = watch.ranks.get(rank)
    return None if known is None else (known.step, known.loss)


def test_each_ranks_log_is_its_own_whatever_it_names(folder, watch) -> None:
    write(folder, 0, "step 1 loss 2.5 (rank 0)\nstep 2 lo")
    write(folder, 1, "rank 0: step 7 loss 1.5\n")
    look(watch)
    assert (told(watch, 0), told(watch, 1)) == ((1, 2.5), (7, 1.5))
    write(folder, 0, "ss 2.25\n")
    look(watch)
    assert told(watch, 0) == (2, 2.25)
    assert watch.ranks[0].loss_min == watch.ranks[0].loss_max == 2.25


def test_launcher_lines_are_assigned_to_the_ranks_they_name(folder, watch) -> None:
    text = "[1]<stdout>:step 3 loss 1.5\n[default0]:step 4 loss 2.5\nstep 5 loss 0.5\n"
    write(folder, LAUNCHER, text)
    look(watch)
    assert (told(watch, 0), told(watch, 1)) == ((5, 0.5), (3, 1.5))


def test_a_rank_that_is_not_known_yet_is_not_taken_for_one_that_is(folder, watch) -> None:
    write(folder, LAUNCHER, "[1]<stdout>:step 3 loss 1.5\n")
    look(watch, ranks=(0,))
    assert (told(watch, 0), told(watch, 1)) == (None, (3, 1.5))


def test_before_any_rank_is_known_a_launchers_lines_are_rank_0s(folder, watch) -> None:
    write(folder, LAUNCHER, "step 3/10 loss 1.5\n")
    look(watch, ranks=())
    assert watch.ranks[0].progress(utc_now()).fraction == pytest.approx(0.3)


def test_a_new_attempt_begins_with_nothing(folder, watch) -> None:
    write(folder, 0, "step 90/100 loss 0.5\n")
    look(watch)
    look(watch, attempt=1)
    assert watch.ranks.get(0) is None
    write(folder, 0, "step 1/100 loss 3.5\n", attempt=1)
    look(watch, attempt=1)
    assert told(watch, 0) == (1, 3.5)


def test_what_was_written_before_has_no_time(folder, watch) -> None:
    write(folder, 0, "step 10/100 loss 2.5\nstep 20/100 loss 2.0\n")
    look(watch, age_s=60.0)
    known = watch.ranks.get(0)
    assert (known.step, known.last_at, known.steps_per_s(utc_now())) == (20, None, None)
    write(folder, 0, "step 21/100 loss 2.0\n")
    look(watch, age_s=61.0)
    assert watch.ranks[0].last_at is not None


def test_a_flood_is_read_at_its_end_only_and_nothing_is_made_of_two_halves(folder, watch) -> None:
    random_ = random.Random(3)
    step, seen = 0, 0
    for _ in range(12):
        lines = []
        for _ in range(random_.randint(1, 9_000)):
            step += 1
            lines.append(f"step {step}/900000 loss {step}.5 and some more words to make it long\n")
        text = "".join(lines)
        cut = random_.randint(0, 60)  # the writer is in the middle of a line
        write(folder, 0, text[: len(text) - cut])
        used = look(watch)
        assert used <= text_watch.BUDGET_BYTES
        known = watch.ranks.get(0)
        if known is not None and known.loss is not None:
            seen += 1
            assert known.loss == known.step + 0.5
            assert known.loss_min % 1 == known.loss_max % 1 == 0.5
            assert step - 3 <= known.step <= step
        write(folder, 0, text[len(text) - cut :])
    assert seen > 6


def test_a_dropped_head_is_passed_over(folder, watch) -> None:
    write(folder, 0, "step 1 loss 2.5\n")
    look(watch)
    write(folder, 0, "step 2 loss 9.5\n" * 2000 + "step 4 loss 1.5\nstep 5 loss 1.5\n")
    drop_head(folder.log_file(0, 0), 2000 * 16 // BLOCK_BYTES * BLOCK_BYTES)
    write(folder, 0, "step 6 loss 1.5\n")
    look(watch)
    assert told(watch, 0) == (6, 1.5)


def test_log_truncated_under_its_writer_continues(folder, watch) -> None:
    write(folder, 0, "step 1 loss 2.5\n" * 100)
    look(watch)
    folder.log_file(0, 0).write_bytes(b"")
    look(watch)
    write(folder, 0, "step 2 loss 1.5\n")
    look(watch)
    look(watch)
    assert told(watch, 0) == (2, 1.5)
