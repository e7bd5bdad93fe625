"""Jobs as a reader finds them: names, verified states, and damaged files."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from unittest.mock import Mock

import pytest
from tests.support.builders import gone, make_snapshot, make_spec, put_job

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import DamagedFileError, NoSuchJobError, OtherSchemaError, UsageError
from ddptop_runner.base.files import write_atomic
from ddptop_runner.base.paths import members_dir, run_folder, runs_dir
from ddptop_runner.host import procs
from ddptop_runner.job import registry
from ddptop_runner.job.registry import all_jobs, is_recent, read_all, read_job, resolve
from ddptop_runner.model.snapshot import GpuProcess, GpuSample, RankSample, encode
from ddptop_runner.model.words import LIVE_STATES

pytestmark = pytest.mark.usefixtures("ddptop_home")
ALIVE = {"state": "running", "guardian": procs.identify(os.getpid())}
ENDED = {"state": "finished", "ended_at": utc_now()}
LOST = {"state": "running", "guardian": gone()}


# --- names -------------------------------------------------------------------------------------


@pytest.fixture
def three_jobs():
    put_job("train", ALIVE)
    put_job("train-2", ENDED)
    put_job("eval", ENDED)


@pytest.mark.parametrize(
    ("name", "job"),
    [
        ("train", "train"),  # an exact match takes precedence over a prefix
        ("train-", "train-2"),
        ("train-2", "train-2"),
        ("e", "eval"),
        (None, "train"),  # the only live one
    ],
)
def test_resolve(three_jobs, name, job):
    assert resolve(name).job == job


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("tr", UsageError, "'tr' is ambiguous: train, train-2; use a longer prefix"),
        ("none", NoSuchJobError, "no job named 'none'"),
        ("rain", NoSuchJobError, "no job named"),
        ("", NoSuchJobError, "no job named ''"),
        (".", NoSuchJobError, "no job named '.'"),
        ("..", NoSuchJobError, "no job named '..'"),
        ("../runs/train", NoSuchJobError, "no job"),
        ("train/", NoSuchJobError, "no job"),
        ("TRAIN", NoSuchJobError, "no job"),
        ("x" * 300, NoSuchJobError, "no job"),
    ],
)
def test_resolve_refuses(three_jobs, name, error, words):
    with pytest.raises(error) as caught:
        resolve(name)
    assert words in str(caught.value)


def test_the_name_of_a_sweep_is_no_ambiguous_prefix(ddptop_home):
    put_job("s-n1", {"state": "finished"}, group="s")
    put_job("s-n2", {"state": "finished"}, group="s")
    with pytest.raises(UsageError, match="s is a sweep; name one of its jobs: ddptop ls s"):
        resolve("s")


def test_parts_of_the_same_name_are_told_apart_by_id():
    members_dir().mkdir(parents=True)
    for job_id in ("a@1.0", "a@2.0"):
        put_job("a", ALIVE, job_id=job_id).path.rename(members_dir() / job_id)
    with pytest.raises(UsageError, match=r"'a' is ambiguous: a@1.0, a@2.0; use one of these IDs"):
        resolve("a")
    assert resolve("a@2.0").spec.job_id == "a@2.0"


def test_without_a_name_nothing_is_guessed():
    with pytest.raises(UsageError, match="no active jobs; specify an ended job"):
        resolve(None)
    for job in ("b", "a"):
        put_job(job, ALIVE)
    with pytest.raises(UsageError, match="2 jobs are active: a, b; specify one"):
        resolve(None)


# --- states ------------------------------------------------------------------------------------

NOW = object()
ELSEWHERE = {"host": "elsewhere"}
STATES = {
    # (snapshot, changes of the spec) -> (state, guarded)
    "guarded": (ALIVE, {}, "running", True),
    "the supervisor alone": (
        {**LOST, "supervisor": procs.identify(os.getpid())},
        {},
        "running",
        False,
    ),
    "the agent alone": ({**LOST, "agent": procs.identify(os.getpid())}, {}, "running", False),
    "nobody": (LOST, {}, "lost", False),
    "nobody was ever written down": ({"state": "starting"}, {}, "lost", False),
    "ended": (ENDED, {}, "finished", False),
    "ended, its guardian is just going": ({**ALIVE, "state": "failed"}, {}, "failed", True),
    "no snapshot yet": (None, {"created_at": NOW}, "starting", None),
    "never came up": (None, {}, "lost", None),
    "of another host, which nobody can check": (LOST, ELSEWHERE, "running", None),
    "of another host, starting": (None, ELSEWHERE, "starting", None),
    "of another host, ended": (ENDED, ELSEWHERE, "finished", None),
}


@pytest.mark.parametrize("case", STATES.values(), ids=list(STATES))
def test_state(case):
    snapshot, changes, state, guarded = case
    if changes.get("created_at") is NOW:  # the table is older than the test
        changes = {"created_at": utc_now()}
    view = read_job(put_job("train", snapshot, **changes))
    assert (view.state, view.guarded) == (state, guarded)
    assert view.is_live == (state in LIVE_STATES)


@pytest.mark.parametrize("snapshot", [LOST, None, "damaged"])
def test_a_job_lives_as_long_as_any_process_carries_its_id(ddptop_home, snapshot):
    folder = put_job("train", None if snapshot == "damaged" else snapshot)
    if snapshot == "damaged":
        folder.node_file(procs.host_name()).write_text("{")
    env = {**os.environ, "DDPTOP_JOB_ID": make_spec("train").job_id}
    rank = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, env=env)
    try:
        assert read_job(folder).is_live
    finally:
        rank.kill()
        rank.communicate()
    assert read_job(folder).state == "lost"


def test_a_job_that_ends_while_it_is_read_is_not_lost(monkeypatch):
    folder = put_job("train", LOST)
    looks = []

    def last_words(job_id: str, owner: int | None) -> list[int]:
        looks.append(job_id)
        ended = make_snapshot(make_spec("train"), **ENDED)
        write_atomic(folder.node_file(procs.host_name()), encode(ended))
        return []

    monkeypatch.setattr(procs, "pids_of_job", last_words)
    assert read_job(folder).state == "finished"
    assert len(looks) == 1


@pytest.mark.parametrize(
    ("snapshot", "recent"),
    [
        (ALIVE, True),
        ({"state": "finished", "ended_at": utc_now() - dt.timedelta(hours=23)}, True),
        ({"state": "finished", "ended_at": utc_now() - dt.timedelta(hours=25)}, False),
        ({"state": "failed"}, True),
    ],
)
def test_ls_shows_what_lives_or_ended_within_a_day(snapshot, recent):
    assert is_recent(read_job(put_job("train", snapshot))) is recent


# --- damage ------------------------------------------------------------------------------------


def test_a_damaged_job_hides_no_other_and_is_named():
    put_job("good", ALIVE)
    put_job("bad", ALIVE).spec_file.write_text("{")
    views, damaged = read_all()
    assert [view.job for view in views] == ["good"]
    assert [str(run_folder("bad").spec_file) in str(error) for error in damaged] == [True]
    assert resolve(None).job == "good"
    with pytest.raises(DamagedFileError, match="ddptop rm bad"):
        resolve("bad")


LONG = pytest.param(b'{"schema": 1, "state": "' + b"A" * 10_000 + b'"}', id="long")


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b'{"schema": 1}', LONG])
def test_damaged_snapshot_is_reported(content):
    folder = put_job("train", ALIVE)
    folder.node_file(procs.host_name()).write_bytes(content)
    view = read_job(folder)
    assert view.snapshot is not None
    assert "is damaged" in view.snapshot.alerts[0].message
    assert len(view.snapshot.alerts[0].message) < 600
    assert view.state == "lost"  # no process carries its ID


def test_a_snapshot_that_is_just_being_overwritten_is_read_again(monkeypatch):
    file = put_job("train", ALIVE).node_file(procs.host_name())
    whole = file.read_bytes()
    file.write_bytes(whole[:50])
    monkeypatch.setattr(registry, "time", Mock(sleep=lambda _: file.write_bytes(whole)))
    view = read_job(run_folder("train"))
    assert view.state == "running" and view.snapshot.alerts == []


def test_a_snapshot_of_another_version_is_refused():
    folder = put_job("train", ALIVE)
    file = folder.node_file(procs.host_name())
    newer = {**json.loads(file.read_bytes()), "schema": 2, "state": "sleeping"}
    file.write_text(json.dumps(newer))
    with pytest.raises(OtherSchemaError) as caught:
        resolve("train")
    assert str(caught.value) == (
        f"{file} was written by another version of ddptop (schema 2; supported: 1); use that"
        " version"
    )
    assert [type(error) for error in read_all()[1]] == [OtherSchemaError]


def test_another_users_job_in_a_shared_state_folder_hides_nothing(ddptop_home):
    put_job("mine", ALIVE)
    theirs = put_job("theirs", ALIVE).path
    theirs.chmod(0)
    user = os.geteuid()
    if user == 0:  # root can read everything
        for folder in (ddptop_home, runs_dir(), *runs_dir().glob("mine/**/")):
            folder.chmod(0o755)
        (runs_dir() / "mine" / "job.json").chmod(0o644)
        os.seteuid(65534)
    try:
        assert [view.job for view in all_jobs()] == ["mine"]
        with pytest.raises(NoSuchJobError):
            resolve("theirs")
    finally:
        os.seteuid(user)
        theirs.chmod(0o700)


# --- devices -----------------------------------------------------------------------------------


def test_ranks_and_what_they_started_are_known_by_pid():
    process = GpuProcess(pid=501, job="train", rank=1)
    foreign = GpuProcess(pid=502)
    snapshot = {
        **ALIVE,
        "ranks": [RankSample(rank=0, local_rank=0, host="h", pid=500)],
        "gpus": [GpuSample(index=0, processes=[process, foreign]), GpuSample(index=1)],
    }
    put_job("train", snapshot)
    put_job("ended", {**ENDED, "ranks": [RankSample(rank=0, local_rank=0, host="h", pid=600)]})
    assert registry.rank_of_pid() == {500: ("train", 0), 501: ("train", 1)}
