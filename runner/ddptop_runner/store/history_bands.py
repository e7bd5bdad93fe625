"""A metric of very many ranks as one band: least, median and greatest rank of each moment.

SQLite does the adding up, so that a thousand ranks come out as a few hundred rows, and of a chart
that goes on only what is new is read again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from ddptop_runner.store.history_reader import HistoryReader, Series
from ddptop_runner.store.history_schema import RANK, TIERS, columns_of

WIDTHS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 3600, 7200, 21600, 86400, 604800)
"""Widths of a point: few, so that a growing run seldom asks for all of its points anew."""

UNSURE_S = 3
"""A bucket is read again until it is over by this: a writer stores a second after it."""

_PACK = 10**12
"""Attempt and step as one number, so that the greatest is the last step of the last attempt."""

RECENT_POINTS = 12
"""Newest points by which ranks are compared with the median."""


class Band(msgspec.Struct, frozen=True, kw_only=True):
    """All ranks over time, as parallel lists, oldest first; no point where no rank has a value."""

    bucket_s: int
    """Length of a point's bucket."""
    t: list[int] = []
    """Unix seconds at which each bucket starts."""
    low: list[float] = []
    """Of the ranks' means: the least."""
    median: list[float] = []
    high: list[float] = []
    ranks: list[int] = []
    """How many ranks have a value."""
    step: list[int | None] = []
    """The last step of the attempt that the bucket ends in."""
    attempt: list[int | None] = []
    nonfinite_t: list[int] = []
    """Buckets in which some rank's loss was NaN or infinite."""
    nonfinite_step: list[int | None] = []
    """The last step of each of those."""
    nonfinite_attempt: list[int | None] = []


class _Key(msgspec.Struct, frozen=True):
    """What the remembered buckets are of."""

    metric: str
    width_s: int
    without: tuple[int, ...]
    inode: int
    """Of the file: one that was begun anew shares nothing with the one before."""


_Bucket = tuple[float | None, float | None, float | None, int, int | None, int | None, int]
"""Least, median, greatest, number of ranks, step, attempt, values that were not finite."""


def width_of(since: int, until: int, max_points: int) -> int:
    """The narrowest of WIDTHS_S with which a span has at most `max_points` points."""
    return next(
        (one for one in WIDTHS_S if (until - since) / one <= max(2, max_points) - 1), WIDTHS_S[-1]
    )


