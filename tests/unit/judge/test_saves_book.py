"""Which saved files form a checkpoint, and what a failure costs."""

from __future__ import annotations

import pytest

from ddptop_runner.job.event_text import text
from ddptop_runner.judge.checkpoints import (
    REPORTED_AT_ONCE,
    REPORTED_EVERY_S,
    CheckpointBook,
    Finder,
    locate,
    step_loaded,
    was_saved,
)
from ddptop_runner.model.probe_message import LoadedFile, SavedFile
from ddptop_runner.model.run_step import at_step, step_beside

MIB = 2**20


class NoFinder(Finder):
    """Finds what a test specifies."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.found: tuple[str, str] | None = None

    def ask(self, path: str, inode: int) -> None:
        self.asked.append((path, inode))

    def answer(self) -> tuple[str, str] | None:
        return self.found


def file(path: str, ended_t: float, size: int | None = MIB, **changes) -> SavedFile:
    fields = {"n": 1, "began_t": ended_t - 0.5, "steps": 10, "inode": None, **changes}
    return SavedFile(path=path, ended_t=ended_t, size_bytes=size, **fields)


@pytest.fixture
def book() -> CheckpointBook:
    return CheckpointBook(finder=NoFinder())


def see(book: CheckpointBook, *files: tuple[int, SavedFile], attempt: int = 0) -> list:
    return [book.saved(one, rank=rank, attempt=attempt) is not None for rank, one in files]


def look(book: CheckpointBook, now_s: float, **how: bool) -> str | None:
    """The event's sentence, if there is one."""
    event = book.report(now_s, **how)
    return None if event is None else text(event)


def test_a_saved_file_is_a_checkpoint_with_all_that_is_known_of_it(book):
    made = book.saved(file("/run/a.pt", 100.0), rank=1, attempt=2, global_step=510)
    assert made is book.last is not None
    assert (made.path, made.rank, made.attempt, made.step) == ("/run/a.pt", 1, 2, 10)
    assert (made.global_step, made.size_bytes, made.took_s, made.files) == (510, MIB, 0.5, 1)


def test_shards_of_several_ranks_at_one_step_are_one_checkpoint(book):
    shards = [(rank, file(f"/run/s/{rank}.pt", 100.0 + rank, 4 * MIB)) for rank in range(4)]
    assert see(book, *shards) == [True, False, False, False]
    assert (book.last.files, book.last.size_bytes, book.last.took_s) == (4, 16 * MIB, 3.5)
    assert book.last.path == "/run/s/0.pt"
    assert see(book, (1, file("/run/s2/1.pt", 110.0, 4 * MIB, steps=20))) == [True]


@pytest.mark.parametrize(
    ("second", "is_new"),
    [
        (file("/run/b.pt", 101.0), False),
        (file("/run/b.pt", 101.0, steps=11), True),
        (file("/run/a.pt", 101.0), True),
        (file("/run/b.pt", 130.0), True),
        (file("/run/b.pt", 101.0, steps=None), True),
    ],
    ids=["same step", "a step later", "same file again", "long after", "no steps known"],
)
def test_what_is_saved_next_belongs_to_the_same_checkpoint_or_to_another(book, second, is_new):
    see(book, (0, file("/run/a.pt", 100.0)))
    assert see(book, (0, second)) == [is_new]


def test_the_same_step_of_another_attempt_is_another_checkpoint(book):
    see(book, (0, file("/run/a.pt", 100.0)))
    assert see(book, (0, file("/run/b.pt", 101.0)), attempt=1) == [True]


def test_small_files_do_not_replace_a_checkpoint(book):
    see(book, (0, file("/run/a.pt", 100.0, 100 * MIB)))
    assert see(book, (0, file("/run/metrics.pt", 120.0, 9 * MIB, steps=20))) == [False]
    assert book.last.path == "/run/a.pt"
    assert see(book, (0, file("/run/b.pt", 121.0, 11 * MIB, steps=30))) == [True]


def test_a_small_file_counts_with_the_large_one_of_its_step(book):
    see(book, (0, file("/run/a.pt", 100.0, 100 * MIB)))
    small, large = file("/b/rng.pt", 120.0, 5, steps=20), file("/b/m.pt", 122.0, 90 * MIB, steps=20)
    assert see(book, (0, small), (0, large)) == [False, True]
    assert (book.last.path, book.last.files) == ("/b/m.pt", 2)


def test_the_last_checkpoint_written_again_counts_whatever_its_size(book):
    see(book, (0, file("/run/a.pt", 100.0, 100 * MIB)))
    assert see(book, (0, file("/run/a.pt", 120.0, 1 * MIB, steps=20))) == [True]


# --- told ------------------------------------------------------------------------------------


