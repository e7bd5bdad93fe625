"""The supervisor's model of the current attempt: one record per rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ddptop_runner.host import procs
from ddptop_runner.job.rank_record import RankRecord
from ddptop_runner.judge.hangs.verdict import HangLook, RankProgress
from ddptop_runner.model.diagnose import RankExit
from ddptop_runner.model.probe_message import ProbeMessage
from ddptop_runner.model.snapshot import RankSample


class RankTable:
    """The records of the current attempt, by rank; iterating gives the ranks in their order.

    Attributes:
        launcher: of a job that is a command, what started its ranks; None otherwise. Its end is
            the attempt's.
        new: ranks that were met and not yet taken up; whoever does so empties it.
    """

    def __init__(self, world_size: int, started_boottime_s: float) -> None:
        self._started_s = started_boottime_s
        self._records = {
            rank: RankRecord(rank, rank, started_boottime_s) for rank in range(world_size)
        }
        self._rank_of_pid: dict[int, int] = {}
        self.launcher: RankRecord | None = None
        self.new: list[RankRecord] = []

    @property
    def has_begun(self) -> bool:
        """Whether any process of the attempt is known."""
        return any(record.process is not None for record in self.everyone())

    @property
    def world_size(self) -> int | None:
        """The number of ranks; None while that is not known."""
        return len(self._records)

    @property
    def was_restarted(self) -> bool:
        """Whether its ranks have taken the place of others within the attempt."""
        return False

    def __iter__(self) -> Iterator[RankRecord]:
        return iter(self._records.values())

    def __getitem__(self, rank: int) -> RankRecord:
        return self._records[rank]

    def get(self, rank: int) -> RankRecord | None:
        """The record of a rank, or of `model.LAUNCHER`; None where there is none."""
        return self._records.get(rank)

    def started(self, rank: int, local_rank: int, pid: int) -> RankRecord:
        """A rank's process exists; the record knows it from now on."""
        record = self._records.setdefault(rank, RankRecord(rank, local_rank, 0.0))
        record.local_rank = local_rank
        record.process = procs.identify(pid)
        self._rank_of_pid[pid] = rank
        return record

    def restore(self, sample: RankSample, pid: int) -> None:
        """A rank that was started under an earlier supervisor."""
        record = self.started(sample.rank, sample.local_rank, pid)
        record.restore(sample, pid)

    def of_pid(self, pid: int) -> RankRecord | None:
        """The rank whose own process this is."""
        return self.rank_of_pid(pid)

    def rank_of_pid(self, pid: int) -> RankRecord | None:
        """The rank whose own process this is, which may be the launcher as well."""
        rank = self._rank_of_pid.get(pid)
        return None if rank is None else self._records[rank]

    def hear(self, message: ProbeMessage, attempt: int | None) -> RankRecord | None:
        """Give a probe's message to its rank; None when it is of another attempt or nobody's.

        A process started by a rank (its own launcher, say) speaks for that rank by number.
        """
        record = self.of_pid(message.pid)
        if record is None:
            if message.attempt != attempt or message.rank is None:
                return None
            record = self._records.get(message.rank)
        if record is None or (record.exit is not None and message.attempt != attempt):
            return None
        record.hear(message)
        return record

    def everyone(self) -> list[RankRecord]:
        """The launcher, where there is one, and the ranks."""
        return [*self, *filter(None, [self.launcher])]

    def ranks_alive(self) -> list[RankRecord]:
        """Ranks that are started and not known to have ended."""
        return [record for record in self if record.alive]

    def alive(self) -> list[RankRecord]:
        """What the attempt lives in, and is not known to have ended: its ranks, or its launcher."""
        return self.ranks_alive()

    def exits(self) -> list[RankExit]:
        """The ends, as far as they are known, of what the attempt lives in."""
        return [record.exit for record in self if record.exit is not None]

    def progress(self, now_s: float) -> list[RankProgress]:
        """What the hang verdict looks at."""
        return [record.progress(now_s) for record in self]

    def note_quiet(self, looked: HangLook) -> None:
        """Keep what the hang watch says of each rank, for its state."""
        for record in self:
            record.quiet = record.rank in looked.quiet
            record.silent_because = looked.notes.get(record.rank)

    def note_peaks(self, samples: Iterable[RankSample]) -> None:
        """Keep the most device memory that each rank was seen with."""
        for sample in samples:
            record, used = self._records.get(sample.rank), sample.gpu_mem_used_bytes
            if record is not None and used is not None:
                record.gpu_mem_peak_bytes = max(record.gpu_mem_peak_bytes or 0, used)

    def most_steps(self) -> int | None:
        """Of any rank; None when no rank's probe was heard."""
        return max((record.steps or 0 for record in self if record.heard), default=None)

    def forget_loss_range(self) -> None:
        """Begin a new second: smallest and largest loss are since the previous snapshot."""
        for record in self:
            record.forget_loss_range()
