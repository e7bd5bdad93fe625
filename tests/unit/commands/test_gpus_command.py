"""`ddptop gpus`, as run by users and scripts."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from ddptop.commands.gpus import notes, tables, with_xids
from tests.support.nvml_stub import GIB, StubProcess

from ddptop_runner.base.clock import utc_now
from ddptop_runner.devices import report as device_report
from ddptop_runner.devices.owners import labeled
from ddptop_runner.devices.report import DeviceReport, library_problem
from ddptop_runner.model.snapshot import GpuProcess, GpuSample


def gpus(env, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ddptop", "gpus", *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_json_has_every_key(make_stub, ddptop_home):
    stub = make_stub(2)
    stub.set_processes(0, [StubProcess(1, GIB)])
    stub.lose(1)
    done = gpus(stub.env(), "--json")
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    assert set(answer) == {"schema", "source", "driver", "note", "gpus"}
    assert (answer["schema"], answer["source"], answer["driver"]) == (1, "nvml", "570.124.06")
    assert [set(gpu) for gpu in answer["gpus"]] == [set(GpuSample.__struct_fields__)] * 2
    assert set(answer["gpus"][0]["processes"][0]) == set(GpuProcess.__struct_fields__)
    assert answer["gpus"][1]["lost"] and "lost: " in answer["gpus"][1]["note"]


def test_text_shows_devices_and_processes(make_stub, ddptop_home):
    stub = make_stub(2)
    stub.set_processes(1, [StubProcess(1, 7 * GIB)])
    stub.set(0, reasons=0x40)
    stub.unsupported(0, "nvmlDeviceGetPowerUsage")
    lines = gpus(stub.env()).stdout.splitlines()
    assert lines[2].split()[4:] == [
        *("97%", "55%", "40.0/80.0", "GiB", "61", "°C", "412/700", "W", "1755/1980", "MHz"),
        *("2619", "MHz", "n/a", "P0", "0", "0"),
    ]
    assert lines[4].split() == ["GPU", "PID", "USER", "JOB", "RANK", "SM", "MEMORY", "COMMAND"]
    assert lines[5].split()[:2] == ["1", "1"] and "7.0 GiB" in lines[5]
    assert lines[7:] == [
        "GPU 0: clocks throttled (thermal, by hardware); busy: unknown process, 40.0 GiB",
        "GPU 1: busy: unknown process, 33.0 GiB",
        "n/a on GPU 0: POWER, FAN (not supported)",
        "n/a on GPU 1: FAN (not supported)",
        "n/a on GPU 1: SM (no sample for this process in the last second)",
    ]


def test_no_gpu_is_no_failure(no_library_env, ddptop_home):
    done = gpus(no_library_env, "--json")
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    assert "file too short): reinstall the NVIDIA driver" in answer.pop("note")
    assert answer == {"schema": 1, "source": None, "driver": None, "gpus": []}
    done = gpus(no_library_env)
    assert done.returncode == 0
    words = "no GPUs: libnvidia-ml.so.1 cannot be loaded ("
    assert done.stdout.startswith(words) and done.stdout.count("\n") == 1


def test_a_library_that_is_not_there_is_called_missing(monkeypatch):
    monkeypatch.setattr(device_report, "LIBRARY", "libnvidia-ml-of-nobody.so.1")
    assert "libnvidia-ml.so.1 not found: install" in library_problem()


def as_text(found: DeviceReport) -> str:
    return "\n".join([tables(found.gpus), "", *notes(found)])


def report(**fields: object) -> DeviceReport:
    return DeviceReport(ts=utc_now(), boottime_s=1.0, source="nvml", driver="570", **fields)


def test_processes_get_the_job_and_rank_that_is_known():
    gpu = GpuSample(index=0, processes=[GpuProcess(pid=10), GpuProcess(pid=11)])
    known = {11: ("train", 3)}
    labels = labeled([gpu, GpuSample(index=1)], known)
    assert [(p.job, p.rank) for p in labels[0].processes] == [(None, None), ("train", 3)]
    assert labels[1].processes is None
    assert as_text(report(gpus=labels)).count("train") == 1


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({}, [31]),
        ({"is_live": False}, None),
        ({"on_other_host": True}, None),
        ({"snapshot": None}, None),
    ],
)
def test_xids_come_from_live_jobs_of_this_host(changes, known):
    heard = [GpuSample(index=0, uuid="GPU-0", xid=[]), GpuSample(index=1, uuid="GPU-1", xid=[31])]
    view = {"is_live": True, "on_other_host": False, "snapshot": SimpleNamespace(gpus=heard)}
    asked = report(
        gpus=[GpuSample(index=0, uuid="GPU-0", xid=[]), GpuSample(index=1, uuid="GPU-1")]
    )
    found = with_xids(asked, [SimpleNamespace(**{**view, **changes})])
    assert [gpu.xid for gpu in found.gpus] == [[], known]
    words = "GPU 1: XID 31 (a kernel accessed an unmapped address)"
    assert (words in notes(found)) == (known is not None)


def test_unknown_is_never_shown_as_zero():
    text = as_text(report(gpus=[GpuSample(index=0)]))
    row = text.splitlines()[1]
    assert row.split() == ["0", *["n/a"] * 12]
    assert "n/a on GPU 0: processes (not reported by the driver)" in text


TROUBLED = [
    GpuSample(index=0, name="NVIDIA H100 80GB HBM3", xid=[94, 5]),
    GpuSample(index=1, lost=True, note="lost: it fell off the bus; reset it"),
    GpuSample(index=2, temperature_c=83, temperature_slowdown_c=87, throttle_reasons=["power cap"]),
    GpuSample(index=3, temperature_c=81, temperature_slowdown_c=87, ecc_uncorrected=2),
    GpuSample(index=4, remapped_rows=3, note="a bad row"),
    GpuSample(index=5, uuid="GPU-5", mig_instances=["MIG-a"]),
    GpuSample(index=5, uuid="MIG-a", parent_uuid="GPU-5", name="NVIDIA H100 MIG 1g.10gb"),
]


def test_what_is_wrong_is_said_in_words():
    note = "devices not accessible: 1"
    text = as_text(report(gpus=TROUBLED, note=note))
    assert (
        "GPU 0: XID 94 (an uncorrectable memory error, contained to one process); XID 5\n" in text
    )
    assert "GPU 1: lost: it fell off the bus; reset it\n" in text
    assert "GPU 2: clocks throttled (power cap); 83 C; throttles at 87 C" in text
    assert "GPU 3: uncorrected memory errors since the driver was loaded: 2\n" in text
    assert "GPU 4: a bad row; remapped memory rows: 3\n" in text
    assert next(line for line in text.splitlines() if "MIG 1g.10gb" in line).startswith("5/0")
    assert text.endswith("\ndevices not accessible: 1")


def test_reasons_are_gathered_by_devices_and_not_repeated_for_lost_ones():
    unknown = {"fan_percent": "not supported", "pstate": "not supported"}
    gpus = [GpuSample(index=i, unknown=unknown, lost=i == 2, processes=[]) for i in (0, 1, 2, 3, 7)]
    text = as_text(report(gpus=gpus))
    assert text.splitlines()[7:] == ["GPU 2: lost", "n/a on GPU 0, 1, 3, 7: FAN, P (not supported)"]


def test_owners_that_are_not_known_say_why():
    processes = [GpuProcess(pid=pid, note="another namespace") for pid in range(8)]
    text = as_text(report(gpus=[GpuSample(index=0, processes=processes)]))
    assert text.endswith("pid 0, 1, 2, 3, 4, 5 and 2 more: another namespace")


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_the_terminal(make_stub, ddptop_home, width):
    script = f"""
import pty, sys
command = "stty cols {width}; exec " + sys.executable + " -m ddptop gpus"
sys.exit(pty.spawn(["sh", "-c", command]) >> 8)
"""
    stub = make_stub(1)
    stub.set_processes(0, [StubProcess(1, GIB)])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=stub.env(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= width
    assert ("FAN" in lines[0]) == (width == 120)
