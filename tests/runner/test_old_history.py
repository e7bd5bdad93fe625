"""A supervisor of this version adopts a live job of the version before typed events."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import msgspec

from ddptop_runner.job.event_log import EventLog
from ddptop_runner.model.snapshot import decode_snapshot
from ddptop_runner.store.history import HistoryReader, HistoryWriter

SAMPLE = Path(__file__).parents[1] / "samples" / "run"


def test_its_state_is_read_from_its_sentences(tmp_path):
    path = tmp_path / "history.db"
    with contextlib.closing(sqlite3.connect(path)) as history, history:
        history.executescript((SAMPLE / "history.sql").read_text())
    history.close()
    rows = list(HistoryReader(path).events(silent=True))
    while rows[-1].type != "training":  # it ends later
        rows.pop()
    ended = decode_snapshot((SAMPLE / "node.json").read_bytes())
    snapshot = msgspec.structs.replace(ended, state="running", ended_at=None, exit_code=None)
    writer = HistoryWriter(path)
    log = EventLog(writer, lambda line: None)
    log.restore(rows, snapshot)
    job = log.state
    assert (job.phase, job.attempt, job.budget.used) == ("running", 1, 1)
    assert {rank: (life.pid, life.exited) for rank, life in job.ranks.items()} == {
        0: (30558, False),
        1: (30559, False),
    }
    assert job.previous_cause is not None and job.previous_cause.signal == "SIGKILL"
    writer.close()
