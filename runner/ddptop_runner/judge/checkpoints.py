"""Tracks a job's checkpoints, as reported by its ranks' probes, and the work lost by a failure.

All files that ranks save at one step form one checkpoint: shards of one model, or a model and its
optimizer. Other files, such as metrics, may be saved by the same functions; anything smaller than a
tenth of the largest checkpoint does not count. Files written by other means are not detected.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from ddptop_runner.base.clock import boottime_s, utc_from_boottime
from ddptop_runner.base.units import duration_in_words
from ddptop_runner.model.events import CheckpointSaved
from ddptop_runner.model.probe_message import LoadedFile, SavedFile
from ddptop_runner.model.run_step import at_step, run_step
from ddptop_runner.model.snapshot import Checkpoint

LEAST_SHARE = 0.1
"""Minimum size of a checkpoint, as a fraction of the largest one."""
TOGETHER_S = 10.0
"""Files of one step belong together if each starts within this time after another has ended."""
SETTLED_S = 1.5
"""A checkpoint without new files for this long is complete and may be reported."""
RENAMED_WITHIN_S = 60.0
"""How long after saving a script may still rename files."""
WRITTEN_WITHIN_S = 0.1
"""How long a file that a script has open may change after its save has returned."""
REMEMBERED = 100
"""Number of checkpoint steps to keep, from any of which a later attempt may resume."""
REPORTED_AT_ONCE, REPORTED_EVERY_S = 10, 30.0
"""Checkpoints reported as they come, then the interval of reports, as some scripts save each
step."""


@dataclass(frozen=True)
class WorkLost:
    """The work to repeat after a failure."""

    steps: int | None
    """None if unknown."""
    seconds: float | None
    """None if unknown or no work was lost."""
    since: Checkpoint | None
    """The checkpoint since which work is lost; None for all of the attempt."""
    earlier: Checkpoint | None = None
    """If `since` is None, the last checkpoint of an earlier attempt."""

    def in_words(self) -> str:
        """One sentence; empty if unknown or no work was lost."""
        took = "" if self.seconds is None else duration_in_words(self.seconds)
        steps = "" if self.steps is None else f"{self.steps} step{'' if self.steps == 1 else 's'}"
        what = f"{steps} ({took})" if steps and took else steps or took or "everything"
        if self.since is not None:
            what = "none" if self.steps == 0 else what
            return f"Work lost: {what} since {self.since.name}{at_step(self.since)}."
        if not self.steps:
            return ""
        if self.earlier is not None:
            return f"Work lost: {what}. No checkpoint was detected since {self.earlier.name}."
        return (
            f"Work lost: {what}. No checkpoint was detected; the script may save in a way that "
            "ddptop cannot detect."
        )


@dataclass
class _Gathered:
    """Files saved at about the same step."""

    attempt: int
    step: int | None
    files: dict[tuple[int, str], SavedFile] = field(default_factory=dict)
    global_step: int | None = None

    def add(self, rank: int, file: SavedFile, global_step: int | None) -> None:
        """Add a file."""
        self.files[rank, file.path] = file
        if global_step is not None:
            self.global_step = global_step

    def takes(self, file: SavedFile, rank: int, attempt: int) -> bool:
        """Whether a file belongs to it."""
        if attempt != self.attempt or file.steps != self.step or (rank, file.path) in self.files:
            return False
        return file.began_t <= self.ended_s + TOGETHER_S and file.ended_t >= (
            self.began_s - TOGETHER_S
        )

    @property
    def began_s(self) -> float:
        return min(file.began_t for file in self.files.values())

    @property
    def ended_s(self) -> float:
        return max(file.ended_t for file in self.files.values())

    def sizes(self) -> dict[str, int | None]:
        """By path; for a folder that several ranks saved to, the largest size reported."""
        sizes: dict[str, int | None] = {}
        for (_, path), file in self.files.items():
            known = [size for size in (sizes.get(path), file.size_bytes) if size is not None]
            sizes[path] = max(known, default=None)
        return sizes

    @property
    def size_bytes(self) -> int | None:
        """Total of all known sizes; None without any."""
        known = [size for size in self.sizes().values() if size is not None]
        return sum(known) if known else None

    def largest(self) -> tuple[int, SavedFile]:
        """(rank, its file); the first rank's if several are equal."""
        (rank, _), file = max(
            self.files.items(), key=lambda item: (item[1].size_bytes or 0, -item[0][0])
        )
        return rank, file

    def checkpoint(self) -> Checkpoint:
        """As shown: named after its largest file."""
        rank, file = self.largest()
        took_s = self.ended_s - self.began_s
        return Checkpoint(
            path=file.path,
            at=utc_from_boottime(self.ended_s),
            rank=rank,
            attempt=self.attempt,
            step=self.step,
            global_step=self.global_step,
            size_bytes=self.size_bytes,
            took_s=took_s if took_s >= 0 else None,
            files=len(self.sizes()),
            inode=file.inode,
            data_position=file.data_position,
        )


