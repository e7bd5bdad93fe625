"""Makes the files under tests/samples/v<N>/, in the formats of this version.

    python tests/samples/make_samples.py

Old samples stay as they are: tests prove that newer versions read them. Run this only for a new
schema, after raising VERSION.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from ddptop_runner.history import HistoryWriter
from ddptop_runner.model import Event, GpuSample, RankSample

VERSION = 1
START = 1_767_225_600
"""2026-01-01T00:00:00Z."""


def make_history(path: Path) -> None:
    """Two ranks and one device for 90 s, with one restart and one loss that was not finite."""
    writer = HistoryWriter(path)

    def tell(second: int, type_: str, message: str, **fields: object) -> None:
        ts = dt.datetime.fromtimestamp(START + second + 0.25, dt.timezone.utc)
        writer.event(Event(ts=ts, type=type_, message=message, **fields))

    tell(0, "launched", "launched train.py with 2 ranks")
    for second in range(90):
        attempt = 0 if second < 50 else 1
        if second in (0, 50):
            tell(second, "attempt_started", f"attempt {attempt} started", attempt=attempt)
        if second == 45:
            tell(
                45,
                "rank_exited",
                "rank 1 was ended by SIGKILL",
                attempt=0,
                rank=1,
                pid=4711,
                signal="SIGKILL",
                evidence="evidence/attempt-0-failure",
            )
        if 45 <= second < 50:
            continue
        ranks = [
            RankSample(
                rank=rank,
                local_rank=rank,
                host="node",
                step=second,
                loss=None if second == 20 else 4.0 - second / 32 + rank,
                loss_state="nan" if second == 20 else "ok",
                step_time_s=0.25,
                rss_bytes=1_000_000 + second,
            )
            for rank in range(2)
        ]
        gpus = [GpuSample(index=0, util_percent=second, mem_used_bytes=2**33, power_w=250.5)]
        writer.add(START + second, attempt, ranks, gpus)
    tell(90, "finished", "finished", exit_code=0)
    writer.close(final=True)


if __name__ == "__main__":
    folder = Path(__file__).parent / f"v{VERSION}"
    folder.mkdir(exist_ok=True)
    (folder / "history.db").unlink(missing_ok=True)
    make_history(folder / "history.db")
