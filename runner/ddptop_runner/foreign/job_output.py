"""The outputs of one foreign job and the files it logs to: found, followed, and read."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator

from ddptop_runner.foreign.output import (
    Finder,
    Output,
    Pane,
    PaneReader,
    appends,
    neighbors_of,
    open_log,
)
from ddptop_runner.foreign.types import ForeignJob
from ddptop_runner.host import procs
from ddptop_runner.reading.progress.text_watch import LogStream
from ddptop_runner.reading.text.parser import LossParser, Reading
from ddptop_runner.store.log_clean import LineCleaner

KEPT_LINES = 2000
CLOSE_TAIL_BYTES = 256 * 1024
"""How far back a log is read whose job is followed: never the whole of a large one."""
CLOSE_READ_BYTES = 512 * 1024
"""Of one output in one look."""
SEEN_TAIL_BYTES = 16 * 1024
"""The same of a job that is not followed."""
MAX_SOURCES = 256
PANE_EVERY_S = 2.0
SEEN_PANE_EVERY_S = 10.0
FIND_EVERY_S = 10.0
SEEN_FIND_EVERY_S = 30.0


class Source:
    """One place that output goes to."""

    def __init__(self, output: Output, closely: bool) -> None:
        """Raises OSError where the file cannot be opened any more."""
        self.output = output
        self.ranks: tuple[int, ...] = ()
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.count = 0
        """Lines that ever went into `lines`."""
        self.file = LogStream(open_log(output.file)) if output.file is not None else None
        self.pane = PaneReader(output.pane) if output.pane is not None else None
        self.read_at_s = 0.0
        self._parser = LossParser()
        """Of a pane."""
        self._cleaner: LineCleaner | None = None
        self._first = True
        self._earlier = output.file is None or appends(output.file)
        """Whether its first content may be of an earlier run, as in a pane."""
        self._tail_bytes = CLOSE_TAIL_BYTES if closely else SEEN_TAIL_BYTES

    @property
    def partial(self) -> str:
        """The line that has not ended."""
        if self.pane is not None:
            return self.pane.last
        return self._cleaner.partial if self._cleaner is not None else ""

    def follow(self) -> None:
        """Keep lines from now on, beginning with the last ones."""
        if self.file is None or self._cleaner is not None:
            return
        self._cleaner = LineCleaner()
        self._tail_bytes = CLOSE_TAIL_BYTES
        if not self._first:
            log = self.file.log
            start = max(0, log.position - CLOSE_TAIL_BYTES)
            text = log.between(start, log.position)
            self._clean(text[text.find(b"\n") + 1 :] if start else text)
        self.file.on_text = self._clean

    def read(self, max_bytes: int) -> tuple[list[Reading], bool, int]:
        """(readings, whether they were written since the last read, how much was read)."""
        fresh, self._first = not self._first, False
        if self.pane is not None:
            readings, size = self._read_pane(self.pane), 0
        else:
            assert self.file is not None
            readings, size = self.file.read(min(max_bytes, self._tail_bytes))
            if not fresh:
                # a bar at its end that rests is as old as the rest
                readings += self.file.parser.settle()
        return ([] if self._earlier and not fresh else readings), fresh, size

    def _read_pane(self, reader: PaneReader) -> list[Reading]:
        lines = reader.read()
        if lines is None:
            return []
        self._keep(lines)
        readings = self._parser.feed("".join(f"{line}\n" for line in lines).encode())
        if reader.last:
            readings += self._parser.peek(reader.last.encode())
        return readings

    def _clean(self, text: bytes) -> None:
        assert self._cleaner is not None
        self._keep(self._cleaner.feed(text))

    def _keep(self, lines: list[str]) -> None:
        self.lines.extend(lines)
        self.count += len(lines)

    def close(self) -> None:
        """Let go of the file."""
        if self.file is not None:
            self.file.log.close()


class JobOutput:
    """The outputs of one job. Close it."""

    def __init__(self, panes_by_tty: Callable[[ForeignJob], dict[str, Pane]]) -> None:
        self._panes = panes_by_tty
        self._sources: dict[object, Source] = {}
        self._of: dict[tuple[int | None, int], Output] = {}
        """By (rank, descriptor); rank None is the launcher."""
        self._pids: dict[int | None, int] = {}
        """Whose descriptors these are."""
        self._find_at_s = 0.0
        self._processes: tuple[tuple[int, int], ...] = ()
        self._closely = False
        self.shared_default = False
        """Whether a line without a rank came from an output of several ranks."""

    def due(self, job: ForeignJob, now_s: float) -> bool:
        """Whether it is time to find out again where the outputs go."""
        return now_s >= self._find_at_s or self._processes != _processes(job)

    def find(self, job: ForeignJob, now_s: float, closely: bool) -> None:
        """Find out where the outputs go; what goes where it went is read on."""
        self._find_at_s = now_s + (FIND_EVERY_S if closely else SEEN_FIND_EVERY_S)
        self._processes = _processes(job)
        pids = [*job.launcher_pids, *(rank.pid for rank in job.ranks)]
        neighbors = functools.cache(lambda: neighbors_of(pids))
        finder = Finder(neighbors, functools.cache(lambda: self._panes(job)), job.launcher_pids)
        before, pids_before = self._of, self._pids
        self._of, self._pids = {}, dict(_writers(job))
        for rank, pid in self._pids.items():
            for fd in (1, 2):
                found = finder.find(pid, fd)
                known = before.get((rank, fd)) if pids_before.get(rank) == pid else None
                if found.key is None and known is not None and procs.is_ending(pid):
                    found = known  # its last words are still to be read
                self._of[rank, fd] = found
        self._open(closely)

    def _open(self, closely: bool) -> None:
        ranks: dict[object, dict[int, None]] = {}
        outputs: dict[object, Output] = {}
        for (rank, _), output in self._of.items():
            if output.key is not None and len(outputs) < MAX_SOURCES:
                outputs.setdefault(output.key, output)
                ranks.setdefault(output.key, {})
                if rank is not None:
                    ranks[output.key][rank] = None
        for key in [key for key in self._sources if key not in outputs]:
            self._sources.pop(key).close()
        for key, output in outputs.items():
            if key not in self._sources:
                try:
                    self._sources[key] = Source(output, closely)
                except OSError:
                    continue
            self._sources[key].ranks = tuple(ranks[key])
        if self._closely:
            self.follow()

    def follow(self) -> None:
        """Keep the lines of every output from now on."""
        self._closely = True
        for source in self._sources.values():
            source.follow()

    def read(
        self, now_s: float, budget: int, may_capture: bool
    ) -> tuple[list[tuple[Source, Reading, bool]], int, bool]:
        """What is new: (source, reading, whether it was written since the first look) of each.

        And how many bytes were read, and whether anything was written since the last look.
        """
        found: list[tuple[Source, Reading, bool]] = []
        used, grew = 0, False
        for source in self._sources.values():
            if source.pane is not None:
                wait_s = PANE_EVERY_S if self._closely else SEEN_PANE_EVERY_S
                if not may_capture or now_s < source.read_at_s + wait_s:
                    continue
                may_capture = self._closely
            elif used >= budget:
                continue
            source.read_at_s = now_s
            count, partial = source.count, source.partial
            readings, fresh, size = source.read(budget - used)
            used += size
            grew |= fresh and (size > 0 or (count, partial) != (source.count, source.partial))
            found += [(source, one, fresh) for one in readings]
        return found, used, grew

    def rank_of(self, source: Source, reading: Reading, job: ForeignJob) -> int | None:
        """Whose reading it is; None if another host's rank's, or if the rank's own output has it.

        A launcher can both keep what its ranks write and hand it on.
        """
        rank = self._named(source, reading, job)
        if rank is None or rank in source.ranks or next(self._keys_of(rank), None) is None:
            return rank
        return None

    def _named(self, source: Source, reading: Reading, job: ForeignJob) -> int | None:
        if len(source.ranks) == 1:
            return source.ranks[0]
        here = [rank.rank for rank in job.ranks]
        if reading.rank is not None and len(here) > 1:
            return reading.rank if reading.rank in here else None
        if reading.local_rank is not None:
            by_local = {rank.local_rank: rank.rank for rank in job.ranks}
            return by_local.get(reading.local_rank)
        self.shared_default |= len(here) > 1
        return min(source.ranks or here, default=None)

    @property
    def has_panes(self) -> bool:
        """Whether reading it asks tmux."""
        return any(source.pane is not None for source in self._sources.values())

    @property
    def written_at(self) -> float | None:
        """Unix seconds of the last write to a file that was seen."""
        files = [source.file for source in self._sources.values() if source.file is not None]
        return max((file.log.written_at for file in files), default=None)

    def sources_of(self, rank: int | None) -> list[Source]:
        """What a rank writes into, or the whole job for None; most telling first."""
        if rank is None:
            found = list(self._keys_of(None))
            found = found or [key for other in self._ranks() for key in self._keys_of(other)][:2]
        else:
            found = list(self._keys_of(rank)) or list(self._keys_of(None))
        return [self._sources[key] for key in dict.fromkeys(found) if key in self._sources]

    def _ranks(self) -> list[int]:
        return sorted({rank for rank, _ in self._of if rank is not None})

    def _keys_of(self, rank: int | None) -> Iterator[object]:
        for fd in (1, 2):
            output = self._of.get((rank, fd))
            if output is not None and output.key in self._sources:
                yield output.key

    def words(self) -> str:
        """Where the job's output goes and, if it cannot be read, why."""
        if not self._of:
            return "not determined yet"
        first = self._ranks()[:1]
        for rank in [*first, None]:
            output, errors = self._of.get((rank, 1)), self._of.get((rank, 2))
            if output is None:
                continue
            text = output.words
            if errors is not None and errors.words != text and not _same_place(errors, output):
                text += f"; stderr: {errors.words}"
            others = [self._of[key] for key in self._of if key[1] == 1 and key[0] is not None]
            if rank is not None and not all(_same_place(other, output) for other in others):
                text = f"rank {rank}: {text}"
            if self.shared_default and rank is not None:
                text += f"; lines without a rank are attributed to rank {rank}"
            return text
        return "unknown"

    def close(self) -> None:
        """Let go of every file."""
        for source in self._sources.values():
            source.close()
        self._sources.clear()


def _same_place(one: Output, other: Output) -> bool:
    return one.words == other.words if one.key is None else one.key == other.key


def _processes(job: ForeignJob) -> tuple[tuple[int, int], ...]:
    return tuple((rank.pid, rank.start_ticks) for rank in job.ranks)


def _writers(job: ForeignJob) -> Iterator[tuple[int | None, int]]:
    """(rank, pid) of whoever's output counts, the launcher first."""
    ranks = {rank.pid for rank in job.ranks}
    for pid in (job.root_pid, *job.launcher_pids):
        if pid not in ranks:
            yield None, pid
            break
    for rank in job.ranks:
        yield rank.rank, rank.pid
