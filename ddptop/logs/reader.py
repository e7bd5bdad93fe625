"""Reads logs for the log screen in its own thread, so that a search does not delay the rest.

Requests are processed between the parts of a search, so that scrolling works while it runs.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

import msgspec
from textual.message import Message

from ddptop.logs.messages import (
    CollectorFailed,
    Level,
    LogGrew,
    LogMissing,
    LogRead,
    LogRow,
    PageRead,
    Placement,
    Places,
    PlacesRead,
    SearchMoved,
)
from ddptop.logs.search import LogPattern
from ddptop.logs.tail import FedLines, RankTails, search_rows
from ddptop.logs.window import FileLog, Page
from ddptop_runner.base import units
from ddptop_runner.base.paths import LAUNCHER, RunFolder
from ddptop_runner.jobs.far_files import FAR, Far
from ddptop_runner.store import logs

POLL_S = 0.5
"""Each poll with a new line redraws the whole view."""
SLOW_POLL_S = 2.0
MOST_ATTEMPTS = 10_000
CLOCK_S = 0.02
"""Clocks that differ by less count as equal."""
PLACES_EVERY_S = 1.0
PAGE_ROWS = 200
MORE_ROWS = 2000
"""Rows read past those shown, to keep up with a rank that prints fast."""
SLICE_S = 0.02
"""How often a search yields the thread and the interpreter."""
REPORT_S = 0.1
SLOW_S = 0.7
"""If reading the ends of many logs takes longer, a message says so."""
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
    each: bool = False
    """Whether to show each rank's line, even if identical."""
    until: int | None = None
    """The length to which the log is limited, for a past moment."""


