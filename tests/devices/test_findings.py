"""What is wrong with a job's balance; beside each finding the healthy jobs that look like it."""

from __future__ import annotations

import datetime as dt
import random

import pytest
from tests.devices.jobs import (
    JOB,
    change,
    change_all,
    make_gpu,
    make_job,
    make_rank,
    of_launcher,
    of_rank,
    somebody,
)

from ddptop_runner.alerts import AlertBook, Finding
from ddptop_runner.balance import findings_help
from ddptop_runner.balance.findings import explain, find
from ddptop_runner.balance.rank_devices import join
from ddptop_runner.model import GpuSample, RankSample

NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)
RANKS, GPUS = make_job()
Case = tuple[list[RankSample], list[GpuSample]]


def the(case: Case, id_: str) -> Finding:
    found = find(*case, JOB)
    assert [finding.id for finding in found] == [id_], found
    return found[0]


def assert_healthy(case: Case) -> None:
    assert find(*case, JOB) == []


def test_a_healthy_job():
    assert_healthy((RANKS, GPUS))


# -- stray contexts --------------------------------------------------------------------------------


def with_strays(ranks: list[int], gib: float | None = 0.5, on: int = 0) -> Case:
    strays = [of_rank(rank, gib) for rank in ranks]
    return RANKS, change(GPUS, {on: {"processes": [of_rank(on), *strays]}})


def test_contexts_on_another_ranks_device_are_one_finding():
    finding = the(with_strays([1, 2, 3]), "stray-context-0")
    assert (finding.severity, finding.ranks, finding.gpus) == ("warning", (1, 2, 3), (0,))
    assert finding.hold_s == 5
    assert finding.message == (
        "ranks 1-3 hold 512 MiB each (1.5 GiB in all) on GPU 0, where rank 0 works: missing "
        "torch.cuda.set_device(local_rank) before the first CUDA call, or torch.load without "
        "map_location"
    )


def test_one_stray_context_is_named_with_its_process():
    message = the(with_strays([3], 4.5, on=1), "stray-context-1").message
    assert message.startswith("rank 3 (pid 103) holds 4.5 GiB on GPU 1, where rank 1 works: ")


def test_each_device_with_strays_is_a_finding_of_its_own():
    ranks, gpus = with_strays([1])
    gpus = change(gpus, {2: {"processes": [of_rank(2), of_rank(3, 0.5)]}})
    assert [f.id for f in find(ranks, gpus, JOB)] == ["stray-context-0", "stray-context-2"]


def test_memory_tells_the_own_device_where_the_order_of_ranks_does_not():
    ranks = change_all(RANKS, gpu=None)
    _, gpus = with_strays([1, 2, 3])
    assert the((ranks, gpus), "stray-context-0").ranks == (1, 2, 3)
    reversed_order = [make_rank(rank, gpu=rank) for rank in range(2)]
    gpus = [make_gpu(0, of_rank(1)), make_gpu(1, of_rank(0), of_rank(1, 0.5))]
    assert the((reversed_order, gpus), "stray-context-1").ranks == (1,)


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
    "a rank holds something on a device that is nobody's": (
        RANKS[:2],
        [*GPUS[:2], make_gpu(2, of_rank(0, 0.5), util_percent=20.0)],
    ),
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


# -- one process on many devices -------------------------------------------------------------------


def one_process(memory: list[float | None], util: list[float | None]) -> Case:
    gpus = [
        make_gpu(index, of_rank(0, gib), util_percent=percent)
        for index, (gib, percent) in enumerate(zip(memory, util, strict=True))
    ]
    return [make_rank(0, gpu=None)], gpus


def test_data_parallel():
    finding = the(one_process([30, 20, 20, 20], [60, 55, 50, 52]), "data-parallel")
    assert (finding.severity, finding.ranks, finding.gpus) == ("warning", (0,), (0, 1, 2, 3))
    assert finding.message == (
        "one process (pid 100) works on GPUs 0-3, and GPU 0 holds 30.0 GiB against 20.0 GiB on the "
        "others: it looks like torch.nn.DataParallel, which copies the model and gathers all "
        "outputs on the first GPU at every step; DistributedDataParallel with one process per GPU "
        "does neither (--nproc 4)"
    )


def test_data_parallel_on_two_devices():
    assert the(one_process([30, 20], [80, 70]), "data-parallel").gpus == (0, 1)


