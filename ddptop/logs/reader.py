"""Reads logs in a thread of its own, so that neither a search nor a slow disk delays the rest.

Requests are processed between the parts of a search, so that scrolling works while it runs.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
from textual.message import Message

from ddptop.logs.file import FileLog
from ddptop.logs.memory import FedLog, MemoryLog, MergedLog
from ddptop.logs.messages import (
    CollectorFailed,
    Level,
    LogMissing,
    LogRead,
    LogRow,
    Page,
    PageRead,
    Places,
    PlacesRead,
)
from ddptop.logs.search import LogPattern
from ddptop_runner.base.paths import LAUNCHER, RunFolder
from ddptop_runner.jobs.far_files import FAR, Far
from ddptop_runner.store import logs

POLL_S = 0.5
"""Each poll with a new line redraws the whole view."""
SLOW_POLL_S = 2.0
MOST_ATTEMPTS = 10_000
PLACES_EVERY_S = 1.0
MANY_RANKS = 64
"""Merging more may take a while, which a message says."""
MAX_COUNTED = 1000
"""Maximum number of matches to count."""
SLICE_S = 0.02
"""How often a search yields the thread and the interpreter."""
REPORT_S = 0.1
JOIN_S = 2.0


class LogView(msgspec.Struct, frozen=True):
    """A log and how to read it."""

    whose: int | None = None
    """A rank, `model.LAUNCHER`, or None for all ranks."""
    attempt: int | None = None
    """None is the latest."""
    least: Level = ""
    """The minimum level."""
    alike: bool = False
    """Whether to merge lines that differ only in ranks and times."""
    until: int | None = None
    """The length to which the log is limited, for a past moment."""


@dataclass
class SearchMoved(Message):
    """A search has progressed or ended."""

    generation: int
    number: int
    """Number of the search."""
    share: float = 1.0
    """Fraction of the log that has been searched."""
    is_over: bool = False
    found: LogRow | None = None
    has_wrapped: bool = False
    """Whether it continued from the other end of the log."""
    index: int | None = None
    """The number of this match, from 1; None if it is beyond those counted."""
    count: int = 0
    """How many lines match; at most `MAX_COUNTED` are counted."""


class LogReader:
    """A thread with one log open.

    Args:
        folder: the job's; None for output passed to `feed`.
        deliver: receives messages; called from the thread.
        polls: whether to check for new lines periodically, not only when `poll` is called.
    """

    def __init__(
        self, folder: RunFolder | None, deliver: Callable[[Message], object], *, polls: bool = True
    ) -> None:
        self._folder, self._polls = folder, polls
        self._deliver = deliver
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)
        self.is_live = True
        """Whether more lines are expected; if not, the log is polled less often."""
        self._generation = 0
        self._wanted = 0
        """The generation that was requested last."""
        self._view = LogView()
        self._log: FileLog | MemoryLog | None = FedLog() if folder is None else None
        self._page = Page()
        """The lines that the pager has."""
        self._search: Iterator[SearchMoved] | None = None
        self._reported_s = 0.0
        self._places = Places()
        self._places_at = 0.0
        self._missing = ""
        """Why there is no log, as shown."""
        self._far: Far | None = None
        """For a job on several hosts."""
        self._opened = -1
        """The attempt whose logs are open."""

    # --- requests from the interface -------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, waiting at most two seconds in case a disk hangs."""
        self._wanted = -1
        self._asked.put(None)
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    def open(self, generation: int, view: LogView, position: int | None = None) -> None:
        """Read a log at its end, or around an offset."""
        self._wanted = generation
        self._asked.put(lambda: self._open(generation, view, position))

    def more(self, generation: int, step: int) -> None:
        """Read lines before (-1) or after (1) those read so far."""
        self._ask(
            generation, lambda log: self._show(log.extended(self._page, step, self._view.least))
        )

    def jump(self, generation: int, position: int | None) -> None:
        """Read the lines around an offset; None for the log's end."""
        self._ask(
            generation, lambda log: self._show(log.around(position, self._view.least), position)
        )

    def find(
        self, generation: int, number: int, pattern: LogPattern, row: LogRow | None, step: int
    ) -> None:
        """Search from a line, excluding it; None for the nearest end."""
        self._ask(
            generation, lambda log: self._begin(self._searched(log, number, pattern, row, step))
        )

    def cancel(self) -> None:
        """Cancel the search."""
        self._asked.put(lambda: self._begin(None))

    def poll(self) -> None:
        """Check for new lines."""
        self._asked.put(self._poll)

    def feed(self, read: LogRead) -> None:
        """Add lines of output that another component reads."""

        def feed() -> None:
            if isinstance(self._log, FedLog):
                self._log.take(read)
                self._show(self._log.around(None, self._view.least))

        self._asked.put(feed)

    def _ask(self, generation: int, act: Callable[[FileLog | MemoryLog], None]) -> None:
        """Act on the log, unless another one was requested since."""

        def ask() -> None:
            if generation == self._generation and self._log is not None:
                act(self._log)

        self._asked.put(ask)

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                try:
                    asked = self._asked.get(timeout=self._pause_s())
                except queue.Empty:
                    asked = self._poll if self._search is None else self._search_on
                if asked is None:
                    break
                try:
                    asked()
                except OSError as error:
                    self._miss("cannot read the log", error.strerror or str(error))
        except Exception as error:  # a defect here must end the program, not freeze what it shows
            self._deliver(CollectorFailed(error))
        finally:
            self._close()

    def _pause_s(self) -> float | None:
        if self._search is not None:
            return 0.001
        if not self._polls:
            return None
        return POLL_S if self.is_live else SLOW_POLL_S

    def _close(self) -> None:
        if self._log is not None:
            self._log.close()
        self._log = self._search = None

    def _show(self, page: Page, at: int | None = None) -> None:
        self._page = page
        self._deliver(PageRead(self._generation, page, at))

    def _poll(self) -> None:
        if self._folder is None:
            return
        if time.monotonic() - self._places_at >= PLACES_EVERY_S:
            self._look_for_places()
        if self._missing:
            self._open(self._generation, self._view, None)
        elif self._log is not None and (page := self._log.refreshed(self._page, self._view.least)):
            self._show(page)

    # --- available logs --------------------------------------------------------------------------

    def _look_for_places(self) -> None:
        self._places_at = time.monotonic()
        assert self._folder is not None
        was_known = self._far is not None
        self._far = far = FAR.want_log(self._folder, self._view.attempt, self._view.whose)
        attempts = tuple(logs.attempts(self._folder))
        if far is not None:
            attempts = tuple(sorted({*attempts, *range(min(far.attempt, MOST_ATTEMPTS) + 1)}))
        attempt = self._view.attempt
        if attempt is None:
            attempt = attempts[-1] if attempts else 0
        ranks = logs.ranks(self._folder, attempt)
        if far is not None and far.attempt == attempt:
            ranks = sorted({*ranks, *far.ranks})
        has_launcher = LAUNCHER in ranks
        own = tuple(rank for rank in ranks if rank != LAUNCHER)
        places = Places(attempts, attempt, own, has_launcher)
        if places != self._places:
            self._places = places
            if isinstance(self._log, MergedLog) and not has_launcher and attempt == self._opened:
                for rank in own:
                    self._log.add(rank, self._folder.log_file(attempt, rank))
            self._deliver(PlacesRead(self._generation, places))
        if isinstance(self._log, FileLog) and attempt == self._opened:
            # a dropped head gets a note that says where the rest is
            has_note = far is not None and not was_known and self._log.first > 0
            if has_note or self._log.is_replaced():
                self._missing = "replaced"  # to be opened again

    def _miss(self, words: str, remedy: str) -> None:
        self._close()
        if self._missing != words:
            self._missing = words
            self._deliver(LogMissing(self._generation, words, remedy))

    # --- a log ----------------------------------------------------------------------------------

    def _open(self, generation: int, view: LogView, position: int | None) -> None:
        before, self._view = self._view, view
        was_missing = self._missing
        if generation != self._generation:
            self._generation, self._search, self._missing = generation, None, ""
        if self._folder is None:
            if before.whose != view.whose:
                self._log = FedLog()
        else:
            self._look_for_places()
            is_same = msgspec.structs.replace(before, least=view.least) == view
            if was_missing or not is_same or self._opened != self._places.attempt or not self._log:
                self._close()
                self._opened = self._places.attempt
                self._log = self._opened_log(self._folder, self._places, view)
        if self._log is not None:
            self._missing = ""
            self._show(self._log.around(position, view.least), position)

    def _opened_log(
        self, folder: RunFolder, places: Places, view: LogView
    ) -> FileLog | MemoryLog | None:
        attempt, far, whose = places.attempt, self._far, view.whose
        if not folder.path.exists():
            self._miss("this job no longer exists", "the job and its logs were removed")
            return None
        if not places.ranks and not places.has_launcher:
            self._miss("no output yet", "new lines appear here automatically")
            return None
        if places.has_launcher:
            whose = LAUNCHER
        elif whose is None:
            paths = {rank: folder.log_file(attempt, rank) for rank in places.ranks}
            if len(paths) >= MANY_RANKS:
                words = f"reading the last lines from {len(paths):,} ranks..."
                self._deliver(
                    LogMissing(self._generation, words, "they will appear here when ready")
                )
            log = MergedLog(paths, alike=view.alike, is_stale=self._is_stale)
            return None if self._is_stale() else log
        elsewhere = None if far is None else far.left_there(attempt, whose)
        with contextlib.suppress(FileNotFoundError):
            return FileLog(folder.log_file(attempt, whose), view.until, elsewhere)
        who = "the launcher" if whose == LAUNCHER else f"rank {whose}"
        if far is not None and self.is_live:
            host = dict(zip(far.ranks, far.hosts, strict=True)).get(whose, "its host")
            remedy = next((why for why in far.silent if host in why), None)
            self._miss(
                f"fetching the log from {host}...", remedy or "it will appear here when ready"
            )
        elif elsewhere is not None:
            self._miss(f"{who}'s log of attempt {attempt} was not fetched", f"it {elsewhere}")
        else:
            self._miss(f"{who} has no log for attempt {attempt}", "")
        return None

    def _is_stale(self) -> bool:
        return self._wanted != self._generation

    # --- search ---------------------------------------------------------------------------------

    def _begin(self, search: Iterator[SearchMoved] | None) -> None:
        self._search = search

    def _search_on(self) -> None:
        """Search for a short while."""
        until = time.monotonic() + SLICE_S
        moved: SearchMoved | None = None
        while self._search is not None:
            moved = next(self._search, None)
            if moved is None or moved.is_over:
                self._search = None
            if moved is None or moved.found is not None or time.monotonic() >= until:
                break
        if moved is None:
            return
        if moved.is_over or moved.found or time.monotonic() - self._reported_s > REPORT_S:
            self._reported_s = time.monotonic()
            self._deliver(moved)

    def _searched(
        self,
        log: FileLog | MemoryLog,
        number: int,
        pattern: LogPattern,
        row: LogRow | None,
        step: int,
    ) -> Iterator[SearchMoved]:
        """Find the nearest match, continue from the other end if needed, and count all."""
        moved = functools.partial(SearchMoved, self._generation, number)
        least = self._view.least
        size, done = max(1, self._page.end - self._page.first), 0
        found: LogRow | None = None
        for start in (row, None) if row is not None else (None,):
            for part, rows in log.matches(pattern, start, step, least):
                done += part
                if rows:
                    found = rows[0]
                    break
                yield moved(share=min(1.0, done / size))
            has_wrapped = start is not row
            if found is not None:
                break
        if found is None:
            yield moved(is_over=True)
            return
        yield moved(found=found, has_wrapped=has_wrapped)
        places: list[int] = []
        for _, rows in log.matches(pattern, None, 1, least):
            places += [one.at for one in rows]
            if len(places) >= MAX_COUNTED:
                break
            yield moved()
        places = places[:MAX_COUNTED]
        index = places.index(found.at) + 1 if found.at in places else None
        yield moved(is_over=True, has_wrapped=has_wrapped, index=index, count=len(places))