def rows_read(since: int, until: int, width_s: int, ranks: int) -> int:
    """About how many rows have to be added up for a band that is read for the first time."""
    tier_s = max(tier.width_s for tier in TIERS if width_s % tier.width_s == 0)
    return ranks * -(-(until - since) // tier_s)


def points_for(since: int, until: int, ranks: int, rows: int) -> int:
    """As many points as can be read from at most so many rows."""
    widths = (one for one in WIDTHS_S if rows_read(since, until, one, ranks) <= rows)
    return (until - since) // next(widths, WIDTHS_S[-1]) + 2


class BandReader:
    """Reads bands of one history, and remembers the buckets that are over. For one thread."""

    def __init__(self, reader: HistoryReader) -> None:
        self.reader = reader
        self._key: _Key | None = None
        self._buckets: dict[int, _Bucket] = {}
        self._from = 0
        self._sure_until = 0
        self._bad_ranks: tuple[tuple[int, int, int], tuple[int, ...]] | None = None

    def read(
        self,
        metric: str,
        since_unix: float,
        until_unix: float,
        max_points: int,
        without: tuple[int, ...] = (),
    ) -> Band:
        """The band of a metric between two moments, both included.

        Args:
            metric: as in HistoryReader.rank_series.
            since_unix: start of the span, unix seconds.
            until_unix: end of it.
            max_points: at most so many points, 2 or more.
            without: ranks that are left out.

        Raises:
            DamagedFileError: when the file is no history.
            DdptopError: when it stays locked.
            ValueError: when there is no such metric.
        """
        RANK.metric(metric)
        since, until = int(since_unix), int(until_unix)
        width_s = width_of(since, until, max_points)
        start = since - since % width_s
        with self.reader.open() as db:
            if db is None:
                return Band(bucket_s=width_s)
            self._remember(_Key(metric, width_s, without, self.reader.path.stat().st_ino), start)
            begin = max(start, self._sure_until)
            if begin <= until:
                db.execute("BEGIN")
                source = _source(db, metric, begin, until + 1, width_s)
                self._buckets.update(_read(db, source, width_s, without))
                self._sure_until = max(start, until - UNSURE_S - (until - UNSURE_S) % width_s)
        return self._band(width_s, start, until)

    def recent(
        self, metric: str, until_unix: float, width_s: int, points: int = RECENT_POINTS
    ) -> dict[int, dict[int, float]]:
        """Each rank's mean in each of the newest buckets: bucket start → rank → value."""
        until = int(until_unix)
        begin = until - until % width_s - (points - 1) * width_s
        found: dict[int, dict[int, float]] = {}
        with self.reader.open() as db:
            if db is None:
                return found
            db.execute("BEGIN")
            source = _source(db, metric, begin, until + 1, width_s)
            query = f"""SELECT t / {width_s} AS b, rank, sum(v * w) / sum(w) FROM ({source})
                WHERE v IS NOT NULL GROUP BY b, rank"""
            for bucket, rank, value in db.execute(query):
                found.setdefault(bucket * width_s, {})[rank] = value
        return found

    def few(
        self, metric: str, ranks: Sequence[int], since_unix: float, until_unix: float, width_s: int
    ) -> dict[int, Series]:
        """A metric of some ranks, in buckets of the band's width."""
        since, until = int(since_unix), int(until_unix)
        start = since - since % width_s
        found: dict[int, Series] = {}
        if not ranks:
            return found
        with self.reader.open() as db:
            if db is None:
                return found
            db.execute("BEGIN")
            source = _source(db, metric, start, until + 1, width_s, ranks)
            query = f"""
                SELECT t / {width_s} AS b, rank, min(low),
                    sum(v * w) / sum(CASE WHEN v IS NOT NULL THEN w END), max(high),
                    max(coalesce(attempt, 0) * {_PACK} + step), max(attempt), sum(bad)
                FROM ({source}) GROUP BY rank, b"""
            for bucket, rank, low, mean, high, packed, attempt, bad in db.execute(query):
                one = found.setdefault(rank, Series(bucket_s=width_s))
                if bad:
                    one.nonfinite_t.append(bucket * width_s)
                if mean is None:
                    continue
                one.t.append(bucket * width_s)
                one.min.append(low)
                one.mean.append(mean)
                one.max.append(high)
                one.last.append(mean)
                one.attempt.append(attempt)
                one.step.append(None if packed is None else packed % _PACK)
        return found

    def not_finite_ranks(self, band: Band) -> tuple[int, ...]:
        """Ranks whose loss was NaN or infinite in a band's span."""
        if not band.nonfinite_t:
            return ()
        since, until = band.nonfinite_t[0], band.nonfinite_t[-1] + band.bucket_s
        key = (len(band.nonfinite_t), since, until)
        if self._bad_ranks is not None and self._bad_ranks[0] == key:
            return self._bad_ranks[1]
        found: set[int] = set()
        with self.reader.open() as db:
            if db is None:
                return ()
            for tier in TIERS:
                found.update(
                    rank
                    for (rank,) in db.execute(
                        f"SELECT DISTINCT rank FROM {RANK.table(tier)}"
                        " WHERE t >= ? AND t < ? AND loss_nonfinite > 0",
                        (since, until),
                    )
                )
        self._bad_ranks = key, tuple(sorted(found))
        return self._bad_ranks[1]

    def _remember(self, key: _Key, start: int) -> None:
        """Forget what is of no use for what is asked now."""
        if key != self._key or start < self._from:
            self._key, self._buckets, self._from, self._sure_until = key, {}, start, start

    def _band(self, width_s: int, start: int, until: int) -> Band:
        band = Band(bucket_s=width_s)
        for t in sorted(t for t in self._buckets if start <= t <= until):
            low, median, high, ranks, step, attempt, bad = self._buckets[t]
            if bad:
                band.nonfinite_t.append(t)
                band.nonfinite_step.append(step)
                band.nonfinite_attempt.append(attempt)
            if low is None or median is None or high is None:
                continue
            band.t.append(t)
            band.low.append(low)
            band.median.append(median)
            band.high.append(high)
            band.ranks.append(ranks)
            band.step.append(step)
            band.attempt.append(attempt)
        return band


def _source(
    db: sqlite3.Connection,
    metric: str,
    start: int,
    end: int,
    width_s: int,
    ranks: Sequence[int] = (),
) -> str:
    """A query of every row in a span: of the coarsest tier that will do, then of finer ones.

    Of some ranks each moment is looked up by itself: the key begins with the moment.
    """
    low, column, high = (RANK.metric(metric).column(a) for a in ("min", "mean", "max"))
    if column not in columns_of(db, RANK.table(TIERS[0])):  # the history is too old to have it
        low = column = high = "NULL"
    parts = []
    begin = start
    for tier in reversed(TIERS):
        if width_s % tier.width_s:
            continue
        table = RANK.table(tier)
        (first,) = db.execute(f"SELECT min(t) FROM {table}").fetchone()
        (last,) = db.execute(f"SELECT max(t) FROM {table}").fetchone()
        if first is None or last + tier.width_s <= begin:
            continue
        rows = f"{table} AS r WHERE r.t >= {begin} AND r.t < {end}"
        if ranks:
            rows = (
                f"(WITH RECURSIVE moments(t) AS (SELECT {begin} UNION ALL"
                f" SELECT t + {tier.width_s} FROM moments WHERE t + {tier.width_s} < {end})"
                f" SELECT t FROM moments) AS m CROSS JOIN {table} AS r"
                f" ON r.t = m.t AND r.rank IN ({', '.join(map(str, ranks))})"
            )
        parts.append(
            f"SELECT r.t AS t, r.rank AS rank, {low} AS low, {column} AS v, {high} AS high,"
            f" {tier.width_s} AS w, step, attempt, loss_nonfinite AS bad FROM {rows}"
        )
        begin = last + tier.width_s
    return " UNION ALL ".join(parts) or (
        "SELECT 0 AS t, 0 AS rank, NULL AS low, NULL AS v, NULL AS high, 1 AS w, NULL AS step,"
        " NULL AS attempt, 0 AS bad WHERE 0"
    )


def _read(
    db: sqlite3.Connection, source: str, width_s: int, without: tuple[int, ...]
) -> dict[int, _Bucket]:
    """Every bucket of the rows that `source` selects, by its start."""
    left_out = f"WHERE rank NOT IN ({', '.join(map(str, without))})" if without else ""
    query = f"""
        WITH each AS (
            SELECT t / {width_s} AS b, rank, sum(v * w) / sum(CASE WHEN v IS NOT NULL THEN w END)
                AS v, sum(bad) AS bad, max(t), step, attempt
            FROM ({source}) {left_out} GROUP BY b, rank),
        placed AS (
            SELECT b, v, bad, attempt, step,
                row_number() OVER (PARTITION BY b ORDER BY v IS NULL, v) AS place,
                count(v) OVER (PARTITION BY b) AS n
            FROM each)
        SELECT b, min(v),
            avg(CASE WHEN place IN ((n + 1) / 2, n / 2 + 1) AND n > 0 THEN v END), max(v), n,
            max(coalesce(attempt, 0) * {_PACK} + step), max(attempt), sum(bad)
        FROM placed GROUP BY b
        """
    found: dict[int, _Bucket] = {}
    for bucket, low, median, high, n, packed, attempt, bad in db.execute(query):
        step = None if packed is None else packed % _PACK
        found[bucket * width_s] = (low, median, high, n, step, attempt, bad or 0)
    return found
