"""A job's end: its history comes home whole."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.runner.builders import make_snapshot, make_spec
from tests.runner.histories import event

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.node.keeper import write_end
from ddptop_runner.store import history
from ddptop_runner.store.disk import SteadyFile
from ddptop_runner.store.history import HistoryReader, HistoryWriter


@pytest.mark.parametrize("is_read", [False, True])
def test_a_history_on_a_local_disk_comes_home_whole_whoever_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_read: bool
):
    folder = RunFolder(tmp_path / "runs" / "train")
    local = tmp_path / "local"
    for path in (folder.nodes_dir, local):
        path.mkdir(parents=True)
    folder.__dict__["live_dir"] = local
    monkeypatch.setattr(history, "FINAL_TIMEOUT_S", 0.05)
    writer = HistoryWriter(local / "history.db")
    writer.event(event("launched"))
    with closing(sqlite3.connect(local / "history.db", isolation_level=None)) as reader:
        if is_read:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM events").fetchall()
        writer.event(event("finished"))
        file = SteadyFile(folder.node_file("here"))
        asyncio.run(write_end(folder, make_snapshot(make_spec()), writer, file))
    assert not local.exists()
    home = folder.path / "history.db"
    assert [one.type for one in HistoryReader(home).events()] == ["launched", "finished"]
    assert sorted(path.name for path in folder.path.iterdir()) == ["history.db", "nodes"]
    assert home.read_bytes()[18:20] == b"\1\1"  # opens where nothing may be written
