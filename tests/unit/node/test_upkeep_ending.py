"""The end of a job: its complete history is moved back."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from contextlib import closing

import pytest
from tests.support.builders import make_snapshot, make_spec
from tests.support.histories import START, event, rank

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.snapshot import NodeSnapshot
from ddptop_runner.node.keeper import write_end
from ddptop_runner.node.process import JobProcess
from ddptop_runner.store import history
from ddptop_runner.store.disk import SteadyFile
from ddptop_runner.store.history import HistoryReader, HistoryWriter


@pytest.mark.parametrize("is_read", [False, True])
def test_history_on_a_local_disk_is_moved_back_completely_despite_readers(
    tmp_path, monkeypatch, is_read
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
    assert home.read_bytes()[18:20] == b"\1\1"  # opens although nothing may be written


def test_the_last_evaluation_is_recorded_although_a_rank_lacks_it(tmp_path):
    folder = RunFolder(tmp_path)
    folder.nodes_dir.mkdir()

    def told(value: float) -> NodeSnapshot:
        ranks = [rank(0, metrics={"val_loss": value}), rank(1, metrics={"val_loss": 3.0})]
        return make_snapshot(make_spec(), ranks=ranks)

    async def live() -> None:
        channel, other = socket.socketpair()
        with channel, other:
            process = JobProcess(folder, make_spec(), channel)
            process.record(told(3.0))
            await process.end(lambda: told(1.0))

    asyncio.run(live())
    found = HistoryReader(folder.history_db).scalar_series(0, 2 * START, 10)
    assert found["val_loss"].last[-1] == 2.0


def test_messages_of_a_guardian_that_dies_are_read_although_one_to_it_was_not(tmp_path):
    folder = RunFolder(tmp_path)
    folder.nodes_dir.mkdir()
    taken: list[pt.ToSupervisor] = []

    async def live() -> None:
        channel, guardian = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel.setblocking(False)
        with channel:
            process = JobProcess(folder, make_spec(), channel)
            process.send_to_guardian(pt.Print(text="unread"))
            guardian.send(b'{"type": "agent_started", "pid": 7}')
            guardian.close()
            lost = asyncio.Event()
            process.listen(taken.extend, lost.set)
            await asyncio.wait_for(lost.wait(), 60)
            process.history.close()

    asyncio.run(live())
    assert taken == [pt.AgentStarted(pid=7)]