class SavedAt(msgspec.Struct, frozen=True):
    """The step of the run at which a file was saved."""

    attempt: int
    step: int
    inode: int | None = None
    mtime_ns: int | None = None

    def off_s(self, file: LoadedFile) -> float | None:
        """How far the times of change are apart; None if it is another file."""
        if self.mtime_ns is None or self.inode != file.inode:
            return None
        return abs(self.mtime_ns - file.mtime_ns) / 1e9


def step_loaded(loaded: Sequence[LoadedFile], saved: Sequence[SavedAt]) -> int | None:
    """The step of the run at which one of the loaded files was saved; None if none is known.

    A script may overwrite a file in place, so its time of change decides which save it is. Of
    several files, the one saved last counts: its last save may be unknown, because a process that
    is killed does not report what it has just saved.
    """
    found: list[tuple[int, int | None]] = []
    for file in loaded:
        near = [(off, one.step) for one in saved if (off := one.off_s(file)) is not None]
        if near:
            off_s, step = min(near)
            found.append((file.mtime_ns, step if off_s <= WRITTEN_WITHIN_S else None))
    return max(found, key=lambda item: item[0])[1] if found else None


def was_saved(loaded: Sequence[LoadedFile], saved: Sequence[SavedAt]) -> bool:
    """Whether one of the loaded files was saved, at whatever step."""
    return not {one.inode for one in loaded}.isdisjoint(one.inode for one in saved)


class SaveMemory(msgspec.Struct):
    """State for the next supervisor, in addition to the last checkpoint."""

    ended_s: float | None = None
    """When the last checkpoint was complete."""
    largest_bytes: int = 0
    saved_at: list[SavedAt] = []
    heard: dict[int, float] = {}
    """By rank, when the last file that it reported was complete."""


