"""A real Prometheus scrapes real jobs, and fires the alert of a failed one."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import system_tools

from ddptop_runner.host import procs

GRAFANA = Path(__file__).parents[3] / "docs" / "grafana"
PROMETHEUS = system_tools.find("prometheus")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.tmux,
    pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed"),
]
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: ddptop
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


@pytest.fixture
def exporter(ddptop_home: Path, stub: object) -> Iterator[int]:
    """The port of `ddptop metrics --listen`."""
    command = [sys.executable, "-m", "ddptop", "metrics", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        yield int(re.findall(r":(\d+)/", process.stderr.readline())[0])
        process.terminate()
        assert process.wait(30) == 0


@pytest.fixture
def query(exporter: int, tmp_path: Path, wait_until: Callable[..., Any]) -> Iterator[Any]:
    """`query(expression)`: the labels and values that Prometheus returns, or None before that."""
    config = tmp_path / "prometheus.yml"
    config.write_text(CONFIG.format(rules=GRAFANA / "alerts.yml", port=exporter))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        *[str(PROMETHEUS), f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"],
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    log = tmp_path / "prometheus.log"

    def ask(expression: str) -> list[tuple[dict[str, str], str]] | None:
        words = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{words}") as answer:
                found = json.load(answer)["data"]["result"]
        except ConnectionError:
            return None
        except urllib.error.URLError as error:
            if isinstance(error, urllib.error.HTTPError):
                raise AssertionError(f"{expression}: {error.read().decode()}") from None
            return None
        return [(one["metric"], one["value"][1]) for one in found]

    with log.open("w") as output, subprocess.Popen(command, stderr=output) as process:
        try:
            yield ask
        finally:
            process.terminate()


def expressions() -> list[str]:
    """All queries of the dashboard, for all jobs."""
    dashboard = json.loads((GRAFANA / "ddptop.json").read_text(encoding="utf-8"))
    targets = [one["expr"] for panel in dashboard["panels"] for one in panel.get("targets", [])]
    return [target.replace("$job_name", ".*") for target in targets]


def test_prometheus_shows_steps_and_devices_and_fires_for_a_failed_job(
    query, stub, launch, launch_script, wait_until
) -> None:
    job = launch(10_000, 0.02, "--gpus", "0,1")
    wait_until(job.trains, what="training")
    steps = wait_until(lambda: query(f'ddptop_job_step{{job_name="{job.name}"}}'), what="the step")
    assert int(steps[0][1]) > 0
    here = procs.host_name()
    devices = f'DCGM_FI_DEV_GPU_UTIL{{job_name="{job.name}",Hostname="{here}"}}'
    found = wait_until(lambda: len(query(devices) or []) == 2 and query(devices), what="devices")
    assert {(labels["gpu"], labels["rank"]) for labels, _ in found} == {("0", "0"), ("1", "1")}
    idle = wait_until(lambda: query('ddptop_gpu_lost{job_name=""}'), what="idle devices")
    assert sorted(labels["gpu"] for labels, _ in idle) == ["2", "3"]

    failed = launch_script("raise ValueError('bad')\n", "--max-restarts", "0", "--gpus", "none")
    fired = f'ALERTS{{alertname="DdptopJobFailed",job_name="{failed.name}",alertstate="firing"}}'
    assert wait_until(lambda: query(fired), what="the alert")
    assert query('ALERTS{alertname="DdptopNoStep"}') == []
    empty = [one for one in expressions() if not query(one)]
    job.cli("kill", job.name)
    # nothing is wrong with the healthy job, which has no total, loader, waits, or checkpoints
    allowed = ("ddptop_job_finding", "checkpoint", "progress_ratio", "data_wait", "sync_seconds")
    assert [one for one in empty if not any(name in one for name in allowed)] == []
