from __future__ import annotations

from ddptop_runner.judge.balance.rank_devices import join
from ddptop_runner.model.snapshot import GpuProcess, GpuSample, RankSample
from ddptop_runner.model.spec import Device

DEVICES = [Device(index=2, uuid="GPU-2"), Device(index=5, uuid="GPU-5")]


def rank(number: int, **fields: object) -> RankSample:
    fields.setdefault("state", "running")
    return RankSample(rank=number, local_rank=number, host="h", pid=100 + number, **fields)


def gpu(index: int, *processes: GpuProcess, **fields: object) -> GpuSample:
    figures = {"util_percent": 10.0 * index, "mem_used_bytes": 1000 * index, **fields}
    return GpuSample(
        **{"index": index, "uuid": f"GPU-{index}", "processes": list(processes), **figures}
    )


def process(pid: int, mem: int | None = 7) -> GpuProcess:
    return GpuProcess(pid=pid, mem_used_bytes=mem)


def placed(ranks: list[RankSample]) -> list[tuple[object, ...]]:
    return [(r.gpu, r.gpus, r.gpu_util_percent, r.gpu_mem_used_bytes) for r in ranks]


def test_the_drivers_word_beats_the_order_of_ranks():
    gpus = [gpu(2, process(101)), gpu(5, process(100))]
    ranks, labeled = join([rank(0), rank(1)], gpus, {}, DEVICES, "train")
    assert placed(ranks) == [(5, ["GPU-5"], 50, 7), (2, ["GPU-2"], 20, 7)]
    assert [(p.job, p.rank) for g in labeled for p in g.processes] == [("train", 1), ("train", 0)]


def test_a_rank_knows_its_device_by_its_place_among_the_jobs():
    gpus = [gpu(2, process(101)), gpu(5, process(100))]
    ranks, _ = join([rank(0), rank(1), rank(2)], gpus, {}, DEVICES, "train")
    assert [r.cuda_device for r in ranks] == [1, 0, None]
    assert [r.cuda_device for r in join([rank(0), rank(1)], [], {}, DEVICES, "t")[0]] == [0, 1]
    several = [gpu(2, process(100)), gpu(5, process(100))]
    assert join([rank(0)], several, {}, DEVICES, "train")[0][0].cuda_device is None
    instance = [Device(index=2, uuid="MIG-2")]
    sample = GpuSample(index=2, uuid="MIG-2", parent_uuid="GPU-2", processes=[process(100)])
    assert join([rank(0)], [gpu(2), sample], {}, instance, "train")[0][0].cuda_device == 0


def test_in_a_job_of_unknown_order_a_rank_works_where_it_holds_most_by_far():
    gpus = [gpu(2, process(100, 30), process(101, 3)), gpu(5, process(101, 9))]
    ranks, _ = join([rank(0), rank(1)], gpus, {}, [], "train")
    assert placed(ranks)[1] == (5, ["GPU-2", "GPU-5"], 50, 12)
    near = [gpu(2, process(101, 4)), gpu(5, process(101, 9))]
    assert join([rank(0), rank(1)], near, {}, [], "train")[0][1].gpu is None
    unknown = [gpu(2, process(101, None), process(1)), gpu(5, process(101, 9))]
    assert join([rank(0), rank(1)], unknown, {}, [], "train")[0][1].gpu is None
    alone = [gpu(2, process(100, 3)), gpu(5, process(100, 9))]
    assert join([rank(0)], alone, {}, [], "train")[0][0].gpu is None


def test_without_samples_local_rank_i_has_the_ith_device():
    ranks, _ = join([rank(0), rank(1), rank(2)], [], {}, DEVICES, "train")
    assert placed(ranks) == [
        (2, ["GPU-2"], None, None),
        (5, ["GPU-5"], None, None),
        (None, [], None, None),
    ]


def test_where_the_driver_lists_no_processes_the_device_speaks_for_its_only_rank():
    gpus = [gpu(2, processes=None), gpu(5, processes=None)]
    ranks, labeled = join([rank(0), rank(1)], gpus, {}, DEVICES, "train")
    assert placed(ranks) == [(2, ["GPU-2"], 20, 2000), (5, ["GPU-5"], 50, 5000)]
    assert labeled == gpus


def test_pids_of_another_namespace_are_not_taken_for_ranks():
    gpus = [gpu(2, process(88001)), gpu(5, process(88002))]
    ranks, labeled = join([rank(0), rank(1)], gpus, {}, DEVICES, "train")
    assert [r.gpu_mem_used_bytes for r in ranks] == [2000, 5000]
    assert all(p.job is None for g in labeled for p in g.processes)


def test_a_rank_that_is_not_on_its_device_yet_holds_nothing_known():
    gpus = [gpu(2, process(100)), gpu(5, process(4000))]
    ranks, _ = join([rank(0), rank(1)], gpus, {}, DEVICES, "train")
    assert placed(ranks)[1] == (5, ["GPU-5"], 50, None)
