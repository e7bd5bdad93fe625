"""Which devices a launch gets: the real NVML binding with the simulated driver, read once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.support.builders import make_spec, put_job
from tests.support.nvml_stub import StubDriver, StubGpu, StubProcess
from tests.support.nvml_stub.driver import DRIVER_NOT_LOADED, GIB

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import UsageError
from ddptop_runner.devices import hardware
from ddptop_runner.devices import report as device_once
from ddptop_runner.devices.words import LIBRARY_MISSING
from ddptop_runner.launch.gpus.choice import again, choose, free_now
from ddptop_runner.model.spec import Device

PCI = "sys/bus/pci/devices/0000:01:00.0"


@pytest.fixture
def stub(make_stub, monkeypatch, ddptop_home) -> StubDriver:
    """Four idle devices; the last one is the coolest."""
    stub = make_stub(
        [StubGpu(i, mem_used=0, util=0, temperature=60 - 5 * (i == 3)) for i in range(4)]
    )
    for name, value in stub.env(log=False).items():
        monkeypatch.setenv(name, value)
    # this process read LD_LIBRARY_PATH when it started; the sampler is a separate process
    monkeypatch.setattr(device_once, "library_problem", lambda: None)
    return stub


@pytest.fixture
def trainer() -> Iterator[int]:
    """The PID of a process called train.py."""
    command = [sys.executable, "-c", "import time; time.sleep(600)", "train.py"]
    process = subprocess.Popen(command)
    yield process.pid
    process.kill()
    process.wait()


def indices(choice) -> list[int]:
    return [device.index for device in choice.devices]


def test_the_idlest_of_the_allowed(stub, trainer):
    stub.set(1, util=40)
    stub.set(2, mem_used=70 * GIB, processes=[StubProcess(trainer, 70 * GIB)])
    choice = choose("auto:2", {}, None)
    assert (indices(choice), choice.count, choice.by_uuid) == ([0, 3], 2, False)
    assert choice.environment["CUDA_VISIBLE_DEVICES"] == "0,3"
    (note,) = choice.notes
    user = "root" if os.geteuid() == 0 else ""
    assert note.startswith(f"using GPUs 0, 3; busy: GPU 2: {user}")
    assert f"train.py (pid {trainer}) uses 70.0 GiB" in note
    assert indices(choose("auto:1", {"CUDA_VISIBLE_DEVICES": "2,1"}, None)) == [1]
    assert free_now({}) == 3
    assert free_now({"CUDA_VISIBLE_DEVICES": "2"}) == 0


def test_busy_devices_are_refused_forced_or_waited_for(stub, trainer):
    stub.set(1, mem_used=GIB, processes=[StubProcess(trainer, GIB)])
    with pytest.raises(UsageError) as refused:
        choose(None, {}, None)
    assert "GPU 1 is busy: " in str(refused.value)
    assert "pass --gpus auto:3 for idle GPUs, --wait-gpus to wait" in str(refused.value)
    with pytest.raises(UsageError, match="pass --gpus auto:1 for idle GPUs, --wait-gpus"):
        choose("1", {}, None)
    with pytest.raises(UsageError, match=r"uses 1.0 GiB; pass --wait-gpus to wait"):
        choose("all", {"CUDA_VISIBLE_DEVICES": "1"}, None)
    with pytest.raises(
        UsageError,
        match=r"auto:4: only 3 of 4 GPUs are free.*pass --gpus auto:3 for idle GPUs, --wait-gpus",
    ):
        choose("auto:4", {}, None)
    forced = choose("0-1", {}, None, force=True)
    assert indices(forced) == [0, 1]
    assert forced.notes[0].startswith("using busy GPUs (--force): GPU 1: ")
    assert indices(choose("auto:4", {}, None, force=True)) == [0, 1, 2, 3]
    waiting = choose("1,0", {}, None, wait=True)
    assert (waiting.devices, waiting.waits, waiting.count) == (None, True, 2)
    assert [device.index for device in waiting.queue.candidates] == [1, 0]
    assert waiting.environment == {}
    assert waiting.notes[0].startswith("waiting for GPUs 0, 1; GPU 1: ")
    at_once = choose("2", {}, None, wait=True)
    assert (indices(at_once), at_once.waits, at_once.queue.count) == ([2], False, 1)


def test_what_a_job_took_meanwhile_is_seen_by_deciding_again(stub):
    choice = choose("auto:2", {}, None)
    assert indices(choice) == [0, 3]
    put_job("quick", None, devices=[Device(index=3, uuid=stub.gpu(3).uuid)], created_at=utc_now())
    assert indices(choice.remake()) == [0, 1]
    fixed = choose("0,1", {}, None)
    put_job("quicker", None, devices=[Device(index=1, uuid=stub.gpu(1).uuid)], created_at=utc_now())
    with pytest.raises(
        UsageError, match=r"GPU 1 is busy: reserved by job quicker; pass --gpus auto:2 "
    ):
        fixed.remake()


def test_with_a_lost_device_the_others_are_selected_by_uuid(stub):
    stub.lose(1)
    choice = choose(None, {}, None)
    assert indices(choice) == [0, 2, 3]
    assert choice.notes == ("GPU 1 is lost; skipping it",)
    assert choice.environment["CUDA_VISIBLE_DEVICES"].startswith(f"{stub.gpu(0).uuid},")
    queued = choose("0", {}, None, wait=True)
    assert queued.queue.by_uuid


def test_a_job_without_a_device_learns_why(stub, monkeypatch):
    assert choose("none", {}, 2).why_none is choose(None, {}, 2).why_none is None
    for visible in ("", "9"):
        choice = choose(None, {"CUDA_VISIBLE_DEVICES": visible}, 2)
        assert choice.devices == []
        assert choice.why_none == f"CUDA_VISIBLE_DEVICES is {visible!r}, which allows no GPUs"
    for index in range(4):
        stub.lose(index)
    assert "lost or in MIG mode, where --gpus must name" in (choose(None, {}, 2).why_none or "")
    stub.set_driver(init_status=DRIVER_NOT_LOADED)
    monkeypatch.setattr(hardware, "exists", lambda: True)
    choice = choose(None, {}, None)
    assert choice.devices is None and "the NVIDIA driver is not loaded" in choice.why_none
    assert choice.ranks is None
    monkeypatch.setattr(device_once, "library_problem", lambda: LIBRARY_MISSING)
    assert "libnvidia-ml.so.1 not found" in choose(None, {}, None).why_none
    monkeypatch.setattr(hardware, "exists", lambda: False)
    choice = choose(None, {}, None)
    assert (choice.devices, choice.why_none, choice.ranks) == (None, None, 2)


@pytest.mark.parametrize(
    ("files", "is_there"),
    [
        ({}, False),
        ({"sys/bus/pci/devices/a/class": "0x030200\n"}, False),
        ({f"{PCI}/class": "0x030200\n", f"{PCI}/vendor": "0x10de\n"}, True),
        ({f"{PCI}/class": "0x040300\n", f"{PCI}/vendor": "0x10de\n"}, False),
        ({f"{PCI}/class": "0x030000\n", f"{PCI}/vendor": "0x8086\n"}, False),
        ({"dev/nvidiactl": ""}, True),
        ({"dev/dxg": "", "usr/lib/wsl/lib/libd3d12.so": ""}, False),
        ({"dev/dxg": "", "usr/lib/wsl/lib/libnvidia-ml.so.1": ""}, True),
    ],
    ids=["none", "no vendor", "on the bus", "sound", "another's", "node", "WSL2 without", "WSL2"],
)
def test_nvidia_hardware_is_seen_without_a_driver(tmp_path, files, is_there):
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert hardware.exists(tmp_path) == is_there


def test_an_ended_job_gets_its_devices_again_or_learns_why_not(stub, trainer):
    devices = [Device(index=i, uuid=stub.gpu(i).uuid) for i in (2, 0)]
    spec = make_spec(devices=devices)
    assert again(spec, {}).devices == devices
    for visible, allowed in (("0,2", True), ("0,1", False), (stub.gpu(2).uuid, False)):
        env = {"CUDA_VISIBLE_DEVICES": visible}
        if allowed:
            assert again(spec, env).devices == devices
        else:
            with pytest.raises(UsageError, match=r"is not allowed: CUDA_VISIBLE_DEVICES is"):
                again(spec, env)
    stub.set(0, mem_used=GIB, processes=[StubProcess(trainer, GIB)])
    with pytest.raises(UsageError, match="GPU 0 is busy") as refused:
        again(spec, {})
    assert "; pass --wait-gpus to wait" in str(refused.value)  # `restart` has no --gpus
    assert again(spec, {}, force=True).devices == devices
    assert again(spec, {}, wait=True).waits
    stub.lose(2)
    with pytest.raises(UsageError, match="GPU 2: lost"):
        again(spec, {}, force=True)
    stub.restore(2)
    stub.set(2, mig_mode=1)
    with pytest.raises(UsageError, match="GPU 2: in MIG mode; cannot be used as a whole"):
        again(spec, {}, force=True)
    gone = make_spec(devices=[Device(index=0, uuid="GPU-other")])
    with pytest.raises(UsageError, match="GPU 0: does not exist"):
        again(gone, {})
    on_cpus = make_spec(devices=None)
    assert again(on_cpus, {}, wait=True).devices is None
