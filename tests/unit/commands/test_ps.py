"""`ddptop ps`, as run by users and scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from ddptop.commands import ps
from tests.support import foreign_toys
from tests.support.foreign_trees import find, process, torchrun
from tests.support.nvml_stub import GIB, NoCompilerError, StubDriver, StubProcess, build_library

from ddptop_runner.foreign.process_table import ProcessTable
from ddptop_runner.foreign.types import Census, Unreadable
from ddptop_runner.host import procs
from ddptop_runner.host.tree import RankUsage
from ddptop_runner.jobs.contract import ForeignRow, foreign_list
from ddptop_runner.model.snapshot import GpuProcess, GpuSample, encode

SLEEP = "import time; time.sleep(600)"
OWN_PORT = str(20_000 + os.getpid() % 10_000)
"""Nothing listens there; processes of other test runs are visible too, and use another port."""


def gpus(count: int, found: Census | None = None) -> list[GpuSample]:
    ranks = [] if found is None else [rank for job in found.jobs for rank in job.ranks]
    return [
        GpuSample(
            index=index,
            uuid=f"GPU-{index}",
            processes=[
                GpuProcess(pid=rank.pid, mem_used_bytes=GIB if rank.rank == index else GIB // 8)
                for rank in ranks
                if f"GPU-{index}" in rank.devices
            ],
        )
        for index in range(count)
    ]


def census(*processes, devices=None) -> Census:
    jobs, unreadable = find(processes, devices)
    return Census(tuple(jobs), tuple(unreadable), {one.pid: one for one in processes})


def rows(found: Census, count: int = 4) -> dict:
    return json.loads(encode(foreign_list(found, ps.read_views(found, gpus(count, found)))))


def test_every_key_is_there():
    held = {101: ["GPU-2"], 102: ["GPU-3"]}
    hidden = process(50, 1, "python secret.py", uid=1001, environ=None)
    answer = rows(census(*torchrun(100, 0, 1), hidden, devices={**held, 50: ["GPU-0"]}))
    assert set(answer) == {"schema", "jobs", "unreadable"} and answer["schema"] == 1
    [job] = answer["jobs"]
    assert set(job) == set(ForeignRow.__struct_fields__)
    assert job["ranks"] == [{"rank": 0, "pid": 101, "gpu": 2}, {"rank": 1, "pid": 102, "gpu": 3}]
    assert (job["job"], job["state"], job["launcher"]) == ("train:100", "running", "torchrun")
    assert (job["world_size"], job["attempt"], job["root_pid"]) == (2, 0, 100)
    assert [job[key] for key in ("step", "total_steps", "eta_s", "progress")] == [None] * 4
    assert (job["policy"], job["restart_at"], job["set_aside"]) == (None, None, [])
    assert job["started_at"] == "2023-11-14T22:13:30Z"
    [other] = answer["unreadable"]
    assert set(other) == {"pid", "user", "command", "gpus", "reason"}
    assert (other["pid"], other["gpus"]) == (50, ["GPU-0"])


def test_devices_of_ranks_and_states_of_jobs():
    def ranks_gpus(found: Census) -> list[int | None]:
        return [rank["gpu"] for rank in rows(found)["jobs"][0]["ranks"]]

    held = {101: ["GPU-0"], 102: ["GPU-0", "GPU-1"]}
    assert ranks_gpus(census(*torchrun(100, 0, 1), devices=held)) == [0, 1], "stray contexts"
    several = census(process(60, 1, "python x.py"), devices={60: ["GPU-0", "GPU-1"]})
    assert ranks_gpus(several) == [None], "no device is claimed for one process on several"
    agent, *ranks = torchrun(100, 0, 1)
    ended = [process(one.pid, 100, one.argv, is_zombie=True, environ=one.environ) for one in ranks]
    assert rows(census(agent, *ended))["jobs"][0]["state"] == "lost"
    [starting] = rows(census(agent))["jobs"]
    assert (starting["state"], starting["ranks"]) == ("starting", [])


def test_the_table_and_its_ranks():
    found = census(*torchrun(100, 2, 3, size=4), devices={101: ["GPU-0"], 102: ["GPU-1"]})
    usage = {"train:100": RankUsage(120.0, (2 << 30) + (100 << 20), "S", (100, 101, 102))}
    views = ps.read_views(found, gpus(2, found))
    listed = foreign_list(found, views)
    text = ps.as_text(listed, views, usage, True).splitlines()
    assert text[0].split()[:5] == ["JOB", "LAUNCHER", "USER", "RANKS", "GPUS"]
    cells = [cell for cell in text[1].split("  ") if cell.strip()]
    assert [cell.strip() for cell in cells[:7]] == [
        "train:100",
        "torchrun",
        "user1000",
        "2 of 4",
        "0-1",
        "120%",
        "2.1 GiB",
    ]
    assert text[1].endswith("torchrun train.py")
    assert text[2:] == ["", "train:100:", "  rank 2 pid 101 GPU 0", "  rank 3 pid 102 GPU 1"]
    assert len(ps.as_text(listed, views, {}, False).splitlines()) == 2
    unknown = ps.as_text(listed, ps.read_views(found, []), {}, False).splitlines()[1]
    assert unknown.split()[6:9] == ["-", "n/a", "n/a"]


def test_what_could_not_be_looked_into_is_said():
    hidden = process(50, 1, "python secret.py", uid=1001, environ=None)
    found = census(hidden, devices={50: ["GPU-1"]})
    unknown = Unreadable(99, None, None, ("GPU-0",), "the driver reports this PID")
    found = msgspec.structs.replace(found, unreadable=(*found.unreadable, unknown))
    text = ps.unreadable_text(foreign_list(found, {}).unreadable, gpus(2)).splitlines()
    assert text[1].startswith("  pid 50 (user1001) GPU 1 python secret.py: owned by user1001")
    assert text[2].startswith("  pid 99 GPU 0: the driver reports this PID")


def test_nothing_found_is_one_line_and_no_failure(ddptop_home, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ProcessTable, "_pids", lambda self: [])
    assert ps.run(as_json=False, show_ranks=False) == 0
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1 and "torchrun" in said.err
    assert ps.run(as_json=True, show_ranks=False) == 0
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "jobs": [], "unreadable": []}


@pytest.fixture
def stub(tmp_path: Path) -> StubDriver:
    try:
        build_library()
    except NoCompilerError as error:
        pytest.skip(str(error))
    return StubDriver(tmp_path, 2)


@pytest.fixture
def start(ddptop_home, wait_until) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    children = []

    def begin(**variables: str) -> subprocess.Popen[bytes]:
        environ = {**os.environ, **variables}
        children.append(subprocess.Popen([sys.executable, "-c", SLEEP], env=environ))
        pid = children[-1].pid
        wait_until(lambda: procs.environ_value(pid, "DDPTOP_HOME"), what="its environment")
        return children[-1]

    yield begin
    for child in children:
        child.kill()
        child.wait()


def run_ps(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ddptop", "ps", *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_ranks_on_the_devices_of_a_driver(stub, start):
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": OWN_PORT}
    pids = [start(RANK=str(rank), LOCAL_RANK=str(rank), **common).pid for rank in range(2)]
    for index, pid in enumerate(pids):
        stub.set_processes(index, [StubProcess(pid, GIB)])
    # the simulated driver reports PIDs of this namespace; in a container, they count only with CUDA
    done = run_ps(stub.env(), "--json")
    assert done.returncode == 0, done.stderr
    [job] = [
        job
        for job in json.loads(done.stdout)["jobs"]
        if pids[0] in [rank["pid"] for rank in job["ranks"]]
    ]
    assert [(rank["rank"], rank["pid"]) for rank in job["ranks"]] == list(enumerate(pids))
    assert [rank["gpu"] for rank in job["ranks"]] == [0, 1]
    assert (job["launcher"], job["world_size"]) == ("python", 2)
    text = run_ps(stub.env(), "--ranks").stdout
    assert f"rank 0 pid {pids[0]} GPU 0" in text
    assert f"rank 1 pid {pids[1]} GPU 1" in text


def test_without_a_driver(start, tmp_path):
    environ = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": OWN_PORT}
    pid = start(**environ).pid
    (tmp_path / "libnvidia-ml.so.1").touch()
    done = run_ps({**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}, "--json")
    assert done.returncode == 0
    [job] = [job for job in json.loads(done.stdout)["jobs"] if job["root_pid"] == pid]
    assert job["ranks"] == [{"rank": 0, "pid": pid, "gpu": None}]


def test_what_the_end_of_an_output_tells_is_listed(tmp_path):
    path = tmp_path / "train.log"
    bar = " 25%|##5       | 250/1000 [00:10<00:30, 25.0it/s, loss=2.5]"
    with path.open("wb") as log, subprocess.Popen([sys.executable, "-c", SLEEP], stdout=log) as one:
        try:
            log.write(b"\r" + bar.encode())
            log.flush()
            seen = Census((foreign_toys.job_of(one.pid, started_at=foreign_toys.long_ago()),), ())
            views = ps.read_views(seen, [])
            found = foreign_list(seen, views)
        finally:
            one.kill()
    [row] = found.jobs
    assert (row.step, row.total_steps) == (250, 1000)
    assert row.progress.fraction == 0.25
    assert 0 < row.eta_s <= 30
    head, cells = ps.as_text(found, views, {}, False).splitlines()
    assert head.split()[-5:] == ["ELAPSED", "STEP", "DONE", "ETA", "COMMAND"]
    assert "250 / 1,000  ~25.0%" in cells
    assert "STEP" not in ps.as_text(found, ps.read_views(seen, []), {}, False)
