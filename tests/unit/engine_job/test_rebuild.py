"""A job whose snapshot is damaged is still shown, from its history and processes."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from tests.support.rows import row

from ddptop_runner.base.paths import RunFolder, run_folder
from ddptop_runner.host.procs import host_name
from ddptop_runner.job.event_text import text
from ddptop_runner.job.registry import read_job
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.spec import JobSpec, write_spec
from ddptop_runner.node import process
from ddptop_runner.store.history import HistoryWriter

NOW = dt.datetime(2026, 1, 2, 12, tzinfo=dt.timezone.utc)

DAMAGED = [b"", b"{", b'{"job": 1}', b"\xff\xfe\x00", b'{"job": "job", "sta']

STORY: list[tuple[str, dict[str, Any]]] = [
    ("launched", {"attempt": 0}),
    ("rank_started", {"attempt": 0, "rank": 0, "pid": 7}),
    ("rank_exited", {"attempt": 0, "rank": 0, "pid": 7, "signal": "SIGKILL"}),
    ("failure", {"attempt": 0, "rank": 0}),
    ("group_restart", {"attempt": 0}),
    ("attempt_started", {"attempt": 1}),
    ("rank_started", {"attempt": 1, "rank": 0, "pid": 8}),
    ("rank_started", {"attempt": 1, "rank": 1, "pid": 9}),
]


@pytest.fixture
def folder(ddptop_home) -> RunFolder:
    folder = run_folder("job")
    folder.nodes_dir.mkdir(parents=True)
    spec = JobSpec(
        job="job",
        job_id="job@1",
        host=host_name(),
        created_at=NOW,
        kind="script",
        target="train.py",
        python="/usr/bin/python3",
        cwd="/",
        nproc=2,
    )
    write_spec(folder, spec)
    return folder


def tell(folder: RunFolder, story: list[tuple[str, dict[str, Any]]]) -> None:
    history = HistoryWriter(folder.history_db)
    for type_, fields in story:
        history.event(row(NOW, type_, **fields))
    history.close()


@pytest.mark.parametrize("content", DAMAGED)
def test_a_job_that_ended_keeps_its_end(folder, content):
    tell(folder, [*STORY, ("failed", {"attempt": 1, "exit_code": 3})])
    folder.node_file(host_name()).write_bytes(content)
    view = read_job(folder)
    assert view.state == "failed"
    assert view.ended_at == NOW
    assert view.snapshot is not None
    assert (view.snapshot.attempt, view.snapshot.exit_code) == (1, 3)
    (alert,) = view.snapshot.alerts
    assert f"nodes/{host_name()}.json is damaged" in alert.message
    assert folder.node_file(host_name()).read_bytes() == content  # a viewer changes nothing


def test_a_job_that_has_no_process_is_lost_and_not_starting(folder):
    tell(folder, STORY)
    folder.node_file(host_name()).write_bytes(b"")
    view = read_job(folder)
    assert view.state == "lost"
    assert [rank.pid for rank in view.snapshot.ranks] == [8, 9]


def test_without_a_history_the_logs_tell_the_attempt(folder):
    (folder.logs_dir / "attempt-4").mkdir(parents=True)
    folder.history_db.write_bytes(b"no database at all" * 100)
    folder.node_file(host_name()).write_bytes(b"")
    view = read_job(folder)
    assert view.snapshot.attempt == 4
    assert "the history cannot be read either" in view.snapshot.alerts[0].message


def hello(restarts: int, attempt: int) -> pt.GuardianHello:
    return pt.GuardianHello(
        attempt=attempt, agent_pid=None, guardian_pid=1, supervisor_restarts=restarts
    )


@pytest.mark.parametrize("content", DAMAGED)
def test_restarted_supervisor_continues_from_the_history(folder, content):
    tell(folder, STORY)
    folder.node_file(host_name()).write_bytes(content)
    found = process.recover(folder, hello(1, attempt=0))
    assert found.has_continued
    assert (found.snapshot.attempt, found.snapshot.restarts_used) == (1, 1)
    assert found.snapshot.restarts_left == 2
    assert [(rank.rank, rank.pid) for rank in found.snapshot.ranks] == [(0, 8), (1, 9)]
    assert "its snapshot was damaged and set aside as" in text(found.event)
    assert "nothing was lost" not in text(found.event)
    aside = folder.nodes_dir / f"{host_name()}.json.damaged-1"
    assert aside.read_bytes() == content