class LogReader:
    """A thread with one log open.

    Args:
        folder: the job's; None for output passed to `feed`.
        deliver: receives messages; called from the thread.
        polls: whether to check for new lines periodically, not only when `poll` is called.
    """

    def __init__(
        self,
        folder: RunFolder | None,
        deliver: Callable[[Message], object],
        *,
        polls: bool = True,
    ) -> None:
        self._folder, self._polls = folder, polls
        self._deliver = deliver
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)
        self.is_live = True
        """Whether more lines are expected; if not, the log is polled less often."""
        self._generation = 0
        self._view = LogView()
        self._file: FileLog | None = None
        self._tails: RankTails | None = None
        self._fed = FedLines() if folder is None else None
        self._rows: tuple[LogRow, ...] = ()
        self._loading: Iterator[None] | None = None
        self._search: Iterator[SearchMoved] | None = None
        self._reported_s = 0.0
        self._bounds = (0, 0)
        self._places = Places()
        self._places_at = 0.0
        self._missing = False
        self._shown_missing = (0, "")
        self._opened_at = 0.0
        self._is_slow = False
        """Whether the message about slow reading was shown."""
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
        self._asked.put(None)
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    def open(self, generation: int, view: LogView, share: float | None = None) -> None:
        """Read a log at its end, or at a fraction of its length."""
        self._asked.put(lambda: self._open(generation, view, share))

    def more(self, generation: int, position: int, step: int) -> None:
        """Read lines before (-1) or after (1) an offset at which a line starts."""
        self._asked.put(lambda: self._more(generation, position, step))

    def jump(self, generation: int, share: float | None) -> None:
        """Read lines at a fraction of the log's length; None for its end."""
        self._asked.put(lambda: self._jump(generation, share))

    def find(
        self, generation: int, number: int, pattern: LogPattern, position: int | None, step: int
    ) -> None:
        """Search from a line, excluding it; None for the nearest end."""
        self._asked.put(lambda: self._find(generation, number, pattern, position, step))

    def cancel(self) -> None:
        """Cancel the search."""
        self._asked.put(self._cancel)

    def poll(self) -> None:
        """Check for new lines."""
        self._asked.put(self._poll)

    def feed(self, read: LogRead) -> None:
        """Add lines of output that another component reads."""
        self._asked.put(lambda: self._feed(read))

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                try:
                    asked = self._asked.get(timeout=self._pause_s())
                except queue.Empty:
                    asked = self._work
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
        if self._search is not None or self._loading is not None:
            return 0.001
        if not self._polls:
            return None
        return POLL_S if self.is_live else SLOW_POLL_S

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = self._tails = self._search = self._loading = None

    def _work(self) -> None:
        """Run a slice of a long task, or poll for more lines."""
        until = time.monotonic() + SLICE_S
        if self._loading is not None:
            if not self._is_slow and time.monotonic() - self._opened_at > SLOW_S:
                self._is_slow = True
                ranks = units.plural(len(self._places.ranks), "rank")
                words = f"reading the last lines from {ranks}..."
                self._deliver(
                    LogMissing(self._generation, words, "they will appear here when ready")
                )
            while self._loading is not None and time.monotonic() < until:
                if next(self._loading, self) is self:
                    self._loading = None
                    self._send_all()
        elif self._search is not None:
            self._search_on(until)
        else:
            self._poll()

    def _poll(self) -> None:
        if self._folder is None or self._loading is not None:
            return
        if time.monotonic() - self._places_at >= PLACES_EVERY_S:
            self._look_for_places()
        if self._missing:
            self._open(self._generation, self._view, None)
        elif self._file is not None and (bounds := self._file.bounds()) != self._bounds:
            if bounds[1] < self._bounds[1]:  # truncated by someone: what remains is new
                self._jump(self._generation, None)
                return
            self._bounds = bounds
            self._deliver(LogGrew(self._generation, *bounds))
        elif self._tails is not None and self._tails.poll():
            self._send_all()

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
        is_other = self._file is not None and self._file.is_replaced()
        if places != self._places:
            self._places = places
            if self._tails is not None and not has_launcher and attempt == self._opened:
                for rank in own:
                    self._tails.add(rank, self._folder.log_file(attempt, rank))
            self._deliver(PlacesRead(self._generation, places))
        if self._file is not None and far is not None and not was_known:
            is_other = is_other or self._file.bounds()[0] > 0  # its note says where the rest is
        if self._file is not None and is_other and attempt == self._opened:
            self._missing = True  # to be opened again

    def _miss(self, words: str, remedy: str) -> None:
        self._close()
        self._missing = True
        if self._shown_missing != (self._generation, words):
            self._shown_missing = (self._generation, words)
            self._deliver(LogMissing(self._generation, words, remedy))

    # --- a log ----------------------------------------------------------------------------------

    def _open(self, generation: int, view: LogView, share: float | None) -> None:
        before, self._view, self._generation = self._view, view, generation
        if self._fed is not None:
            if before.whose != view.whose:
                self._fed = FedLines()
            self._send_all()
            return
        self._places_at = 0.0
        self._look_for_places()
        same = (before.whose, before.attempt) == (view.whose, view.attempt) and not self._missing
        same = same and self._opened == self._places.attempt
        if same and self._tails is not None:
            if before.alike != view.alike:
                self._loading = self._tails.set_alike(view.alike)
                self._is_slow = True  # until then, view and position remain
            else:
                self._send_all()
            return
        self._close()
        self._missing = False
        self._opened = self._places.attempt
        self._reopen(view)
        if self._file is not None:
            self._jump(generation, share)

    def _reopen(self, view: LogView) -> None:
        assert self._folder is not None
        places, folder = self._places, self._folder
        if not folder.path.exists():
            self._miss("this job no longer exists", "the job and its logs were removed")
            return
        if not places.ranks and not places.has_launcher:
            self._miss("no output yet", "new lines appear here automatically")
            return
        whose = view.whose
        if whose is None and not places.has_launcher:
            far = self._far
            clocks = {} if far is None else dict(zip(far.ranks, far.clocks, strict=True))
            ahead_s = {r: by for r, by in clocks.items() if abs(by) >= CLOCK_S}
            self._tails = RankTails(
                {r: folder.log_file(places.attempt, r) for r in places.ranks}, ahead_s
            )
            self._loading = self._tails.load()
            self._opened_at, self._is_slow = time.monotonic(), False
            return
        if whose is None or places.has_launcher:
            whose = LAUNCHER
        far, attempt = self._far, places.attempt
        elsewhere = None if far is None else far.left_there(attempt, whose)
        try:
            path = folder.log_file(attempt, whose)
            self._file = FileLog(path, view.until, elsewhere)
        except FileNotFoundError:
            if far is not None and self.is_live:
                self._miss_far(far, whose)
                return
            who = "the launcher" if whose == LAUNCHER else f"rank {whose}"
            if elsewhere is None:
                self._miss(f"{who} has no log for attempt {attempt}", "")
            else:
                self._miss(f"{who}'s log of attempt {attempt} was not fetched", f"it {elsewhere}")

    def _miss_far(self, far: Far, rank: int) -> None:
        """Show where a log is that has not been fetched, and why."""
        host = dict(zip(far.ranks, far.hosts, strict=True)).get(rank, "its host")
        remedy = next((why for why in far.silent if host in why), None)
        self._miss(f"fetching the log from {host}...", remedy or "it will appear here when ready")

    def _feed(self, read: LogRead) -> None:
        if self._fed is not None:
            self._fed.take(read)
            self._send_all()

    def _send_all(self) -> None:
        """Send all lines, if they are in memory."""
        view = self._view
        limit = 0
        partial: LogRow | None = None
        if self._tails is not None:
            rows = self._tails.rows(view.least, each=view.each)
            partial = None if view.least else self._tails.partial()
            limit = self._tails.limit
        elif self._fed is not None:
            rows, partial = self._fed.rows(view.least)
        else:
            return
        self._rows = rows
        self._deliver(PageRead(self._generation, "all", rows, partial=partial, limit=limit))

    def _deliver_page(self, placement: Placement, page: Page, at: int | None = None) -> None:
        if self._file is None:
            return
        self._bounds = self._file.bounds()
        self._deliver(
            PageRead(
                self._generation,
                placement,
                page.rows,
                page.low,
                page.high,
                page.partial,
                *self._bounds,
                at=at,
            )
        )

    def _more(self, generation: int, position: int, step: int) -> None:
        if generation != self._generation or self._file is None:
            return
        if step < 0:
            page = self._file.page_back(position, PAGE_ROWS, self._view.least)
            self._deliver_page("before", page)
        else:
            page = self._file.page_on(position, MORE_ROWS, self._view.least)
            self._deliver_page("behind", page)

    def _jump(self, generation: int, share: float | None) -> None:
        if generation != self._generation or self._file is None:
            return
        first, end = self._file.bounds()
        if share is None:
            self._deliver_page("replace", self._file.page_back(end, PAGE_ROWS, self._view.least))
            return
        at = self._file.snap(first + int(min(1.0, max(0.0, share)) * (end - first)))
        self._deliver_around(at)

    def _deliver_around(self, at: int) -> None:
        assert self._file is not None
        least = self._view.least
        back = self._file.page_back(at, PAGE_ROWS // 2, least)
        on = self._file.page_on(at, PAGE_ROWS, least)
        page = msgspec.structs.replace(on, rows=(*back.rows, *on.rows), low=back.low)
        self._deliver_page("replace", page, at)

    # --- search ---------------------------------------------------------------------------------

    def _find(
        self, generation: int, number: int, pattern: LogPattern, position: int | None, step: int
    ) -> None:
        if generation != self._generation:
            return
        if self._file is not None:
            self._search = self._in_file(number, pattern, position, step)
        else:
            self._search = self._in_rows(number, pattern, position, step)
        self._reported_s = 0.0

    def _cancel(self) -> None:
        self._search = None

    def _search_on(self, until: float) -> None:
        moved: SearchMoved | None = None
        while self._search is not None:
            moved = next(self._search, None)
            if moved is None or moved.is_over:
                self._search = None
            if time.monotonic() >= until:
                break
        if moved is None:
            return
        if moved.is_over and moved.found is not None and self._file is not None:
            self._deliver_around(moved.found.at)
        if moved.is_over or time.monotonic() - self._reported_s > REPORT_S:
            self._reported_s = time.monotonic()
            self._deliver(moved)

    def _in_file(
        self, number: int, pattern: LogPattern, position: int | None, step: int
    ) -> Iterator[SearchMoved]:
        assert self._file is not None
        first, end = self._file.bounds()
        start = position if position is not None else end if step < 0 else first
        whole = max(1, end - start if step > 0 else start - first)
        for one in self._file.search(pattern, start, step, self._view.least):
            share = min(1.0, abs(one.at - start) / whole)
            yield SearchMoved(self._generation, number, share, one.is_over, one.found)

    def _in_rows(
        self, number: int, pattern: LogPattern, position: int | None, step: int
    ) -> Iterator[SearchMoved]:
        for one in search_rows(self._rows, pattern, position, step):
            share = one.at / max(1, len(self._rows))
            yield SearchMoved(self._generation, number, share, one.is_over, one.found)