class CheckpointBook:
    """Tracks the last checkpoint across attempts.

    Args:
        finder: finds renamed files.
    """

    def __init__(self, finder: Finder | None = None) -> None:
        self.last: Checkpoint | None = None
        self._finder = finder or Finder()
        self._memory = SaveMemory()
        self._gathered: _Gathered | None = None
        """The files saved last, whether or not they form a checkpoint."""
        self._shown: _Gathered | None = None
        """The files of `last`."""
        self._reported = True
        self._unreported = 0
        self._reported_s = 0.0
        self._reports = 0
        self._began: tuple[int, int | None] = (0, 0)
        """(present attempt, step of the run at which it started)."""

    # -- reports ------------------------------------------------------------------------------

    def saved(
        self, file: SavedFile, *, rank: int, attempt: int, global_step: int | None = None
    ) -> Checkpoint | None:
        """Process a probe's report of the last file saved; returns the checkpoint if it is new.

        Probes repeat reports, and other ranks may add files to the checkpoint later, which updates
        `last`.
        """
        if file.ended_t <= self._memory.heard.get(rank, 0.0):
            return None
        self._memory.heard[rank] = file.ended_t
        gathered = self._gathered
        if gathered is None or not gathered.takes(file, rank, attempt):
            gathered = self._gathered = _Gathered(attempt, file.steps)
        gathered.add(rank, file, global_step)
        if not self._counts(gathered):
            return None
        self._memory.largest_bytes = max(self._memory.largest_bytes, gathered.size_bytes or 0)
        self.last, self._memory.ended_s = self._placed(gathered.checkpoint()), gathered.ended_s
        self._remember(self.last, gathered)
        self._follow_renames(self.last, 0.0)
        if gathered is self._shown:
            return None
        self._shown = gathered
        self._unreported += not self._reported
        self._reported = False
        self._reported_s = self._reported_s or file.ended_t
        return self.last

    def began(self, began: int | None, attempt: int) -> None:
        """Set the step of the run at which an attempt started; None if unknown."""
        self._began = (attempt, began)
        if self.last is not None and self.last.attempt == attempt and began is not None:
            placed = self._placed(self.last)
            if placed is not self.last and self._shown is not None:
                self._remember(placed, self._shown)
            self.last = placed

    def run_steps(self, before_attempt: int) -> list[int]:
        """The steps of the run that earlier attempts saved."""
        known = {one.step for one in self._memory.saved_at if one.attempt < before_attempt}
        last = self.last
        if last is not None and (last.attempt is None or last.attempt < before_attempt):
            known |= {step for step in (run_step(last),) if step is not None}
        return sorted(known)

    def _placed(self, made: Checkpoint) -> Checkpoint:
        """Add the step of the run, if it was not reported but can be computed."""
        attempt, began = self._began
        if made.attempt == attempt and made.global_step is None and None not in (made.step, began):
            made = replace(made, global_step=(began or 0) + (made.step or 0))
        return made

    def _remember(self, made: Checkpoint, files: _Gathered) -> None:
        """Keep the step of a checkpoint beside what identifies its file."""
        if made.attempt is None or made.global_step is None:
            return
        file, place = files.largest()[1], (made.attempt, made.global_step)
        others = [one for one in self._memory.saved_at if (one.attempt, one.step) != place]
        new = SavedAt(*place, file.inode, file.mtime_ns)
        self._memory.saved_at = [*others, new][-REMEMBERED:]

    @property
    def saved_at(self) -> list[SavedAt]:
        """The known saves of all attempts."""
        return self._memory.saved_at

    def _counts(self, gathered: _Gathered) -> bool:
        if self.last is not None and any(path == self.last.path for _, path in gathered.files):
            return True
        size = gathered.size_bytes
        return size is None or size >= LEAST_SHARE * self._memory.largest_bytes

    def report(self, now_s: float, *, at_once: bool = False) -> CheckpointSaved | None:
        """The event of the last checkpoint, once it is complete.

        Args:
            now_s: CLOCK_BOOTTIME.
            at_once: do not wait for more files, since there will be none.
        """
        last, ended_s = self.last, self._memory.ended_s
        if last is None or ended_s is None:
            return None
        self._follow_renames(last, now_s - ended_s)
        is_complete = now_s - ended_s >= SETTLED_S
        is_due = now_s - self._reported_s >= REPORTED_EVERY_S
        if self._reported or not (
            at_once
            or (is_complete and self._reports < REPORTED_AT_ONCE)
            or (is_due and (is_complete or self._unreported > 0))
        ):
            return None
        self._reported, self._reported_s = True, now_s
        self._reports += 1
        others, self._unreported = self._unreported, 0
        last = self.last or last
        ranks = {rank for rank, _ in self._shown.files} if self._shown is not None else set()
        return CheckpointSaved(
            attempt=last.attempt, checkpoint=last, ranks=max(1, len(ranks)), more_before=others
        )

    def _follow_renames(self, last: Checkpoint, age_s: float) -> None:
        answer = self._finder.answer()
        if answer is not None and answer[0] == last.path != answer[1]:
            self.last = last = replace(last, path=answer[1])
        if last.inode is not None and age_s < RENAMED_WITHIN_S:
            self._finder.ask(last.path, last.inode)

    # -- cost of a failure -------------------------------------------------------------------------

    def work_lost(
        self, attempt: int, steps: int | None, lived_s: float, now_s: float | None = None
    ) -> WorkLost:
        """The work lost if an attempt fails now.

        Args:
            attempt: its number.
            steps: the highest number of steps of any rank in it; None if unknown.
            lived_s: how long it ran.
            now_s: CLOCK_BOOTTIME; the present time by default.
        """
        last = self.last
        if last is None or last.attempt != attempt:
            return WorkLost(steps, lived_s if steps else None, None, last)
        lost = None if steps is None or last.step is None else max(0, steps - last.step)
        seconds = None
        if self._memory.ended_s is not None:
            now_s = boottime_s() if now_s is None else now_s
            seconds = min(lived_s, max(0.0, now_s - self._memory.ended_s))
        return WorkLost(lost, seconds, last)

    # -- across supervisors ------------------------------------------------------------

    def remember(self) -> SaveMemory:
        """What a restarted supervisor restores besides `last`."""
        return self._memory

    def learn(self, saved: Checkpoint | None) -> None:
        """Process another node's last checkpoint, reported by its own book.

        Clocks differ between nodes, so the attempt decides first.
        """
        last = self.last
        if saved is not None and (
            last is None or (saved.attempt or 0, saved.at) >= (last.attempt or 0, last.at)
        ):
            self.last = saved

    def recall(self, last: Checkpoint | None, memory: SaveMemory) -> None:
        """Restore the state of an earlier supervisor."""
        self.last, self._memory = last, memory
        size = 0 if last is None else last.size_bytes or 0
        self._memory.largest_bytes = self._memory.largest_bytes or size


MOST_ENTRIES = 10_000
"""Maximum number of entries of a folder to examine."""


def locate(path: str, inode: int) -> str:
    """The present path of the file or folder with that inode, which was written as `path`.

    Searched for in its folder. Returns `path` if it is not found, because it was deleted, moved
    elsewhere, or cannot be searched for.
    """
    try:
        if os.path.exists(path) and os.stat(path).st_ino == inode:  # noqa: PTH110, PTH116
            return path
        with os.scandir(os.path.dirname(path)) as entries:  # noqa: PTH120 - like scandir's paths
            for entry in itertools.islice(entries, MOST_ENTRIES):
                if entry.inode() == inode:
                    return entry.path
    except (OSError, ValueError):
        pass
    return path


class Finder:
    """Searches for saved files in a thread, one at a time. A thread that hangs is abandoned."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._answer: tuple[str, str] | None = None

    def ask(self, path: str, inode: int) -> None:
        """Search for a file, unless a search is in progress."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._thread = threading.Thread(target=self._search, args=(path, inode), daemon=True)
        self._thread.start()

    def _search(self, path: str, inode: int) -> None:
        self._answer = path, locate(path, inode)

    def answer(self) -> tuple[str, str] | None:
        """(requested path, present path), once; None before."""
        found, self._answer = self._answer, None
        return found