def test_checkpoint_is_reported_once_when_complete(book):
    see(book, (0, file("/run/a.pt", 100.0, 12 * MIB, steps=120)))
    assert look(book, 100.5) is None
    see(book, (1, file("/run/b.pt", 101.0, 12 * MIB, steps=120)))
    assert look(book, 101.6) is None
    told = look(book, 102.6)
    assert told == "2 ranks saved a.pt and 1 more file at step 120 (24 MiB in 1.5 s)"
    assert look(book, 110.0) is None


def test_at_the_end_nothing_more_is_waited_for(book):
    see(book, (0, file("/run/a.pt", 100.0, 800)))
    assert look(book, 100.1, at_once=True) == "rank 0 saved a.pt at step 10 (800 B in 0.5 s)"


def test_a_script_that_saves_at_each_step_does_not_fill_the_story(book):
    told = []
    for second in range(300):  # the next one comes before the last is known to be complete
        see(book, (0, file(f"/run/{second}.pt", 100.0 + second, steps=second)))
        told += filter(None, [look(book, 100.5 + second)])
    assert 300 / REPORTED_EVERY_S - 2 <= len(told) <= 300 / REPORTED_EVERY_S
    assert told[-1].endswith("; 29 more since the last report")


def test_only_some_of_many_checkpoints_are_reported(book):
    told = []
    for number in range(300):
        now = 1000.0 + 3 * number
        see(book, (0, file(f"/run/{number}.pt", now, steps=number)))
        told += filter(None, [look(book, now + 2)])
    assert (
        REPORTED_AT_ONCE + 890 / REPORTED_EVERY_S - 2
        < len(told)
        < REPORTED_AT_ONCE + 900 / REPORTED_EVERY_S + 2
    )
    assert told[-1].endswith("; 9 more since the last report")


# --- renamed ---------------------------------------------------------------------------------


def test_a_renamed_file_is_known_by_its_new_name():
    finder = NoFinder()
    book = CheckpointBook(finder=finder)
    see(book, (0, file("/run/tmp", 100.0, inode=7)))
    assert finder.asked == [("/run/tmp", 7)]
    look(book, 100.5)
    assert finder.asked == [("/run/tmp", 7)] * 2
    finder.found = ("/run/tmp", "/run/epoch-3.pt")
    assert "saved epoch-3.pt at" in (look(book, 102.0) or "")
    assert book.last.path == "/run/epoch-3.pt"
    finder.found = ("/run/other", "/run/wrong")
    look(book, 103.0)
    assert book.last.path == "/run/epoch-3.pt"
    asked = len(finder.asked)
    look(book, 200.0)
    assert len(finder.asked) == asked