HEALTHY_BESIDE_DATA_PARALLEL = {
    "even, as MirroredStrategy": one_process([30, 29, 29, 29], [90, 90, 90, 90]),
    "stages that take turns": one_process([30, 20], [45, 50]),
    "stages of different sizes": one_process([40, 10, 20, 30], [90, 90, 90, 90]),
    "memory is not known": one_process([None, 20, 20], [90, 90, 90]),
    "utilization is not known": one_process([30, 20, 20], [None, 90, 90]),
    "a small difference in a small job": one_process([0.9, 0.5, 0.5], [90, 90, 90]),
    "the others only wait": one_process([30, 20, 20], [95, 40, 0]),
    "one rank per device, the first fuller": (
        RANKS,
        change(GPUS, {0: {"processes": [of_rank(0, 60)]}}),
    ),
    "several processes of one rank": (
        [make_rank(0, gpu=None)],
        [make_gpu(index, of_rank(0, 30 - index, pid=200 + index)) for index in range(4)],
    ),
}


@pytest.mark.parametrize(
    "case", HEALTHY_BESIDE_DATA_PARALLEL.values(), ids=list(HEALTHY_BESIDE_DATA_PARALLEL)
)
def test_no_data_parallel(case):
    assert_healthy(case)


# -- a device without a rank, a rank without a device ----------------------------------------------


def test_a_device_without_a_rank():
    ranks, gpus = RANKS[:3], [*GPUS[:3], make_gpu(3, util_percent=0.0, power_w=70.0)]
    finding = the((ranks, gpus), "unused-gpu")
    assert (finding.severity, finding.ranks, finding.gpus) == ("warning", (), (3,))
    assert finding.message == (
        "GPU 3 belongs to the job and no rank uses it (80.0 GiB of memory idle): 3 ranks for 4 "
        "GPUs; give it fewer (--gpus), or start more (--nproc)"
    )
    assert find(ranks, gpus, JOB, given=False) == []


def test_all_ranks_on_the_first_device():
    ranks = [make_rank(rank, gpu=0) for rank in range(4)]
    rest = [make_gpu(index, util_percent=0.0) for index in range(1, 4)]
    gpus = [make_gpu(0, *[of_rank(rank, 5) for rank in range(4)]), *rest]
    finding = the((ranks, gpus), "unused-gpu")
    assert finding.gpus == (1, 2, 3)
    assert "GPUs 1-3 belong to the job and no rank uses them (240.0 GiB of" in finding.message
    assert "ranks 0-3 are all on GPU 0; missing torch.cuda.set_device" in finding.message


def test_the_only_rank_uses_one_of_several_devices():
    gpus = [make_gpu(0, of_rank(0)), make_gpu(1, util_percent=0.0), make_gpu(2, util_percent=0.0)]
    message = the(([RANKS[0]], gpus), "unused-gpu").message
    assert "the only rank is on GPU 0; give it fewer (--gpus), or start one rank per" in message


def test_it_waits_longer_where_steps_are_not_known():
    ranks, gpus = RANKS[:3], [*GPUS[:3], make_gpu(3, util_percent=0.0)]
    assert the((ranks, gpus), "unused-gpu").hold_s == 20
    assert the((change_all(ranks, step=None), gpus), "unused-gpu").hold_s == 60
    without = change(GPUS, {3: {"processes": []}})
    assert the((RANKS, without), "no-gpu-work").hold_s == 20
    assert the((change_all(RANKS, step=None), without), "no-gpu-work").hold_s == 180


def test_a_rank_without_gpu_work():
    finding = the((RANKS, change(GPUS, {3: {"processes": []}})), "no-gpu-work")
    assert (finding.severity, finding.ranks) == ("warning", (3,))
    assert finding.message == (
        "rank 3 (pid 103) has nothing on any of the job's GPUs, while ranks 0-2 do: does it train "
        "on the CPU? Look at the device that the script chooses, torch.cuda.is_available() and "
        "CUDA_VISIBLE_DEVICES"
    )


IDLE = change_all(GPUS, util_percent=2.0)
UNSTEPPED = change_all(RANKS, step=None)

