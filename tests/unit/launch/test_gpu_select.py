from __future__ import annotations

import pytest
from tests.support.tables import table

from ddptop_runner.base.errors import UsageError
from ddptop_runner.launch.gpus.choice import (
    GpuRequest,
    Machine,
    job_environment,
    mig_instances,
    parse_gpus,
    visible_devices,
)
from ddptop_runner.model.snapshot import GpuSample
from ddptop_runner.model.spec import Device

MACHINE = [
    GpuSample(index=0, uuid="GPU-aa00", name="H100"),
    GpuSample(index=1, uuid="GPU-aa11", name="H100"),
    GpuSample(index=2, uuid="GPU-bb22", name="H100"),
    GpuSample(index=3, uuid="GPU-cc33", name="H100"),
]
MIG = GpuSample(index=1, uuid="MIG-dd44", name="H100 MIG 3g.40gb")


def resolve(request, present, inherited_cvd, nproc=None) -> list[Device] | None:
    return Machine(present, inherited_cvd).resolve(request, nproc)


def left_out(request, present, inherited_cvd) -> list[str]:
    return Machine(present, inherited_cvd).left_out(request)


def indices(devices: list[Device] | None) -> list[int] | None:
    return None if devices is None else [device.index for device in devices]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0-3", (0, 1, 2, 3)),
        ("0,2,5", (0, 2, 5)),
        ("0-1,4", (0, 1, 4)),
        ("3,1", (3, 1)),
        (" 2 , 0 ", (2, 0)),
        ("7-7", (7,)),
    ],
)
def test_indices(text, expected):
    assert parse_gpus(text) == GpuRequest("indices", expected)


def test_all_none_and_the_idlest():
    assert parse_gpus("all") == GpuRequest("all")
    assert parse_gpus(" none ") == GpuRequest("none")
    assert parse_gpus("auto:4") == GpuRequest("auto", count=4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("GPU-aa00", ("GPU-aa00",)),
        ("GPU-bb, GPU-aa1", ("GPU-bb", "GPU-aa1")),
        ("MIG-dd44", ("MIG-dd44",)),
        ("MIG-GPU-aa00/1/0", ("MIG-GPU-aa00/1/0",)),  # how drivers before R470 name them
    ],
)
def test_uuids(text, expected):
    assert parse_gpus(text) == GpuRequest("uuids", uuids=expected)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("a", "'a'"),
        ("0,,1", "''"),
        ("0,", "''"),
        ("1-", "'1-'"),
        ("-1", "'-1'"),
        ("0,x-2", "'x-2'"),
        ("0-1-2", "'0-1-2'"),
        ("1.5", "'1.5'"),
        ("²", "'²'"),
        ("3-0", "'3-0' is reversed; use 0-3"),
        ("0,1,0", "lists 0 twice"),
        ("0-3,2", "lists 2 twice"),
        ("0-99999999999", "'0-99999999999'"),
        ("auto", "auto:2 (the idlest)"),
        ("auto:0", "auto:2 (the idlest)"),
        ("auto:-1", "auto:2"),
        ("auto:99999", "auto:2 (the idlest)"),
        ("0-" + "9" * 5000, "not an index or range"),
        ("GPU-", "'GPU-'"),
        ("gpu-aa00", "'gpu-aa00'"),
        ("GPU-aa00,1", "'GPU-aa00' is not an index or range"),
        ("GPU-aa00,GPU-aa00", "GPU-aa00 twice"),
    ],
)
def test_what_cannot_be_used_is_named(text, named):
    with pytest.raises(UsageError) as raised:
        parse_gpus(text)
    assert named in str(raised.value)
    assert raised.value.exit_code == 2
    assert raised.value.hint


# --- resolving ---------------------------------------------------------------------------------


def test_the_default_is_all_devices():
    assert indices(resolve(None, MACHINE, None)) == [0, 1, 2, 3]
    assert resolve(None, MACHINE, None)[1] == Device(index=1, uuid="GPU-aa11", name="H100")


def test_a_machine_without_devices_trains_on_cpus():
    assert resolve(None, [], None) is None
    assert resolve(GpuRequest("none"), [], None) == []


@pytest.mark.parametrize("request_", [GpuRequest("all"), GpuRequest("indices", (0,))])
def test_devices_asked_for_where_there_are_none(request_):
    with pytest.raises(UsageError, match="no GPUs found"):
        resolve(request_, [], None)


@pytest.mark.parametrize(("cvd", "expected"), table(__file__, "inherited"))
def test_an_inherited_list_is_read_as_cuda_does(cvd, expected):
    assert indices(visible_devices(MACHINE, cvd)) == expected
    assert indices(resolve(None, MACHINE, cvd)) == expected


