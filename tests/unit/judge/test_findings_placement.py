"""Ranks on wrong devices, and devices without ranks; and healthy jobs that look similar."""

from __future__ import annotations

import pytest
from tests.support.device_findings import (
    GPUS,
    RANKS,
    UNSTEPPED,
    assert_healthy,
    the,
    with_strays,
)
from tests.support.device_jobs import (
    JOB,
    change,
    change_all,
    make_gpu,
    make_rank,
    of_launcher,
    of_rank,
    somebody,
)

from ddptop_runner.judge.balance.findings import find
from ddptop_runner.model.snapshot import GpuSample, RankSample

# -- stray contexts --------------------------------------------------------------------------------


def test_contexts_on_another_ranks_device_are_one_finding():
    finding = the(with_strays([1, 2, 3]), "stray-context-0")
    assert (finding.severity, finding.ranks, finding.gpus) == ("warning", (1, 2, 3), (0,))
    assert finding.hold_s == 5
    assert finding.message == (
        "ranks 1-3 use 1.5 GiB on GPU 0, which belongs to rank 0: "
        "torch.cuda.set_device(local_rank) is missing before the first CUDA call, or torch.load "
        "is missing map_location"
    )


TWO_EACH = [make_gpu(index, of_rank(index // 2, 30 - index)) for index in range(4)]


HEALTHY_BESIDE_STRAYS = {
    "too little for a context": with_strays([1, 2, 3], 0.05),
    "memory that the driver does not tell": with_strays([1, 2, 3], None),
    "two ranks share a device on purpose": (
        [make_rank(rank, gpu=rank // 2) for rank in range(4)],
        [make_gpu(index, of_rank(2 * index), of_rank(2 * index + 1)) for index in range(2)],
    ),
    "each rank works on two devices": (
        [make_rank(rank, gpu=None) for rank in range(2)],
        TWO_EACH,
    ),
    "a rank works on another's device as much as on its own": with_strays([1], 28),
    "the stray's rank has ended": (
        change(RANKS, {1: {"state": "exited"}}),
        with_strays([1])[1],
    ),
    "it is the own child process": (
        RANKS,
        change(GPUS, {1: {"processes": [of_rank(1), of_rank(1, 0.5, pid=999)]}}),
    ),
    "the own device's memory is not known": (
        RANKS,
        change(
            GPUS,
            {0: {"processes": [of_rank(0), of_rank(1)]}, 1: {"processes": [of_rank(1, None)]}},
        ),
    ),
}


@pytest.mark.parametrize("case", HEALTHY_BESIDE_STRAYS.values(), ids=list(HEALTHY_BESIDE_STRAYS))
def test_no_stray_context(case):
    assert_healthy(case)


# -- a device without a rank, a rank without a device ----------------------------------------------


def test_a_device_without_a_rank():
    ranks, gpus = RANKS[:3], [*GPUS[:3], make_gpu(3, util_percent=0.0, power_w=70.0)]
    finding = the((ranks, gpus), "unused-gpu")
    assert (finding.severity, finding.ranks, finding.gpus) == ("warning", (), (3,))
    assert finding.message == (
        "GPU 3 is assigned to the job, but no rank uses it: 3 ranks for 4 GPUs; "
        "pass fewer GPUs (--gpus) or start more ranks (--nproc)"
    )
    assert find(ranks, gpus, JOB, given=False) == []


def test_all_ranks_on_the_first_device():
    ranks = [make_rank(rank, gpu=0) for rank in range(4)]
    rest = [make_gpu(index, util_percent=0.0) for index in range(1, 4)]
    gpus = [make_gpu(0, *[of_rank(rank, 5) for rank in range(4)]), *rest]
    finding = the((ranks, gpus), "unused-gpu")
    assert finding.gpus == (1, 2, 3)
    assert "GPUs 1-3 are assigned to the job, but no rank uses them: " in finding.message
    assert "ranks 0-3 are all on GPU 0: is torch.cuda.set_device" in finding.message


IDLE = change_all(GPUS, util_percent=2.0)


HEALTHY_BESIDE_UNUSED = {
    "contexts come one by one": (UNSTEPPED, change(IDLE, {3: {"processes": []}})),
    "the first rank loads while the others wait": (
        UNSTEPPED,
        [GPUS[0], *[make_gpu(index, util_percent=0.0) for index in range(1, 4)]],
    ),
    "one rank is not started yet": (
        change(UNSTEPPED, {3: {"pid": None, "state": "starting"}}),
        change(GPUS, {3: {"processes": []}}),
    ),
    "one rank has ended and left its device idle": (
        change(RANKS, {3: {"state": "exited"}}),
        change(GPUS, {3: {"processes": [], "util_percent": 0.0}}),
    ),
    "all load their model, on the first devices so far": (
        UNSTEPPED[:3],
        [*IDLE[:3], make_gpu(3, util_percent=0.0)],
    ),
    "a lost device that lists nothing": (
        RANKS[:3],
        [*GPUS[:3], make_gpu(3, lost=True, util_percent=None)],
    ),
    "one rank is a zombie": (
        change(RANKS, {3: {"state": "zombie"}}),
        change(GPUS, {3: {"processes": []}}),
    ),
    "no processes known": (RANKS, change_all(GPUS, processes=None)),
    "processes of one device not known": (RANKS, change(GPUS, {3: {"processes": None}})),
    "processes of an idle device not known": (
        RANKS[:3],
        change(GPUS, {3: {"processes": None, "util_percent": 0.0}}),
    ),
    "pids of another namespace": (
        RANKS,
        [make_gpu(index, somebody(30, pid=88000 + index, command=None)) for index in range(4)],
    ),
    "an unlisted process uses the device": (RANKS[:3], change(GPUS, {3: {"processes": []}})),
    "a device is lost": (
        RANKS,
        change(GPUS, {3: {"processes": None, "lost": True, "util_percent": None}}),
    ),
    "a device in MIG mode": (
        RANKS[:1],
        [GPUS[0], make_gpu(1, util_percent=None, mig_instances=["MIG-1"])],
    ),
    "a MIG instance": (
        [make_rank(0)],
        [
            make_gpu(
                0, of_rank(0), uuid="MIG-1", parent_uuid="GPU-0", util_percent=None, power_w=None
            )
        ],
    ),
    "a job on CPUs": (change_all(RANKS, gpu=None), []),
    "a helper of the job uses the device": (
        RANKS[:3],
        [*GPUS[:3], make_gpu(3, of_launcher(), util_percent=0.0)],
    ),
    "nothing is known": (
        [RankSample(rank=rank, local_rank=rank, host="h") for rank in range(4)],
        [GpuSample(index=index) for index in range(4)],
    ),
    "no ranks": ([], GPUS),
}


@pytest.mark.parametrize("case", HEALTHY_BESIDE_UNUSED.values(), ids=list(HEALTHY_BESIDE_UNUSED))
def test_every_device_has_its_rank(case):
    assert_healthy(case)
