"""`ddptop gpus`, as a person or a script runs it."""

from __future__ import annotations

import json
import subprocess
import sys

from ddptop.commands.gpus import as_text, labelled
from tests.nvml_stub import GIB, StubProcess

from ddptop_runner.clock import utc_now
from ddptop_runner.device_report import DeviceReport
from ddptop_runner.model import GpuProcess, GpuSample

GPU_KEYS = {
    "index",
    "uuid",
    "host",
    "name",
    "util_percent",
    "mem_util_percent",
    "mem_used_bytes",
    "mem_total_bytes",
    "mem_reserved_bytes",
    "temperature_c",
    "power_w",
    "power_limit_w",
    "sm_clock_mhz",
    "throttle_reasons",
    "ecc_uncorrected",
    "xid",
    "lost",
    "processes",
}
PROCESS_KEYS = {"pid", "user", "command", "mem_used_bytes", "job", "rank"}


def gpus(env, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ddptop", "gpus", *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def test_json_has_every_key(make_stub, ddptop_home):
    stub = make_stub(2)
    stub.set_processes(0, [StubProcess(1, GIB)])
    stub.lose(1)
    done = gpus(stub.env(), "--json")
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    assert set(answer) == {"schema", "source", "driver", "gpus"}
    assert (answer["schema"], answer["source"], answer["driver"]) == (1, "nvml", "570.124.06")
    assert [set(gpu) for gpu in answer["gpus"]] == [GPU_KEYS] * 2
    assert set(answer["gpus"][0]["processes"][0]) == PROCESS_KEYS
    assert answer["gpus"][1]["lost"]
    assert "GPU 1 lost" in done.stderr


def test_text_shows_devices_and_processes(make_stub, ddptop_home):
    stub = make_stub(2)
    stub.set_processes(1, [StubProcess(1, 7 * GIB)])
    stub.set(0, reasons=0x40)
    stub.unsupported(0, "nvmlDeviceGetPowerUsage")
    lines = gpus(stub.env()).stdout.splitlines()
    assert "n/a / 700 W" in lines[1] and "thermal, by hardware" in lines[1]
    assert "40.0 GiB / 80.0 GiB" in lines[2] and "97%" in lines[2]
    assert lines[4].split() == ["GPU", "PID", "USER", "JOB", "RANK", "MEMORY", "COMMAND"]
    assert lines[5].split()[:2] == ["1", "1"] and "7.0 GiB" in lines[5]


def test_no_gpu_is_no_failure(no_library_env, ddptop_home):
    done = gpus(no_library_env, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"schema": 1, "source": None, "driver": None, "gpus": []}
    done = gpus(no_library_env)
    assert done.returncode == 0
    assert done.stdout.startswith("no NVIDIA GPU: libnvidia-ml.so.1 was not found: install")
    assert done.stdout.count("\n") == 1


def report(**fields: object) -> DeviceReport:
    return DeviceReport(ts=utc_now(), boottime_s=1.0, source="nvml", driver="570", **fields)


def test_processes_get_the_job_and_rank_that_is_known():
    gpu = GpuSample(index=0, processes=[GpuProcess(pid=10), GpuProcess(pid=11)])
    known = {11: ("train", 3)}
    labels = labelled(report(gpus=[gpu, GpuSample(index=1)]), known.get).gpus
    assert [(p.job, p.rank) for p in labels[0].processes] == [(None, None), ("train", 3)]
    assert labels[1].processes is None
    assert as_text(report(gpus=labels)).count("train") == 1


def test_unknown_is_never_shown_as_zero():
    text = as_text(report(gpus=[GpuSample(index=0)]))
    row = text.splitlines()[1]
    assert "0" not in row[1:]
    assert row.count("n/a") == 9
    assert "processes: n/a" in text


def test_asking_imports_neither_textual_nor_rich_nor_asyncio():
    script = """
import sys
import ddptop.commands.gpus
print([name for name in ("textual", "rich", "torch", "asyncio", "pynvml") if name in sys.modules])
"""
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert said.stdout == "[]\n"
