"""The outside contract: every key is always present, under exactly this name."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import msgspec
import pytest
from tests.support.builders import make_snapshot, make_spec

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.paths import run_folder
from ddptop_runner.job.registry import JobView
from ddptop_runner.jobs import contract
from ddptop_runner.jobs.contract import JobList, job_row, job_status
from ddptop_runner.model.snapshot import (
    Alert,
    Cause,
    Event,
    GpuProcess,
    GpuSample,
    Imbalance,
    LauncherSample,
    Progress,
    RankSample,
    encode,
)


def words(text: str) -> set[str]:
    return set(text.split())


LIST = words("schema jobs")
ROW = words(
    """job state host command launcher world_size attempt step total_steps eta_s started_at
    ranks progress"""
)
ROW_RANK = words("rank pid gpu")
STATUS = words(
    """schema job state host command attempt restarts_used restarts_left world_size started_at
    ended_at exit_code cause guarded snapshot_age_s step total_steps eta_s ranks gpus imbalance
    alerts launcher progress"""
)
PROGRESS = words(
    "step total counts epoch epochs fraction eta_s estimated epoch_fraction epoch_eta_s source"
)
LAUNCHER = words("name pid state exit_code signal cpu_percent rss_bytes")
CAUSE = words("kind rank signal exit_code summary evidence")
RANK = words(
    """rank local_rank host pid gpu gpus state step global_step loss loss_step loss_state
    loss_source step_time_s steps_per_s data_wait_s cpu_percent rss_bytes gpu_util_percent
    gpu_mem_used_bytes last_progress_at exit_code signal step_source sync_s compute_s"""
)
GPU = words(
    """index uuid host name util_percent mem_util_percent mem_used_bytes mem_total_bytes
    mem_reserved_bytes temperature_c power_w power_limit_w sm_clock_mhz throttle_reasons
    ecc_uncorrected xid lost processes"""
)
GPU_PROCESS = words("pid user command mem_used_bytes job rank")
IMBALANCE = words("memory utilization power step_time")
ALERT = words("id severity ranks gpus message since")
EVENT = words("schema ts seq type attempt rank pid exit_code signal message evidence")

NAN = float("nan")


def view(snapshot: dict[str, Any] | None, **spec_changes: Any) -> JobView:
    spec = make_spec(**spec_changes)
    written = None if snapshot is None else make_snapshot(spec, **snapshot)
    return JobView(folder=run_folder("train"), spec=spec, snapshot=written, read_at=utc_now())


def as_json(value: object) -> Any:
    return json.loads(encode(value))


FULL = {
    "state": "failed",
    "ended_at": utc_now(),
    "cause": Cause(kind="signal", rank=1, signal="SIGKILL", summary="killed"),
    "ranks": [RankSample(rank=0, local_rank=0, host="h", loss=NAN, loss_state="nan")],
    "gpus": [GpuSample(index=0, processes=[GpuProcess(pid=7)])],
    "alerts": [Alert(id="x", severity="error", message="m", since=utc_now())],
    "progress": Progress(step=5, total=9, fraction=5 / 9, eta_s=3.0, source="log"),
    "launcher": LauncherSample(name="accelerate", pid=4, exit_code=1),
}
VIEWS = {
    "no snapshot yet": None,
    "just started": {"state": "starting"},
    "all there is": FULL,
}


@pytest.mark.parametrize("snapshot", VIEWS.values(), ids=list(VIEWS))
def test_every_key_of_ls_is_always_there(snapshot):
    listing = as_json(JobList(jobs=[job_row(view(snapshot))]))
    assert set(listing) >= LIST
    (row,) = listing["jobs"]
    assert set(row) >= ROW
    assert isinstance(row["ranks"], list)
    for rank in row["ranks"]:
        assert set(rank) >= ROW_RANK


@pytest.mark.parametrize("snapshot", VIEWS.values(), ids=list(VIEWS))
def test_every_key_of_status_is_always_there(snapshot):
    status = as_json(job_status(view(snapshot)))
    assert set(status) >= STATUS
    assert set(status["imbalance"]) >= IMBALANCE
    for name in ("ranks", "gpus", "alerts"):
        assert isinstance(status[name], list)
    if snapshot is FULL:
        assert set(status["cause"]) >= CAUSE
        assert set(status["ranks"][0]) >= RANK
        assert set(status["gpus"][0]) >= GPU
        assert set(status["gpus"][0]["processes"][0]) >= GPU_PROCESS
        assert set(status["alerts"][0]) >= ALERT
        assert set(status["progress"]) >= PROGRESS
        assert set(status["launcher"]) >= LAUNCHER
    else:
        assert status["cause"] is None


def test_every_key_of_an_event_is_always_there():
    event = as_json(Event(ts=utc_now(), type="launched", message="m"))
    assert set(event) >= EVENT
    assert event["rank"] is None


def test_unknown_is_null_and_never_zero():
    status = as_json(job_status(view(None)))
    known = {"schema", "job", "state", "host", "command", "world_size", "started_at"}
    known |= {"restarts_used", "restarts_left", "guarded", "imbalance", "ended_at"}
    lists = {"ranks", "gpus", "alerts"}
    assert {key for key in STATUS if status[key] is not None} <= known | lists
    assert {status["imbalance"][key] for key in IMBALANCE} == {None}
    rank = as_json(RankSample(rank=0, local_rank=0, host="h"))
    told = {key for key in RANK if rank[key] not in (None, [])}
    assert told == {"rank", "local_rank", "host", "state"}
    gpu = as_json(GpuSample(index=0))
    assert {key for key in GPU if gpu[key] is not None} == {"index", "lost"}


def test_times_are_iso_8601_in_utc():
    moment = dt.datetime(2026, 3, 1, 13, 5, 0, 250_000, tzinfo=dt.timezone.utc)
    status = as_json(job_status(view({"started_at": moment})))
    assert status["started_at"] == "2026-03-01T13:05:00.250000Z"


@pytest.mark.parametrize(
    ("changes", "command"),
    [
        ({"target": "train.py", "args": ["--lr", "1e-3"]}, "train.py --lr 1e-3"),
        ({"target": "my run.py", "args": ["", "a'b"]}, """'my run.py' '' 'a'"'"'b'"""),
        ({"kind": "module", "target": "pkg.train", "args": ["-m"]}, "-m pkg.train -m"),
    ],
)
def test_the_command_is_what_was_typed(changes, command):
    found = view(None, **changes)
    assert job_row(found).command == job_status(found).command == command


def test_a_command_is_listed_by_who_starts_its_ranks():
    command = {"kind": "command", "target": "accelerate", "nproc": 0}
    row = job_row(view(None, launcher="accelerate", **command))
    assert (row.launcher, row.world_size) == ("accelerate", None)
    assert job_row(view(FULL, **command)).launcher == "accelerate"  # as it was observed
    assert job_row(view(None, **command)).launcher == "python"
    assert job_row(view(FULL)).launcher == "ddptop"


def test_the_types_say_what_the_contract_says():
    for type_, names in (
        (contract.JobRow, ROW),
        (contract.RankRow, ROW_RANK),
        (contract.JobStatus, STATUS),
        (RankSample, RANK),
        (GpuSample, GPU),
        (GpuProcess, GPU_PROCESS),
        (Cause, CAUSE),
        (Alert, ALERT),
        (Imbalance, IMBALANCE),
        (Event, EVENT),
    ):
        missing = names - {field.encode_name for field in msgspec.structs.fields(type_)}
        assert missing == set(), type_.__name__