def test_an_inherited_list_is_the_outer_bound():
    assert indices(resolve(parse_gpus("2"), MACHINE, "2,0")) == [2]
    assert indices(resolve(parse_gpus("all"), MACHINE, "2,0")) == [2, 0]
    with pytest.raises(UsageError) as raised:
        resolve(parse_gpus("0-1"), MACHINE, "2,0")
    assert str(raised.value) == (
        "GPU 1 is not allowed: CUDA_VISIBLE_DEVICES is '2,0'; allowed: GPUs 0, 2"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [("all", "'', which allows no GPUs"), ("0", "GPU 0 is not allowed: .*''; unset it")],
)
def test_an_empty_inherited_list_allows_nothing(text, words):
    with pytest.raises(UsageError, match=words):
        resolve(parse_gpus(text), MACHINE, "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("GPU-cc33,GPU-aa00", [3, 0]), ("GPU-b", [2]), ("GPU-aa0", [0]), ("GPU-aa11", [1])],
)
def test_uuids_may_be_shortened(text, expected):
    assert indices(resolve(parse_gpus(text), MACHINE, None)) == expected


@pytest.mark.parametrize(
    ("text", "cvd", "words"),
    [
        ("GPU-zz", None, "no device has UUID GPU-zz; see `nvidia-smi -L`"),
        ("GPU-aa", None, "GPU-aa matches 2 UUIDs: GPU-aa00, GPU-aa11; use a longer prefix"),
        ("GPU-aa0,GPU-aa00", None, "--gpus lists GPU-aa00 twice"),
        (
            "GPU-aa00",
            "1,2",
            "GPU 0 is not allowed: CUDA_VISIBLE_DEVICES is '1,2'; allowed: GPUs 1, 2",
        ),
        ("GPU-aa00", "", "GPU 0 is not allowed"),
    ],
)
def test_uuids_that_cannot_be_had(text, cvd, words):
    with pytest.raises(UsageError) as raised:
        resolve(parse_gpus(text), MACHINE, cvd)
    assert words in str(raised.value)


def test_the_idlest_are_chosen_from_what_is_allowed():
    assert indices(resolve(parse_gpus("auto:1"), MACHINE, None)) == [0, 1, 2, 3]
    assert indices(resolve(parse_gpus("auto:2"), MACHINE, "3,1")) == [3, 1]
    with pytest.raises(UsageError, match=r"auto:3: only 2 to choose from \(GPUs 1, 3\)"):
        resolve(parse_gpus("auto:3"), MACHINE, "3,1")
    with pytest.raises(UsageError, match="allows no GPUs"):
        resolve(parse_gpus("auto:1"), MACHINE, "")


# --- MIG ---------------------------------------------------------------------------------------


def test_a_mig_instance_is_for_one_rank():
    assert mig_instances("MIG-dd44,MIG-ee55") == ["MIG-dd44", "MIG-ee55"]
    assert mig_instances("0,1") == mig_instances(None) == []
    for nproc in (None, 1):
        devices = resolve(None, [MIG], "MIG-dd44", nproc)
        assert devices == [Device(index=1, uuid="MIG-dd44", name="H100 MIG 3g.40gb")]
    with pytest.raises(UsageError, match="only one MIG instance, with one rank"):
        resolve(None, [MIG], "MIG-dd44", 2)


PARENT = GpuSample(index=1, uuid="GPU-aa11", mig_instances=["MIG-dd44", "MIG-ee55"])
INSTANCES = [
    GpuSample(index=1, uuid=uuid, parent_uuid="GPU-aa11", name="H100 MIG 3g.40gb")
    for uuid in ("MIG-dd44", "MIG-ee55")
]
DIVIDED = [MACHINE[0], PARENT, *INSTANCES, MACHINE[2]]


@pytest.mark.parametrize(
    ("text", "cvd"), [("MIG-e", None), ("MIG-ee55", "0,1"), ("MIG-ee", "MIG-ee55")]
)
def test_an_instance_is_chosen_by_its_uuid(text, cvd):
    (device,) = resolve(parse_gpus(text), DIVIDED, cvd, nproc=1)
    assert (device.index, device.uuid, device.is_mig) == (1, "MIG-ee55", True)
    assert left_out(parse_gpus(text), DIVIDED, cvd) == []


def test_a_device_in_mig_mode_without_instances_is_no_use():
    machine = [MACHINE[0], GpuSample(index=1, uuid="GPU-aa11", mig_mode=True)]
    assert indices(resolve(None, machine, None)) == [0]


# --- the job's variables -----------------------------------------------------------------------


def test_the_jobs_variables():
    devices = resolve(parse_gpus("3,1"), MACHINE, None)
    assert job_environment(devices) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "3,1",
    }
    assert job_environment(devices, by_uuid=True)["CUDA_VISIBLE_DEVICES"] == "GPU-cc33,GPU-aa11"
    assert job_environment([Device(index=4)], by_uuid=True)["CUDA_VISIBLE_DEVICES"] == "4"
    assert job_environment([])["CUDA_VISIBLE_DEVICES"] == ""
    assert job_environment(None) == {}
    mig = resolve(None, [MIG], "MIG-dd44")
    assert job_environment(mig)["CUDA_VISIBLE_DEVICES"] == "MIG-dd44"


def test_devices_that_are_not_there_are_named_with_those_that_are():
    with pytest.raises(UsageError) as raised:
        resolve(parse_gpus("2-5"), MACHINE, None)
    assert str(raised.value) == "GPUs 4, 5 do not exist; available: GPUs 0-3"
