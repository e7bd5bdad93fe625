"""MIG: a device in MIG mode and its instances."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.nvml_stub import GIB, StubGpu, StubProcess

FIRST, SECOND = (
    "MIG-5c1b1b2a-0000-1111-2222-333344445555",
    "MIG-6d1b1b2a-0000-1111-2222-333344445555",
)


def instance(uuid: str, place: int, parent: StubGpu) -> StubGpu:
    return StubGpu(
        100 + place,
        uuid=uuid,
        name="NVIDIA H100 80GB HBM3 MIG 3g.40gb",
        parent=parent.uuid,
        minor=place,
        mem_total=40 * GIB,
        mem_used=(3 + place) * GIB,
    )


@pytest.fixture
def stub(make_stub):
    """Two devices; the second is in MIG mode with instances in slots 0 and 2."""
    whole = [StubGpu(0), StubGpu(1, mig_mode=1)]
    return make_stub([*whole, instance(FIRST, 0, whole[1]), instance(SECOND, 2, whole[1])])


def lose_second_device(stub):
    with stub.together():
        for index in (1, 100, 102):
            stub.lose(index)


def test_all_devices_come_with_their_instances(stub, make_reader):
    gpus = make_reader(stub).sample(0)
    parent = stub.gpu(1).uuid
    assert [(gpu["index"], gpu["uuid"], gpu["parent_uuid"]) for gpu in gpus] == [
        (0, stub.gpu(0).uuid, None),
        (1, parent, None),
        (1, FIRST, parent),
        (1, SECOND, parent),
    ]
    assert [gpu["mig_instances"] for gpu in gpus] == [[], [FIRST, SECOND], [], []]
    assert [gpu["mem_used_bytes"] // GIB for gpu in gpus] == [40, 40, 3, 5]


def test_a_process_is_listed_once_at_its_instance(stub, make_reader):
    stub.set_processes(1, [StubProcess(70001, GIB), StubProcess(70002, GIB)])
    stub.set_processes(102, [StubProcess(70002, GIB)])
    gpus = make_reader(stub).sample(0)
    assert [[p["pid"] for p in gpu["processes"]] for gpu in gpus] == [[], [70001], [], [70002]]
    # if it is requested alone, the device lists all of them
    alone = make_reader(stub, stub.gpu(1).uuid).sample(0)[0]
    assert [p["pid"] for p in alone["processes"]] == [70001, 70002]
    assert alone["mig_instances"] == [FIRST, SECOND]


def test_mig_device_without_instances_is_reported_as_unusable(make_stub, make_reader):
    gpu = make_reader(make_stub([StubGpu(0, mig_mode=1)])).sample(0)[0]
    assert "MIG mode with no instances" in gpu["note"]


def test_the_sampler_starts_over_if_instances_come_or_go(stub, make_reader):
    reader = make_reader(stub)
    reader.sample(0)
    third = instance("MIG-7", 1, stub.gpu(1))
    stub.gpus = [gpu for gpu in stub.gpus if gpu.uuid != SECOND] + [third]
    stub.write()
    with pytest.raises(msgspec.DecodeError):  # of nothing
        for second in range(1, 32):
            reader.sample(second)
    assert reader.process.wait(60) == 1
    gpus = make_reader(stub).sample(0)
    assert [gpu["uuid"] for gpu in gpus] == [*(stub.gpu(i).uuid for i in (0, 1)), FIRST, "MIG-7"]
    assert gpus[1]["mig_instances"] == [FIRST, "MIG-7"]


def test_a_lost_device_takes_its_instances_with_it(stub, make_reader):
    reader = make_reader(stub)
    reader.sample(0)
    lose_second_device(stub)
    for second in range(1, 40):
        gpus = reader.sample(second)
    assert [gpu["lost"] for gpu in gpus] == [False, True, True, True]
    with stub.together():
        for index in (1, 100, 102):
            stub.restore(index)
    for second in range(40, 52):
        gpus = reader.sample(second)
    assert [gpu["lost"] for gpu in gpus] == [False] * 4
    assert gpus[3]["mem_used_bytes"] == 5 * GIB


def test_the_sampler_starts_over_if_a_device_enters_or_leaves_mig_mode(make_stub, make_reader):
    stub = make_stub([StubGpu(0), StubGpu(1, mig_mode=0)])
    reader = make_reader(stub)
    assert not reader.sample(0)[1]["mig_instances"]
    stub.gpus.append(instance("MIG-7", 1, stub.gpu(1)))
    stub.set(1, mig_mode=1)
    with pytest.raises(msgspec.DecodeError):
        reader.sample(31)
    reader = make_reader(stub)
    assert reader.sample(0)[1]["mig_instances"] == ["MIG-7"]
    stub.gpus.pop()
    stub.set(1, mig_mode=0)
    with pytest.raises(msgspec.DecodeError):
        reader.sample(31)