HEALTHY_BESIDE_UNUSED = {
    "contexts come one by one": (UNSTEPPED, change(IDLE, {3: {"processes": []}})),
    "the first rank loads while the others wait": (
        UNSTEPPED,
        [GPUS[0], *[make_gpu(index, util_percent=0.0) for index in range(1, 4)]],
    ),
    "half have come": (
        UNSTEPPED,
        change(GPUS, {2: {"processes": []}, 3: {"processes": []}}),
    ),
    "nobody has come": (UNSTEPPED, change_all(IDLE, processes=[])),
    "one rank is not started yet": (
        change(UNSTEPPED, {3: {"pid": None, "state": "starting"}}),
        change(GPUS, {3: {"processes": []}}),
    ),
    "one rank has ended": (
        change(RANKS, {3: {"state": "exited"}}),
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


# -- an own device that stands still ---------------------------------------------------------------

STANDING = change(GPUS, {2: {"util_percent": 0.0, "power_w": 80.0}})


def test_a_rank_that_computes_elsewhere():
    ranks = change_all(RANKS, steps_per_s=4.0)
    finding = the((ranks, STANDING), "idle-gpu")
    assert (finding.severity, finding.ranks, finding.gpus) == ("warning", (2,), (2,))
    assert finding.hold_s == 60
    assert finding.message == (
        "GPU 2 stands at 0 % while the others' median is 97 %: rank 2 (pid 102) is computing "
        "somewhere else, as its steps go on; model or batch without .to(device)?"
    )


def test_a_rank_without_work_is_told_where_the_others_draw_the_power_of_work():
    finding = the((UNSTEPPED, STANDING), "idle-gpu")
    assert (finding.severity, finding.ranks, finding.hold_s) == ("info", (2,), 120)


SPINNING = change_all(STANDING, power_w=120.0, util_percent=100.0)

HEALTHY_BESIDE_STANDING = {
    "it writes a checkpoint, the others wait in a barrier": (
        change_all(RANKS, steps_per_s=0.0),
        change(GPUS, {0: {"util_percent": 0.0, "power_w": 80.0}}),
    ),
    "... and nothing tells steps": (
        UNSTEPPED,
        change(change_all(GPUS, util_percent=100.0, power_w=120.0), {0: {"util_percent": 0.0}}),
    ),
    "one rank evaluates, the others wait on the CPU": (
        change_all(RANKS, steps_per_s=0.0),
        [GPUS[0], *change_all(GPUS[1:], util_percent=0.0)],
    ),
    "one of two evaluates": (UNSTEPPED[:2], [GPUS[0], *change_all(GPUS[1:2], util_percent=0.0)]),
    "utilization not known": (
        change_all(RANKS, steps_per_s=4.0),
        change(GPUS, {2: {"util_percent": None}}),
    ),
    "little utilization": (
        change_all(RANKS, steps_per_s=4.0),
        change(GPUS, {2: {"util_percent": 3.0}}),
    ),
    "all wait for their data": (
        change_all(RANKS, steps_per_s=0.2),
        change(change_all(GPUS, util_percent=30.0), {2: {"util_percent": 0.0}}),
    ),
}


@pytest.mark.parametrize(
    "case", HEALTHY_BESIDE_STANDING.values(), ids=list(HEALTHY_BESIDE_STANDING)
)
def test_no_idle_device(case):
    assert_healthy(case)


def test_utilization_of_somebody_else_is_not_the_others():
    ranks = change_all(RANKS[:2], steps_per_s=4.0)
    gpus = [make_gpu(0, of_rank(0), util_percent=0.0), make_gpu(1, of_rank(1), somebody())]
    assert the((ranks, gpus), "other-process-1")
    gpus = [make_gpu(0, of_rank(0), util_percent=0.0), make_gpu(1, of_rank(1), of_launcher())]
    assert the((ranks, gpus), "idle-gpu").ranks == (0,)


# -- the devices themselves ------------------------------------------------------------------------


def with_gpu(place: int = 3, **fields: object) -> Case:
    return RANKS, change(GPUS, {place: fields})


def test_a_throttled_device():
    case = with_gpu(
        throttle_reasons=["power cap", "thermal, by hardware"], temperature_c=91, sm_clock_mhz=1095
    )
    finding = the(case, "throttled")
    assert (finding.severity, finding.ranks, finding.gpus) == ("warning", (3,), (3,))
    assert finding.hold_s == 20
    assert finding.message == (
        "GPU 3 (rank 3) runs at lowered clocks (thermal, by hardware; 91 °C; 1095 of 1980 MHz): "
        "every rank waits for the slowest; look at cooling and power supply"
    )


def test_several_throttled_devices_are_one_finding():
    ranks, gpus = with_gpu(throttle_reasons=["power brake"], sm_clock_mhz=900)
    gpus = change(gpus, {1: {"throttle_reasons": ["hardware slowdown"], "sm_clock_mhz": None}})
    finding = the((ranks, gpus), "throttled")
    assert finding.gpus == (1, 3)
    assert "GPUs 1, 3 (ranks 1, 3) run at lowered clocks (GPU 3: power brake" in finding.message


def test_heat_by_software_counts_where_the_others_run_faster():
    warm = {"throttle_reasons": ["thermal, by software"]}
    assert the(with_gpu(**warm, sm_clock_mhz=1200), "throttled").gpus == (3,)
    assert_healthy(with_gpu(**warm))
    assert_healthy(with_gpu(**warm, sm_clock_mhz=None))


@pytest.mark.parametrize(
    "fields",
    [
        {"throttle_reasons": ["power cap", "sync boost", "application clocks", "reliability"]},
        {"throttle_reasons": ["hardware slowdown"], "util_percent": 0.0, "power_w": 60.0},
        {"throttle_reasons": None},
        {"throttle_reasons": ["power brake"], "util_percent": None},
        {"xid": None},
        {"xid": [45]},  # as of a process that ddptop itself ended before a restart
        {"ecc_uncorrected": None},
    ],
)
def test_nothing_wrong_with_the_device(fields):
    assert_healthy(with_gpu(**fields))


def test_xids_with_their_meaning():
    case = with_gpu(xid=[45, 79], xid_meanings=["stopped", "GPU has fallen off the bus"])
    finding = the(case, "xid-79-3")
    assert (finding.severity, finding.ranks, finding.gpus) == ("error", (3,), (3,))
    assert finding.message == (
        "GPU 3 (rank 3) reported XID 79 (GPU has fallen off the bus): the device needs a reset or "
        "a check (nvidia-smi -q, dmesg)"
    )
    assert the(with_gpu(xid=[31, 31]), "xid-31-3").severity == "info"  # a fault of the program
    found = find(*with_gpu(xid=[13, 777]), JOB)
    assert [(one.id, one.severity) for one in found] == [
        ("xid-777-3", "warning"),
        ("xid-13-3", "info"),
    ]
    assert found[0].message == "GPU 3 (rank 3) reported XID 777"


def test_memory_errors():
    finding = the(with_gpu(ecc_uncorrected=2, remap_pending=True), "ecc-3")
    assert finding.severity == "info"
    assert "counts 2 uncorrectable memory errors since its driver was loaded; a" in finding.message
    finding = the(with_gpu(remap_failed=True), "remap-3")
    assert (finding.severity, finding.gpus) == ("error", (3,))


def beside(*processes: object) -> Case:
    return RANKS, change(GPUS, {3: {"processes": [of_rank(3), *processes]}})


def test_a_process_of_somebody_else():
    finding = the(beside(somebody(1, pid=7), somebody()), "other-process-3")
    assert (finding.severity, finding.ranks, finding.gpus) == ("warning", (3,), (3,))
    assert finding.hold_s == 5
    assert finding.message == (
        "pid 4242 (alice, python eval.py) and 1 more, not of this job, hold 13.0 GiB on GPU 3 "
        "(rank 3): memory and time of the job's own device"
    )


@pytest.mark.parametrize(
    "process",
    [
        somebody(0.1),
        somebody(None),
        somebody(command=None, user=None),  # a pid of another namespace
        somebody(command="nvidia-cuda-mps-server"),
        of_launcher(),  # a helper of the job
        of_rank(3, 5, pid=998),  # a child of the rank
    ],
)
def test_nobody_else(process):
    assert_healthy(beside(process))


def test_before_a_rank_is_on_a_device_pids_prove_nothing():
    assert_healthy((UNSTEPPED, [make_gpu(index, somebody()) for index in range(4)]))


def test_a_launcher_on_a_device_is_the_jobs():
    ranks = [make_rank(0), make_rank(1)]
    gpus = [
        make_gpu(0, somebody(30, pid=100), somebody(0.5, pid=90)),
        make_gpu(1, somebody(30, pid=101)),
    ]
    joined, labelled = join(ranks, gpus, {}, [], JOB, helpers={90, 100})
    assert find(joined, labelled, JOB) == []
    assert [(p.job, p.rank) for p in labelled[0].processes or ()] == [(JOB, 0), (JOB, None)]
    joined, labelled = join(ranks, gpus, {}, [], JOB)
    assert the((joined, labelled), "other-process-0")


def test_step_times_name_no_straggler():
    """The all-reduce makes them alike: whose are longer is not who is slow."""
    for slow in range(4):
        assert_healthy((change(RANKS, {slow: {"step_time_s": 3.0, "steps_per_s": 0.3}}), GPUS))


# -- at large --------------------------------------------------------------------------------------


def test_findings_are_worst_first():
    ranks, gpus = with_strays([1])
    gpus = change(gpus, {2: {"xid": [79]}, 3: {"ecc_uncorrected": 1}})
    assert [f.id for f in find(ranks, gpus, JOB)] == [
        "xid-79-2",
        "stray-context-0",
        "ecc-3",
    ]


@pytest.mark.parametrize("seed", range(40))
def test_a_healthy_job_has_no_alert_from_its_start_to_its_end(seed):
    """Second by second: contexts come one by one, steps, evaluations, checkpoints, ends."""
    life = random.Random(seed)
    number = life.choice([1, 2, 3, 4, 8])
    counted = life.random() < 0.7  # else no probe tells steps
    told = life.random() < 0.9
    share = number % 2 == 0 and life.random() < 0.3  # two ranks on each device
    devices = number // 2 if share else number
    size_gib = life.uniform(2, 70) / (2 if share else 1)
    uneven = life.random() < 0.3  # stages of a pipeline
    sizes = [size_gib * (life.uniform(0.4, 1) if uneven else 1) for _ in range(number)]
    comes_at = sorted(life.uniform(2, 90) for _ in range(number))
    starts_at = max(comes_at) + life.uniform(1, 60)
    pauses = [
        (at, at + life.uniform(5, 100), life.choice(["evaluates", "writes", "all evaluate"]))
        for at in (starts_at + 60, starts_at + 200)
    ]
    ends_at = [pauses[-1][1] + 30 + life.uniform(0, 20) for _ in range(number)]
    book = AlertBook()
    step = 0
    for second in range(int(max(ends_at)) + 5):
        pause = next((what for start, end, what in pauses if start <= second < end), None)
        trains = second >= starts_at and pause is None
        step += trains
        gpus = []
        ranks = [
            make_rank(
                rank,
                gpu=rank % devices,
                step=(step or None) if counted else None,
                steps_per_s=(5.0 if trains else 0.0) if counted and step else None,
                state="exited" if second >= ends_at[rank] else "running",
            )
            for rank in range(number)
        ]
        for index in range(devices):
            here = [
                of_rank(rank, sizes[rank] * min(1.0, 0.1 + (second - comes_at[rank]) / 20))
                for rank in range(index, number, devices)
                if comes_at[rank] <= second < ends_at[rank]
            ]
            util, power = (life.uniform(85, 100), 500.0) if trains else (0.0, 70.0)
            if pause == "all evaluate" or (pause == "evaluates" and index == 0):
                util, power = life.uniform(70, 100), 400.0
            elif pause is not None and index > 0:
                util, power = life.choice([(100.0, 130.0), (0.0, 70.0)])
            elif here and not trains:
                util, power = life.uniform(0, 60), 120.0
            gpus.append(
                make_gpu(
                    index,
                    *here,
                    util_percent=util if here else 0.0,
                    power_w=power,
                    **({} if told else {"processes": None}),
                )
            )
        alerts, _ = book.update(find(ranks, gpus, JOB), NOW, float(second))
        assert alerts == [], f"second {second} of {number} ranks, pause: {pause}"


def test_every_finding_is_explained():
    cases = [
        with_strays([1]),
        one_process([30, 20, 20, 20], [60, 55, 50, 52]),
        (RANKS[:3], change(GPUS, {3: {"processes": [], "util_percent": 0.0}})),
        (RANKS, change(GPUS, {3: {"processes": []}})),
        (UNSTEPPED, STANDING),
        with_gpu(throttle_reasons=["power brake"]),
        with_gpu(xid=[79]),
        with_gpu(ecc_uncorrected=1),
        with_gpu(remap_failed=True),
        beside(somebody()),
    ]
    ids = [finding.id for case in cases for finding in find(*case, JOB)]
    ids += ["loss-nan", "loss-inf", "gpu-lost", "hung", "paused", "quiet", "stuck", "loss-diverged"]
    assert len(ids) == len(findings_help._HELP)
    for id_ in ids:
        text = explain(id_)
        assert len(text) > 100, id_
        assert all("\n" not in paragraph for paragraph in text.split("\n\n"))
    assert explain("stray-context-12") == explain("stray-context-0")
    assert explain("xid-79-12") == explain("xid-13-0")
    assert explain("nothing of the kind") == ""
