"""Who uses a device, what counts as busy, and which devices are the most idle."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.tables import table

from ddptop_runner.devices.words import (
    cuda_names,
    devices_in_words,
    names_of,
    renumbered,
)
from ddptop_runner.launch.gpus.idle import GAP_S, IdleWatch
from ddptop_runner.launch.gpus.usage import (
    IDLE_AFTER_S,
    busy_in_words,
    choice_in_words,
    grant,
    holders_in_words,
    idlest,
    is_hot,
    use_of,
)
from ddptop_runner.model.snapshot import GpuProcess, GpuSample
from ddptop_runner.model.spec import Device

MIB, GIB = 2**20, 2**30
DEVICE = Device(index=3, uuid="GPU-3")


def gpu(*processes: GpuProcess, **fields: object) -> GpuSample:
    used = sum(process.mem_used_bytes or 0 for process in processes)
    known = {"mem_used_bytes": used, "mem_total_bytes": 80 * GIB, "util_percent": 0.0}
    return GpuSample(
        **{"index": 3, "uuid": "GPU-3", "processes": list(processes), **known, **fields}
    )


def process(mem: int | None, pid: int = 7, **fields: object) -> GpuProcess:
    return GpuProcess(**{"pid": pid, "mem_used_bytes": mem, "user": "alice", **fields})


USES = table(__file__, "uses")


@pytest.mark.parametrize("case", USES.values(), ids=list(USES))
def test_who_makes_a_device_busy(case):
    sample = msgspec.convert(case.get("gpu"), GpuSample | None)
    words = case["words"]
    use = use_of(DEVICE, sample, case["claims"])
    assert holders_in_words(use) == words
    assert use.busy == (words != "free")


def test_hot_is_near_the_temperature_at_which_it_slows_down():
    hot = [is_hot(gpu(temperature_c=c, temperature_slowdown_c=90.0)) for c in (84.0, 85.0, None)]
    assert hot == [False, True, False] and not is_hot(gpu(temperature_c=99.0))


def used(index: int, mem_gib: float = 0.0, **fields: object) -> object:
    processes = [process(int(mem_gib * GIB), command="a")] if mem_gib else []
    sample = gpu(*processes, index=index, uuid=f"GPU-{index}", **fields)
    return use_of(Device(index=index, uuid=f"GPU-{index}"), sample)


ORDERS = {
    # devices, how many, which
    "free before busy": ([used(0, 1), used(1), used(2)], 2, [1, 2]),
    "less memory held": ([used(0, 3), used(1, 2), used(2, 9)], 2, [0, 1]),
    "busy only where needed": ([used(0, 3), used(1), used(2, 2)], 2, [1, 2]),
    "memory before utilization": (
        [used(0, 2, util_percent=0.0), used(1, 1, util_percent=100.0)],
        1,
        [1],
    ),
    "then utilization": ([used(0, util_percent=50.0), used(1, util_percent=3.0)], 1, [1]),
    "then temperature": ([used(0, temperature_c=60.0), used(1, temperature_c=41.0)], 1, [1]),
    "then the order": ([used(0), used(1), used(2)], 2, [0, 1]),
    "the driver's own memory is nobody's": (
        [used(0, mem_used_bytes=90 * MIB, temperature_c=40.0), used(1, temperature_c=50.0)],
        1,
        [0],
    ),
    "unknown comes last": ([used(0, util_percent=None), used(1, util_percent=4.0)], 1, [1]),
    "lost is the last of all": ([used(0, lost=True), used(1, 70)], 1, [1]),
    "in the order of the devices": ([used(0, 5), used(1), used(2, 1)], 2, [1, 2]),
}


@pytest.mark.parametrize("case", ORDERS.values(), ids=list(ORDERS))
def test_the_idlest(case):
    uses, count, expected = case
    assert [use.device.index for use in idlest(uses, count)] == expected


def test_choice_is_explained():
    uses = [used(0, 71.2), used(3), used(5), used(6), used(7)]
    assert choice_in_words(idlest(uses, 2), uses) == (
        "using GPUs 3, 5; busy: GPU 0: alice's a (pid 7) uses 71.2 GiB"
    )
    assert busy_in_words(uses) == "GPU 0: alice's a (pid 7) uses 71.2 GiB"
    assert busy_in_words([used(i, i + 1) for i in range(8)]).endswith("; and 4 more")
    assert busy_in_words([used(i, 2) for i in (0, 1, 2, 5)]) == (
        "GPUs 0-2, 5: alice's a (pid 7) uses 2.0 GiB"
    )


def test_a_grant_is_of_the_idlest_in_the_order_asked_for():
    uses = [used(5, temperature_c=70.0), used(2, temperature_c=30.0), used(0, temperature_c=50.0)]
    assert [device.index for device in grant(uses, 2)] == [2, 0]
    assert [device.index for device in grant(uses, 3)] == [5, 2, 0]
    assert grant([*uses, used(1, 8)], 4) is None


# --- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("indices", "words"),
    [([2], "GPU 2"), ([3, 0], "GPUs 0, 3"), ([0, 1, 2, 5], "GPUs 0-2, 5"), ([1, 0], "GPUs 0, 1")],
)
def test_devices_have_names(indices, words):
    assert names_of([Device(index=index) for index in indices]) == words


def test_which_cuda_device_is_which():
    devices = [Device(index=2), Device(index=5)]
    assert renumbered(devices)
    assert cuda_names(devices) == devices_in_words(devices) == "cuda:0 is GPU 2, cuda:1 is GPU 5"
    same = [Device(index=index) for index in range(4)]
    assert not renumbered(same)
    assert devices_in_words(same) == "GPUs 0-3, as cuda:0 to cuda:3"
    assert devices_in_words(same[:1]) == "GPU 0, as cuda:0"
    swapped = [Device(index=1), Device(index=0)]
    assert devices_in_words(swapped) == "cuda:0 is GPU 1, cuda:1 is GPU 0"
    instance = [Device(index=0, uuid="MIG-aa")]
    assert devices_in_words(instance) == "cuda:0 is MIG-aa on GPU 0"


class TestIdleNeighbors:
    """For how long a device in use is idle, and who may share it."""

    def watched(self, samples: list[tuple[float, GpuSample]], claims: tuple[str, ...] = ()):
        watch = IdleWatch()
        for at_s, sample in samples:
            (use,) = watch.look([use_of(DEVICE, sample, claims)], at_s)
        return use

    def every_3_s(self, until_s: float, sample: GpuSample) -> list[tuple[float, GpuSample]]:
        return [(at_s * 3.0, sample) for at_s in range(int(until_s / 3) + 1)]

    def test_an_idle_process_is_named_with_its_memory_and_time(self):
        sample = gpu(process(600 * MIB, command="python train.py"))
        use = self.watched(self.every_3_s(3 * 3600, sample))
        assert holders_in_words(use) == "alice's train.py (pid 7) uses 600 MiB, idle for 3 h"
        assert grant([use], 1) is None
        assert grant([use], 1, share_idle=True) == [DEVICE]
        young = self.watched(self.every_3_s(IDLE_AFTER_S - 3, sample))
        assert "idle" not in holders_in_words(young)
        assert grant([young], 1, share_idle=True) is None

    @pytest.mark.parametrize(
        ("last", "claims"),
        [
            ([(200.0, gpu(process(600 * MIB), util_percent=30.0))], ()),
            ([(200.0, gpu(process(600 * MIB), util_percent=None))], ()),
            ([(200.0, gpu(process(600 * MIB), process(300 * MIB, pid=8)))], ()),
            ([(GAP_S + 200.0, gpu(process(600 * MIB)))], ()),
            ([], ("job resnet",)),
        ],
        ids=["computes", "unknown load", "another process", "not watched", "reserved"],
    )
    def test_what_is_not_known_to_be_idle_is_not_shared(self, last, claims):
        use = self.watched([*self.every_3_s(198, gpu(process(600 * MIB))), *last], claims)
        assert grant([use], 1, share_idle=True) is None

    def test_most_of_the_memory_must_be_free(self):
        for used_gib, may in ((16, True), (17, False)):
            use = self.watched(self.every_3_s(198, gpu(process(used_gib * GIB))))
            assert (grant([use], 1, share_idle=True) is not None) is may

    def test_free_devices_come_first(self):
        use = self.watched(self.every_3_s(198, gpu(process(600 * MIB))))
        free = use_of(Device(index=4, uuid="GPU-4"), gpu(index=4, uuid="GPU-4"))
        assert grant([use, free], 1, share_idle=True) == [free.device]