def test_files_are_found_by_inode(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    written = folder / "tmp.pt"
    written.write_text("x")
    inode = written.stat().st_ino
    assert locate(str(written), inode) == str(written)
    renamed = written.rename(folder / "epoch.pt")
    assert locate(str(written), inode) == str(renamed)
    written.write_text("the next one is being written under the same name")
    assert locate(str(written), inode) == str(renamed)
    renamed.unlink()
    assert locate(str(renamed), inode) == str(renamed)
    assert locate("/nowhere/at/all", inode) == "/nowhere/at/all"
    assert locate("", inode) == ""
    assert locate("\0", inode) == "\0"


# --- work lost -------------------------------------------------------------------------------


def test_since_a_checkpoint_of_this_attempt(book):
    see(book, (0, file("/run/epoch-3.pt", 100.0, steps=120)))
    lost = book.work_lost(0, 157, 60.0, now_s=112.0)
    assert (lost.steps, lost.seconds, lost.since) == (37, 12.0, book.last)
    assert lost.in_words() == "Work lost: 37 steps (12 s) since epoch-3.pt at step 120."
    assert book.work_lost(0, 120, 60.0, now_s=113.0).in_words() == (
        "Work lost: none since epoch-3.pt at step 120."
    )


def test_a_checkpoint_of_an_earlier_attempt_saves_nothing_of_this_one(book):
    see(book, (0, file("/run/epoch-3.pt", 100.0, steps=120)))
    lost = book.work_lost(1, 20, 7.0, now_s=130.0)
    assert (lost.steps, lost.seconds, lost.since, lost.earlier) == (20, 7.0, None, book.last)
    assert lost.in_words() == (
        "Work lost: 20 steps (7 s). No checkpoint was detected since epoch-3.pt."
    )


@pytest.mark.parametrize(
    ("steps", "seconds"), [(None, None), (0, None)], ids=["nothing known", "no step taken"]
)
def test_where_nothing_is_known_or_was_done_nothing_is_said(book, steps, seconds):
    lost = book.work_lost(0, steps, 41.0)
    assert (lost.steps, lost.seconds, lost.in_words()) == (steps, seconds, "")


# --- which step that is ----------------------------------------------------------------------


def resumed(book: CheckpointBook, began: int | None) -> CheckpointBook:
    """A second attempt that saves at its step 150, after the first saved at 250."""
    see(book, (0, file("/run/a.pt", 100.0, steps=250)))
    see(book, (0, file("/run/a.pt", 200.0, steps=150)), attempt=1)
    book.began(began, 1)
    return book


@pytest.mark.parametrize(
    ("began", "step", "words", "beside"),
    [
        (250, 400, " at step 400 of the run", "step 400"),
        (0, 150, " at step 150 of the run", "step 150"),  # it did not resume from its checkpoint
        (None, None, " at step 150 of attempt 1", "step 150 of this attempt"),
    ],
    ids=["resumed", "from-zero", "not-told"],
)
def test_the_step_of_the_run_is_reckoned_by_where_the_attempt_began(
    book, began, step, words, beside
):
    saved = resumed(book, began).last
    assert saved is not None and (saved.step, saved.global_step) == (150, step)
    assert (at_step(saved), step_beside(saved, 1)) == (words, beside)


def test_third_attempt_continues_from_the_second_despite_a_new_supervisor(book):
    second = resumed(book, 250)
    assert second.run_steps(2) == [250, 400] and second.run_steps(1) == [250]
    later = CheckpointBook(finder=NoFinder())
    later.recall(second.last, second.remember())
    later.began(400, 2)
    see(later, (0, file("/run/a.pt", 300.0, steps=50)), attempt=2)
    assert later.last is not None and later.last.global_step == 450
    again = CheckpointBook(finder=NoFinder())
    again.recall(None, later.remember())
    assert again.run_steps(2) == [250, 400]
    again.began(400, 2)
    see(again, (0, file("/run/a.pt", 400.0, steps=60)), attempt=2)
    assert again.last is not None and again.last.global_step == 460


def test_a_loaded_file_tells_the_step_at_which_it_was_saved(book):
    second_ns = 10**9
    for step, at_s in ((100, 50), (200, 60)):  # the same file, written again in place
        one = file("/run/last.pt", at_s, steps=step, inode=7, mtime_ns=at_s * second_ns)
        see(book, (0, one))
    see(book, (0, file("/run/best.pt", 61, steps=150, inode=8, mtime_ns=55 * second_ns)))
    later = CheckpointBook(finder=NoFinder())
    later.recall(book.last, book.remember())

    def loaded(inode: int, at_s: float) -> LoadedFile:
        return LoadedFile(MIB, inode, round(at_s * second_ns))

    def found(*files: LoadedFile) -> tuple[int | None, bool]:
        return step_loaded(files, later.saved_at), was_saved(files, later.saved_at)

    assert found(loaded(7, 60)) == (200, True)
    assert found(loaded(7, 50.05)) == (100, True)  # written to the disk a little later
    assert found(loaded(8, 55), loaded(7, 60)) == (200, True)
    # saved once more, just before the process was killed
    assert found(loaded(7, 61)) == found(loaded(8, 55), loaded(7, 61)) == (None, True)
    assert found(loaded(9, 60)) == found() == (None, False)


# --- remembered ------------------------------------------------------------------------------


def test_restarted_supervisor_continues(book):
    see(book, (0, file("/run/a.pt", 100.0, 100 * MIB, steps=120)))
    after = CheckpointBook(finder=NoFinder())
    after.recall(book.last, book.remember())
    assert see(after, (0, file("/run/a.pt", 100.0, 100 * MIB, steps=120))) == [False]
    assert look(after, 105.0) is None
    assert see(after, (0, file("/run/m.pt", 110.0, MIB, steps=130))) == [False]
    assert after.work_lost(0, 157, 60.0, now_s=112.0).seconds == 12.0


def test_what_says_nothing_of_its_size_counts(book):
    see(book, (0, file("/run/a.pt", 100.0, 100 * MIB)))
    assert see(book, (0, file("/run/b", 120.0, None, steps=20))) == [True]
    assert book.last.size_bytes is None


def test_without_any_checkpoint_all_of_the_attempt(book):
    lost = book.work_lost(0, 157, 41.0)
    assert (lost.steps, lost.seconds, lost.since) == (157, 41.0, None)
    assert lost.in_words() == (
        "Work lost: 157 steps (41 s). No checkpoint was detected; the script may save in a way "
        "that ddptop cannot detect."
    )


def test_the_finder_looks_in_a_thread(tmp_path, wait_until):
    renamed = tmp_path / "b"
    renamed.write_text("x")
    finder = Finder()
    assert finder.answer() is None
    finder.ask(str(tmp_path / "a"), renamed.stat().st_ino)
    assert wait_until(finder.answer) == (str(tmp_path / "a"), str(renamed))
    assert finder.answer() is None
