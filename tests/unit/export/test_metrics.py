"""Metrics for Prometheus: their values and bounds, and the dashboard and rules that use them."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ddptop.commands.metrics import run
from ddptop.export.exporter import LONGEST_REQUEST, MOST_CLIENTS
from ddptop.export.metrics import GROUPS, MOST_GPUS, MOST_JOBS, MOST_RANKS, render
from ddptop.job.record import Job, own_job
from ddptop.job.series import Machine
from ddptop.sources.query import Devices, Look
from tests.support import system_tools
from tests.support.builders import make_snapshot, make_spec, put_job
from tests.support.programs import captured

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import UsageError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.job.registry import JobView
from ddptop_runner.model.snapshot import Alert, Checkpoint, GpuSample, RankSample

ROOT = Path(__file__).parents[3]
GRAFANA = ROOT / "docs" / "grafana"
NAMES = {metric.name for group in GROUPS for metric in group.metrics}
AT = dt.datetime(2026, 3, 14, 12, 0, 0, tzinfo=dt.timezone.utc)

needs_promtool = pytest.mark.skipif(
    system_tools.find("promtool") is None, reason="promtool is not installed"
)


def job(name: str = "bert", **changes: Any) -> Job:
    spec = make_spec(name, host="a", created_at=AT)
    changes = {"ts": AT, "guardian": None, **changes}
    return own_job(JobView(RunFolder(Path("/none")), spec, make_snapshot(spec, **changes), AT))


def rank(number: int, **more: Any) -> RankSample:
    return RankSample(rank=number, local_rank=number, host="a", state="running", **more)


def look(*jobs: Job, gpus: tuple[GpuSample, ...] = (), at: dt.datetime = AT) -> Look:
    return Look(taken_at=at, machine=Machine(host="a"), jobs=jobs, devices=Devices(gpus))


def values(page: bytes) -> dict[str, str]:
    """Each value by metric and labels; fails on a line that is none, and on duplicates."""
    rows: dict[str, str] = {}
    for line in page.decode().splitlines():
        if not line.startswith("# "):
            found = re.fullmatch(r'(\w+(?:\{(?:\w+="(?:[^"\\\n]|\\.)*",?)+\})?) (\S+)', line)
            assert found, line
            assert found[1] not in rows, line
            rows[found[1]] = found[2]
    return rows


FULL = job(
    attempt=2,
    step=40,
    total_steps=100,
    eta_s=30.0,
    ranks=[
        rank(
            0,
            step=40,
            run_step=140,
            loss=2.0,
            loss_state="ok",
            step_time_s=0.5,
            data_wait_s=0.125,
            sync_s=0.25,
            cpu_percent=150.0,
            rss_bytes=1 << 30,
            gpus=["GPU-0"],
            last_progress_at=AT,
        ),
        rank(1, loss=3.0, loss_state="ok", gpu=1),
    ],
    alerts=[Alert(id="straggler", severity="warning", message="rank 1 \n is slow", since=AT)],
    checkpoint=Checkpoint(path="/ckpt", at=AT),
)
GPUS = (
    GpuSample(
        index=0,
        uuid="GPU-0",
        name="H100",
        util_percent=97.0,
        mem_used_bytes=3 << 20,
        mem_total_bytes=8 << 20,
        mem_reserved_bytes=1 << 20,
        energy_j=2.5,
        xid=[],
    ),
    GpuSample(index=1, uuid="GPU-1", host="a", lost=True, xid=[13, 79]),
    GpuSample(index=2, uuid="GPU-2"),
)


def test_a_job_with_its_ranks_and_devices() -> None:
    got = values(render(look(FULL, gpus=GPUS)))
    at = str(AT.timestamp())
    zero, one = (
        f'{{gpu="{index}",UUID="GPU-{index}",modelName="{name}",Hostname="a",'
        f'job_name="bert",rank="{index}"}}'
        for index, name in ((0, "H100"), (1, ""))
    )
    wanted = {
        'ddptop_job_info{job_name="bert",host="a",launcher="ddptop"}': "1",
        'ddptop_job_state{job_name="bert",state="running"}': "1",
        'ddptop_job_state{job_name="bert",state="failed"}': "0",
        'ddptop_job_finding{job_name="bert",finding="straggler",severity="warning"}': "1",
        'ddptop_job_step{job_name="bert"}': "40",
        'ddptop_job_progress_ratio{job_name="bert"}': "0.4",
        'ddptop_job_loss{job_name="bert"}': "2.5",
        'ddptop_job_restarts_total{job_name="bert"}': "2",
        'ddptop_job_restarts_left{job_name="bert"}': "3",
        'ddptop_job_last_step_timestamp_seconds{job_name="bert"}': at,
        'ddptop_job_checkpoint_timestamp_seconds{job_name="bert"}': at,
        'ddptop_rank_step{job_name="bert",rank="0"}': "140",
        'ddptop_rank_step_time_seconds{job_name="bert",rank="0"}': "0.5",
        'ddptop_rank_data_wait_seconds{job_name="bert",rank="0"}': "0.125",
        'ddptop_rank_sync_seconds{job_name="bert",rank="0"}': "0.25",
        'ddptop_rank_cpu_ratio{job_name="bert",rank="0"}': "1.5",
        f"DCGM_FI_DEV_GPU_UTIL{zero}": "97.0",
        f"DCGM_FI_DEV_FB_USED{zero}": "3.0",
        f"DCGM_FI_DEV_FB_FREE{zero}": "4.0",
        f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{zero}": "2500.0",
        f"DCGM_FI_DEV_XID_ERRORS{zero}": "0",
        f"DCGM_FI_DEV_XID_ERRORS{one}": "79",
        f"ddptop_gpu_lost{one}": "1",
    }
    assert {key: got.get(key) for key in wanted} == wanted
    # of rank 1 and of the idle device, nothing else is known
    assert [key for key in got if 'job_name="bert",rank="1"' in key and "DCGM" not in key] == [
        'ddptop_rank_loss{job_name="bert",rank="1"}',
        f"ddptop_gpu_lost{one}",
    ]
    [idle] = [key for key in got if 'gpu="2"' in key]
    assert 'job_name="",rank=""' in idle


def test_a_device_that_two_ranks_use_or_none_is_nobodys() -> None:
    ranks = [
        rank(0, gpus=["GPU-0"], step=1),
        rank(1, gpus=["GPU-0"], step=1),
        rank(2, gpu=2, step=1),
        msgspec.structs.replace(rank(3, gpu=1, step=1), state="exited"),
    ]
    gpus = (
        GpuSample(index=0, uuid="GPU-0"),
        GpuSample(index=1, uuid="GPU-1"),
        GpuSample(index=2, uuid="MIG-2", parent_uuid="GPU-2"),
    )
    got = values(render(look(job(ranks=ranks), gpus=gpus)))
    lost = [key for key in got if key.startswith("ddptop_gpu_lost{")]
    assert len(lost) == 3 and all('job_name="",rank=""' in key for key in lost)
    assert 'ddptop_rank_step{job_name="bert",rank="3"}' not in got, "it has ended"


def test_a_loss_that_is_not_finite_is_a_value() -> None:
    ranks = [rank(0, loss_state="nan"), rank(1, loss_state="inf")]
    got = values(render(look(job(ranks=ranks))))
    assert got['ddptop_rank_loss{job_name="bert",rank="0"}'] == "NaN"
    assert got['ddptop_rank_loss{job_name="bert",rank="1"}'] == "+Inf"
    assert got['ddptop_job_loss{job_name="bert"}'] == "NaN"


def test_an_ended_job_stays_for_a_day_without_its_ranks() -> None:
    ended = job(state="failed", ended_at=AT, ranks=[rank(0, loss=1.0)], alerts=FULL.snapshot.alerts)
    got = values(render(look(ended, at=AT + dt.timedelta(hours=23))))
    assert got['ddptop_job_state{job_name="bert",state="failed"}'] == "1"
    assert got['ddptop_job_end_timestamp_seconds{job_name="bert"}'] == str(AT.timestamp())
    assert not any(key.startswith(("ddptop_rank_", "ddptop_job_finding")) for key in got)
    assert not any(
        "bert" in key for key in values(render(look(ended, at=AT + dt.timedelta(days=1))))
    )


def test_figures_of_a_supervisor_that_is_gone_are_unknown() -> None:
    stale = job(ts=AT - dt.timedelta(minutes=2), ranks=[rank(0, loss=1.0)])
    got = values(render(look(stale)))
    assert 'ddptop_job_update_timestamp_seconds{job_name="bert"}' in got
    assert not any(key.startswith("ddptop_rank_") for key in got)


def test_the_number_and_length_of_series_are_bounded() -> None:
    evil = 'a"b\\\nc\udcff' + "x" * 1000
    jobs = [job(evil, ranks=[rank(number, step=1) for number in range(MOST_RANKS + 5)])]
    jobs += [job(evil + "y"), *(job(f"job-{number}") for number in range(MOST_JOBS))]
    gpus = tuple(GpuSample(index=number) for number in range(MOST_GPUS + 5))
    got = values(render(look(*jobs, gpus=gpus)))
    assert sum(key.startswith("ddptop_gpu_lost{") for key in got) == MOST_GPUS
    assert got["ddptop_jobs_omitted"] == "3"  # one has the name of another
    assert got["ddptop_ranks_omitted"] == "5"
    assert sum(key.startswith("ddptop_rank_step{") for key in got) == MOST_RANKS
    assert sum(key.startswith("ddptop_job_info{") for key in got) == MOST_JOBS - 1
    assert max(map(len, got)) < 300
    assert any(key.startswith(r'ddptop_job_info{job_name="a\"b\\\nc?x') for key in got)


@needs_promtool
def test_promtool_accepts_every_metric() -> None:
    figures = {
        "mem_util_percent": 50.0,
        "temperature_c": 60.0,
        "power_w": 600.0,
        "sm_clock_mhz": 1700,
        "mem_clock_mhz": 2600,
        "remapped_rows": 0,
    }
    gpu = msgspec.structs.replace(GPUS[0], **figures)
    ranks = [msgspec.structs.replace(FULL.snapshot.ranks[0], gpu_mem_used_bytes=1)]
    snapshot = msgspec.structs.replace(FULL.snapshot, ranks=ranks)
    ended = job("gpt", state="finished", ended_at=AT)
    page = render(look(msgspec.structs.replace(FULL, snapshot=snapshot), ended, gpus=(gpu,)))
    assert {line.split()[2] for line in page.decode().splitlines() if "# TYPE" in line} == NAMES
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, check=False
    )
    said = done.stderr.decode().splitlines()  # the labels of GPUs are DCGM's: 3 is advice only
    assert done.returncode == 3 and said
    assert [line for line in said if "label names should be" not in line] == []


# --- what is written about them -------------------------------------------------------------------


def test_the_table_in_the_docs_is_true() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = [
        f"| `{metric.name}` | {', '.join(group.labels)} | {metric.kind} | {metric.help} |"
        for group in GROUPS
        for metric in group.metrics
    ]
    assert [line for line in page.splitlines() if re.match(r"\| `(ddptop|DCGM)_", line)] == rows


def used_in(text: str) -> set[str]:
    return set(re.findall(r"\b(?:ddptop_[a-z_]+|DCGM_[A-Z_]+)", text))


def test_dashboard_and_rules_use_metrics_that_exist() -> None:
    rules = (GRAFANA / "alerts.yml").read_text(encoding="utf-8")
    panels = json.loads((GRAFANA / "ddptop.json").read_text(encoding="utf-8"))
    for text in (rules, json.dumps(panels), (ROOT / "docs" / "metrics.md").read_text()):
        assert used_in(text) and used_in(text) <= NAMES


def test_no_panel_of_the_dashboard_covers_another() -> None:
    dashboard = json.loads((GRAFANA / "ddptop.json").read_text(encoding="utf-8"))
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24


@needs_promtool
@pytest.mark.parametrize(
    "arguments",
    [["check", "rules", GRAFANA / "alerts.yml"], ["test", "rules", "alerts_test.yml"]],
    ids=lambda arguments: arguments[0],
)
def test_promtool_accepts_the_rules(arguments: list[object]) -> None:
    done = captured("promtool", *map(str, arguments), cwd=Path(__file__).parent, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", ":9400"], "use --listen 127.0.0.1:9400"),
        (["--listen", "127.0.0.1:65536"], "use --listen 127.0.0.1:9400"),
        (["--listen", "192.0.2.1:9400"], "annot assign requested address; use another"),
        (["--textfile", "/no/folder"], "cannot write /no/folder/ddptop.prom: No such file"),
        (["--textfile", "/tmp", "--listen", "127.0.0.1:0"], "cannot be used together"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_done_is_one_line(ddptop_cli, arguments: list[str], words: str) -> None:
    done = ddptop_cli("metrics", *arguments)
    assert done.returncode == 2
    assert words in done.stderr and done.stderr.count("\n") == 1


def test_without_options_they_are_printed(ddptop_cli) -> None:
    put_job("bert", {"state": "finished", "ended_at": utc_now()})
    done = ddptop_cli("metrics")
    assert 'ddptop_job_state{job_name="bert",state="finished"} 1\n' in done.stdout
    assert (done.returncode, done.stderr) == (0, "")


def started(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ddptop", "metrics", *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_a_textfile_is_readable_for_node_exporter_and_goes_with_its_writer(
    ddptop_home, tmp_path, wait_until
) -> None:
    put_job("bert", {"state": "finished", "ended_at": utc_now()})
    file = tmp_path / "ddptop.prom"
    with started("--textfile", str(tmp_path), "--interval", "1") as writer:
        wait_until(file.exists, what="the file")
        assert 'job_name="bert"' in file.read_text()
        assert file.stat().st_mode & 0o777 == 0o644
        first = file.stat().st_ino
        wait_until(lambda: file.stat().st_ino != first, what="a second file")
        writer.send_signal(signal.SIGTERM)
        assert (writer.wait(30), writer.stderr and writer.stderr.read()) == (0, "")
    assert list(tmp_path.iterdir()) == []


class Served:
    """A running exporter."""

    def __init__(self) -> None:
        self.process = started("--listen", "127.0.0.1:0")
        assert self.process.stderr
        self.port = int(re.findall(r":(\d+)/", self.process.stderr.readline())[0])

    def connect(self, data: bytes = b"") -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        client.sendall(data)
        return client

    def get(self, path: str = "/metrics") -> bytes:
        with self.connect(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode()) as client:
            return b"".join(iter(lambda: client.recv(1 << 16), b""))

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


@pytest.fixture
def served(ddptop_home: Path) -> Iterator[Served]:
    put_job("bert", {"state": "finished", "ended_at": utc_now()})
    server = Served()
    yield server
    server.process.terminate()
    assert server.process.wait(30) == 0
    assert server.process.stderr and server.process.stderr.read() == ""
    server.process.stderr.close()


def test_clients_that_are_slow_many_or_talk_garbage_cost_nothing(served, wait_until) -> None:
    assert b'job_name="bert"' in served.get()
    assert served.get("/").startswith(b"HTTP/1.1 404 ")
    files = served.files()
    garbage = [
        b"\0" * 100,
        b"GET /metrics HTTP/1.1\r\n" + b"x: y\r\n" * LONGEST_REQUEST,
        b"\r\n\r\n",
    ]
    clients = [served.connect(data) for data in garbage]
    clients += [served.connect(b"GET ") for _ in range(2 * MOST_CLIENTS)]
    assert is_dropped(clients[-1]), "one too many"
    assert not select.select([clients[len(garbage)]], [], [], 0)[0], "the first may still go on"
    wait_until(lambda: has_page(served), what="an answer once slow clients are dropped")
    wait_until(lambda: served.files() <= files, what="all connections to be closed")
    for client in clients:
        client.close()


def test_it_ends_quietly_while_clients_wait(served) -> None:
    with served.connect(b"GET /metrics"):
        served.get()
        served.process.terminate()
        assert served.process.wait(30) == 0


def is_dropped(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def has_page(served: Served) -> bool:
    try:
        return b'job_name="bert"' in served.get()
    except OSError:
        return False


def test_a_port_in_use_is_one_line(served, ddptop_cli) -> None:
    done = ddptop_cli("metrics", "--listen", f"127.0.0.1:{served.port}")
    assert done.returncode == 2
    words = f"cannot listen on 127.0.0.1:{served.port}: Address already in use; use another"
    assert words in done.stderr and done.stderr.count("\n") == 1


def test_an_address_that_cannot_be_encoded_is_refused(ddptop_home) -> None:
    with pytest.raises(UsageError, match="is no address"):
        run(f"{'a' * 70}:9400", None, 15.0)
