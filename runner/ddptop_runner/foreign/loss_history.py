"""The losses of a watched job in memory, of limited size, read like a history on disk.

Points are gathered into buckets of one second; when a series is full, buckets are joined in pairs.
"""

from __future__ import annotations

import math
from array import array

from ddptop_runner.store.history_reader import Series, bucket_width

MAX_POINTS = 32_768
"""Of all ranks of a job together: 1.6 MB."""
LEAST_POINTS = 512
"""Each series may have so many, however many ranks there are."""
MAX_SERIES = 4096


class _LossSeries:
    """One rank's losses in buckets of `width_s`, oldest first."""

    def __init__(self) -> None:
        self.width_s = 1
        self.t = array("q")
        self.low = array("d")
        self.total = array("d")
        self.number = array("l")
        self.high = array("d")
        self.last = array("d")
        self.nonfinite_t = array("q")

    def add(self, at_s: float, loss: float) -> None:
        bucket = int(at_s) // self.width_s * self.width_s
        if not math.isfinite(loss):
            if not self.nonfinite_t or self.nonfinite_t[-1] < bucket:
                self.nonfinite_t.append(bucket)
            return
        if self.t and bucket <= self.t[-1]:  # the same, or the clock was set back
            self._join(-1, loss, loss, loss, 1, loss)
            return
        self.t.append(bucket)
        self.low.append(loss)
        self.total.append(loss)
        self.number.append(1)
        self.high.append(loss)
        self.last.append(loss)

    def _join(
        self, at: int, low: float, total: float, high: float, number: int, last: float
    ) -> None:
        self.low[at] = min(self.low[at], low)
        self.total[at] += total
        self.number[at] += number
        self.high[at] = max(self.high[at], high)
        self.last[at] = last

    def widen(self) -> None:
        """Join buckets in pairs, so that about half as many remain."""
        old = self.__dict__.copy()
        width_s = self.width_s * 2
        self.__init__()  # type: ignore[misc]  # filled again below
        self.width_s = width_s
        rows = zip(
            old["t"], old["low"], old["total"], old["high"], old["number"], old["last"], strict=True
        )
        for t, low, total, high, number, last in rows:
            bucket = t // width_s * width_s
            if self.t and self.t[-1] == bucket:
                self._join(-1, low, total, high, number, last)
                continue
            self.t.append(bucket)
            self.low.append(low)
            self.total.append(total)
            self.number.append(number)
            self.high.append(high)
            self.last.append(last)
        for t in old["nonfinite_t"]:
            bucket = t // width_s * width_s
            if not self.nonfinite_t or self.nonfinite_t[-1] != bucket:
                self.nonfinite_t.append(bucket)

    def __len__(self) -> int:
        return max(len(self.t), len(self.nonfinite_t))

    def between(self, since: int, until: int, bucket_s: int) -> Series:
        found = Series(bucket_s=bucket_s)
        total, number = 0.0, 0
        for at, t in enumerate(self.t):
            if t + self.width_s <= since or t > until:
                continue
            bucket = t // bucket_s * bucket_s
            if found.t and found.t[-1] == bucket:
                found.min[-1] = min(found.min[-1], self.low[at])
                found.max[-1] = max(found.max[-1], self.high[at])
                found.last[-1] = self.last[at]
                total, number = total + self.total[at], number + self.number[at]
                found.mean[-1] = total / number
                continue
            total, number = self.total[at], self.number[at]
            found.t.append(bucket)
            found.min.append(self.low[at])
            found.mean.append(total / number)
            found.max.append(self.high[at])
            found.last.append(self.last[at])
            found.attempt.append(None)
        for t in self.nonfinite_t:
            bucket = t // bucket_s * bucket_s
            if since < t + self.width_s and t <= until and bucket not in found.nonfinite_t[-1:]:
                found.nonfinite_t.append(bucket)
        return found


class LossHistory:
    """The losses of one job, by rank."""

    def __init__(self) -> None:
        self._series: dict[int, _LossSeries] = {}

    def add(self, rank: int, at_s: float, loss: float) -> None:
        """A loss that was seen at that unix time; NaN and infinity are kept as such."""
        series = self._series.get(rank)
        if series is None:
            if len(self._series) >= MAX_SERIES:
                return
            series = self._series[rank] = _LossSeries()
        series.add(at_s, loss)
        if len(series) > max(LEAST_POINTS, MAX_POINTS // len(self._series)):
            series.widen()

    def span(self) -> tuple[float, float] | None:
        """Unix seconds of the first and the last loss."""
        firsts = [t for one in self._series.values() for t in (*one.t[:1], *one.nonfinite_t[:1])]
        lasts = [t for one in self._series.values() for t in (*one.t[-1:], *one.nonfinite_t[-1:])]
        return (float(min(firsts)), float(max(lasts))) if firsts else None

    def series(self, since_s: float, until_s: float, columns: int) -> dict[int, Series]:
        """As `HistoryReader.rank_series`: at most `columns` points of each rank."""
        span = self.span()
        if span is None:
            return {}
        since, until = max(int(since_s), int(span[0])), min(int(until_s), int(span[1]))
        if since > until:
            return {}
        found = {}
        for rank, one in sorted(self._series.items()):
            width_s = bucket_width(since, until, max(2, columns), one.width_s)
            series = one.between(since, until, width_s)
            if series.t or series.nonfinite_t:
                found[rank] = series
        return found

    def points(self) -> int:
        """How many points are kept."""
        return sum(map(len, self._series.values()))
