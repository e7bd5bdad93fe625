"""Old runs: kept by default, deleted at a launch if config.toml says so."""

from __future__ import annotations

import datetime as dt

import pytest

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.config import RunsConfig, keep_bytes, read_config
from ddptop_runner.base.errors import UsageError
from ddptop_runner.base.files import lock
from ddptop_runner.base.paths import RunFolder, config_file, run_folder
from ddptop_runner.host.procs import host_name
from ddptop_runner.jobs.launch import EndedRun, expired, prune
from ddptop_runner.model.snapshot import NodeSnapshot, encode
from ddptop_runner.model.spec import JobSpec, write_spec

NOW = dt.datetime(2026, 1, 31, tzinfo=dt.timezone.utc)


def run(job: str, days_ago: float, size: int = 0) -> EndedRun:
    return EndedRun(job, NOW - dt.timedelta(days=days_ago), size)


RUNS = [run("b", 2, 20), run("a", 1, 10), run("d", 4, 40), run("c", 3, 30)]


@pytest.mark.parametrize(
    ("days", "limit", "gone"),
    [
        (None, None, ""),
        (10, None, ""),
        (2.5, None, "dc"),
        (0, None, "dcba"),
        (None, 100, ""),
        (None, 99, "d"),
        (None, 60, "d"),
        (None, 59, "dc"),
        (None, 9, "dcba"),
        (2.5, 30, "dc"),
        (2.5, 29, "dcb"),
    ],
)
def test_which_runs_go(days, limit, gone):
    assert "".join(one.job for one in expired(RUNS, days, limit, NOW)) == gone


def test_a_small_old_run_does_not_outlive_a_large_later_one():
    runs = [run("small", 9, 1), run("large", 5, 100), run("new", 1, 10)]
    assert [one.job for one in expired(runs, None, 50, NOW)] == ["small", "large"]


@pytest.mark.parametrize(
    ("given", "size"),
    [(None, None), (5, 5), ("5", 5), ("50G", 50 << 30), ("1.5 KiB", 1536), ("2tb", 2 << 40)],
)
def test_sizes(given, size):
    assert keep_bytes(RunsConfig(keep_bytes=given)) == size


def configure(text: str) -> None:
    config_file().parent.mkdir(parents=True, exist_ok=True)
    config_file().write_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "[runs",
        "[runs]\nkeep_days = 'ten'",
        "[runs]\nkeep_day = 3",
        "[runs]\nkeep_days = -1",
        "[runs]\nkeep_days = nan",
        "x = " + "[" * 100_000,
        "[runs]\nkeep_bytes = 'lots'",
        "[runs]\nkeep_bytes = -5",
        "\udcff",
    ],
)
def test_a_bad_file_is_one_clear_line_and_deletes_nothing(ddptop_home, text):
    put_job("old", days_ago=1000)
    config_file().parent.mkdir(parents=True)
    config_file().write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError) as caught:
        read_config()
    assert str(config_file()) in str(caught.value)
    note = prune()
    assert note is not None
    assert "not deleting old runs" in note
    assert "\n" not in note
    assert run_folder("old").spec_file.exists()


def put_job(job: str, days_ago: float, host: str | None = None, state: str = "finished"):
    folder = run_folder(job)
    folder.nodes_dir.mkdir(parents=True)
    then = utc_now() - dt.timedelta(days=days_ago)
    host = host or host_name()
    spec = JobSpec(
        **{"job": job, "job_id": f"{job}@1", "host": host, "created_at": then, "kind": "script"},
        **{"target": "t.py", "python": "python3", "cwd": "/", "nproc": 1},
    )
    write_spec(folder, spec)
    snapshot = NodeSnapshot(
        **{"job": job, "job_id": f"{job}@1", "host": host, "seq": 1, "ts": then},
        **{"state": state, "started_at": then, "ended_at": then},
    )
    folder.node_file(host).write_bytes(encode(snapshot))
    return folder


def left(*jobs: RunFolder) -> list[str]:
    return [folder.job for folder in jobs if folder.path.exists()]


def test_only_ended_runs_of_this_host_go(ddptop_home):
    jobs = [
        put_job("fresh", 1),
        put_job("old", 40),
        put_job("lost", 40, state="running"),
        put_job("elsewhere", 40, host="another"),
        put_job("guarded", 40),
    ]
    damaged = put_job("damaged", 40)
    damaged.spec_file.write_bytes(b"{")
    held = lock(run_folder("guarded").guardian_lock)
    assert prune() is None
    assert len(left(*jobs)) == 5
    configure("[runs]\nkeep_days = 30\n[later]\nx = 1\n")
    note = prune()
    assert held is not None
    assert left(*jobs, damaged) == ["fresh", "elsewhere", "guarded", "damaged"]
    assert note is not None
    assert "deleted 2 old runs, as configured in config.toml: " in note


def test_launch_deletes_old_runs_and_reports_it(ddptop_home, ddptop_cli, tmp_path):
    old = put_job("old", 40)
    (old.path / "big").write_bytes(b"x" * (1 << 20))
    fresh = put_job("fresh", 1)
    configure("[runs]\nkeep_bytes = '1M'\n")
    (tmp_path / "empty.py").write_text("")
    answer = ddptop_cli("launch", "-d", "--nproc", "1", str(tmp_path / "empty.py"))
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "empty\n"
    assert "deleted 1 old run, as configured in config.toml: old" in answer.stderr
    assert left(old, fresh) == ["fresh"]
    assert ddptop_cli("wait", "empty", timeout_s=300).returncode == 0
