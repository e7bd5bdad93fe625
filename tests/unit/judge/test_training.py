"""What is wrong with the training itself is named, and nothing else."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable

import pytest

from ddptop_runner.judge.balance.job_watch import JobWatch
from ddptop_runner.model.snapshot import (
    Alert,
    BatchHash,
    Checkpoint,
    GpuSample,
    NodeSnapshot,
    RankSample,
    Resources,
)

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)
GIB = 1 << 30

Figures = Callable[[int, int], dict[str, object]]
"""(second, rank) -> fields of the rank's sample."""


def watched(
    figures: Figures,
    seconds: int,
    *,
    ranks: int = 2,
    watch: JobWatch | None = None,
    attempt: int = 0,
    checkpoint: Checkpoint | None = None,
    first_second: int = 0,
) -> list[Alert]:
    """The alerts after watching a job for so long, a sample a second, 10 steps a second."""
    watch, alerts, resume = watch or JobWatch(), [], None
    for second in range(first_second, first_second + seconds):
        snapshot = NodeSnapshot(
            job="j", job_id="j@1", host="h", seq=second, ts=NOON + dt.timedelta(seconds=second),
            started_at=NOON, state="running", attempt=attempt, checkpoint=checkpoint,
            resume=resume,
            ranks=[
                RankSample(
                    rank=n, local_rank=n, host="h", pid=1000 * attempt + n + 1, **{
                        "state": "running", "step": 10 * second, "steps_per_s": 10.0,
                        "step_time_s": 0.1, "data_wait_s": 0.001, "phase": "steps",
                        "ddp_world_size": ranks, "until_backward_total_s": 0.5 * second,
                        **figures(second, n),
                    },
                )
                for n in range(ranks)
            ],
        )  # fmt: skip
        alerts, _ = watch.update(snapshot, 1000.0 * attempt + second)
        resume = watch.resume
    return alerts


def ids(alerts: list[Alert]) -> list[str]:
    return [alert.id for alert in alerts]


def hashes(*batches: int, epoch: int = 0, first: int = 0) -> list[BatchHash]:
    return [BatchHash(epoch, first + i, crc) for i, crc in enumerate(batches)]


def test_a_healthy_training_is_silent() -> None:
    def figures(second: int, rank: int) -> dict[str, object]:
        return {
            "batch_hashes": hashes(*(7 * n + rank for n in range(8)), epoch=second // 10),
            "loss_state": "ok", "loss_source": "probe", "loss": 2.0 / (1 + second),
            "loss_min": 1.9 / (1 + second), "loss_max": 2.1 / (1 + second),
            "rss_bytes": 2 * GIB + second % 3 * (1 << 20), "loader_workers": 0,
        }  # fmt: skip

    assert watched(figures, 120, watch=JobWatch(lambda: 4 * GIB)) == []


def test_same_batches_are_named_with_what_was_compared() -> None:
    alerts = watched(lambda s, r: {"batch_hashes": hashes(*range(8))}, 10)
    assert ids(alerts) == ["same-batches"]
    assert alerts[0].evidence == {"batches_equal": 8}
    assert "DistributedSampler" in alerts[0].message
    many = watched(lambda s, r: {"batch_hashes": hashes(*range(8))}, 12, ranks=200)
    assert ids(many) == ["same-batches"], "judged every few seconds"


@pytest.mark.parametrize(
    ("ranks", "fields"),
    [
        (2, lambda r: {"batch_hashes": hashes(1, 2, 3, 4, 5 + r, 6, 7, 8)}),
        (2, lambda r: {"batch_hashes": hashes(5, 5, 5, 5, 5, 5, 5, 5)}),  # constant data
        (2, lambda r: {"batch_hashes": hashes(1, 2, 3, 4, 5)}),  # too few
        (2, lambda r: {"batch_hashes": hashes(1, 2, 3, 4, 5, 6, 7), "ddp_world_size": None}),
        # parts of one model: two ranks of each group of four share their batches
        (4, lambda r: {"batch_hashes": hashes(1, 2, 3, 4, 5, 6, 7), "ddp_world_size": 2}),
        (1, lambda r: {"batch_hashes": hashes(1, 2, 3, 4, 5, 6, 7)}),
        (2, lambda r: {"batch_hashes": hashes(1, 2, 3, 4, 5, 6, 7) if r else []}),
    ],
)
def test_same_batches_need_proof(ranks: int, fields: Callable[[int], dict[str, object]]) -> None:
    assert watched(lambda s, r: fields(r), 10, ranks=ranks) == []


def of_shards(*batches: int | None, **more: object) -> Figures:
    def figures(second: int, rank: int) -> dict[str, object]:
        taken = {"data_position": [0, 10 * second or 1], "loss_parts": 1, "batch_size": 32}
        return {**taken, "epoch_batches": batches[rank], **more}

    return figures


def test_a_rank_with_fewer_batches_is_named_before_the_others_wait_for_it() -> None:
    [alert] = watched(of_shards(1400, 1000, 1400), 10, ranks=3)
    assert (alert.id, alert.severity, alert.ranks) == ("uneven-shards", "info", [1])
    assert "rank 1 has 1000 batches" in alert.message
    assert "ranks 0, 2 have 1400" in alert.message
    assert "after 1000 (in 91 s)" in alert.message
    assert alert.evidence == {"fewest_batches": 1000, "most_batches": 1400, "left_s": 91.0}
    [alert] = watched(of_shards(1400, 1000, 1400, loss_parts=2), 10, ranks=3)
    assert alert.evidence["left_s"] == 45.5, "a step takes two batches"


@pytest.mark.parametrize(
    "figures",
    [
        of_shards(1000, 1000, 1000),
        of_shards(1000, 1400, None),
        of_shards(1000, 1400, 1400, ddp_world_size=None),
        of_shards(1000, 1400, 1400, ddp_world_size=1),
        # one of them accumulates over twice as many batches
        lambda s, r: {**of_shards(1000, 2000, 2000)(s, r), "loss_parts": 1 + (r > 0)},
        # who gives ranks different batch sizes knows that their numbers of batches differ
        lambda s, r: {**of_shards(1000, 1400, 1400)(s, r), "batch_size": 32 if r else 44},
        of_shards(1000, 1400, 1400, batch_size=None),
        of_shards(1000, 1400, 1400, step=None),  # it evaluates first
        # it has left its loop
        lambda s, r: {
            **of_shards(1000, 1400, 1400)(s, r),
            **({} if r else {"data_position": [1, 0]}),
        },
        # it has come to its second pass
        lambda s, r: of_shards(None if s else 1000, 1400, 1400)(s, r),
    ],
)
def test_uneven_shards_need_proof(figures: Figures) -> None:
    assert watched(figures, 10, ranks=3) == []


def test_an_order_that_never_changes_is_named_if_set_epoch_is_missing() -> None:
    def figures(second: int, rank: int, repeated: int | None = 0) -> dict[str, object]:
        return {
            "batch_hashes": hashes(10 + rank, 20 + rank, 30 + rank, 40 + rank, epoch=second // 5),
            "repeated_epoch": repeated,
        }

    alerts = watched(figures, 20)
    assert ids(alerts) == ["same-order"]
    assert "set_epoch" in alerts[0].message
    assert watched(lambda s, r: figures(s, r, None), 20) == [], "the order may be wanted"


def test_data_that_starts_over_after_a_resume_is_named() -> None:
    watch = JobWatch()
    saved = Checkpoint(path="/c", at=NOON, attempt=0, step=60, data_position=[0, 54])

    def before(second: int, rank: int) -> dict[str, object]:
        first = hashes(11 + rank, 22 + rank, 33 + rank, 44 + rank)
        ended = {"state": "exited"} if second == 9 and rank == 1 else {}  # before the restart
        return {"batch_hashes": first, "run_step": 10 * second, **ended}

    watched(before, 10, watch=watch, checkpoint=saved)

    def after(second: int, rank: int, crc: int = 11) -> dict[str, object]:
        return {
            "batch_hashes": hashes(crc + rank, 22 + rank, 33 + rank, 44 + rank),
            "run_step": 60 + 10 * second,
        }

    alerts = watched(after, 5, watch=watch, attempt=1, checkpoint=saved)
    assert ids(alerts) == ["data-replayed"]
    assert alerts[0].severity == "info"
    moved = watched(lambda s, r: after(s, r, 99), 5, watch=watch, attempt=2, checkpoint=saved)
    assert moved == []


def test_a_checkpoint_of_the_attempt_itself_says_nothing_of_where_it_resumed() -> None:
    watch, same = JobWatch(), {"batch_hashes": hashes(1, 2, 3, 4)}
    watched(lambda s, r: same, 10, watch=watch, ranks=1)
    own = Checkpoint(path="/c", at=NOON, attempt=1, step=90, data_position=[0, 54])
    resumed = watched(
        lambda s, r: {**same, "run_step": 60 + 10 * s},
        5, watch=watch, checkpoint=own, ranks=1, attempt=1,
    )  # fmt: skip
    assert resumed == []


def test_data_that_starts_over_after_a_whole_epoch_is_no_mistake() -> None:
    watch = JobWatch()
    saved = Checkpoint(path="/c", at=NOON, attempt=0, step=60, data_position=[1, 0])
    same = {"batch_hashes": hashes(1, 2, 3, 4)}
    watched(lambda s, r: same, 10, watch=watch, checkpoint=saved, ranks=1)
    resumed = watched(
        lambda s, r: {**same, "run_step": 60 + 10 * s},
        5, watch=watch, checkpoint=saved, ranks=1, attempt=1,
    )  # fmt: skip
    assert resumed == []


def test_ranks_that_all_wait_for_data_are_starved() -> None:
    alerts = watched(lambda s, r: {"data_wait_s": 0.04, "loader_workers": 0}, 40)
    assert ids(alerts) == ["starved"]
    assert alerts[0].evidence == {"share_percent": 40.0, "data_wait_s": 0.04, "loader_workers": 0}
    assert "num_workers=0" in alerts[0].message
    assert watched(lambda s, r: {"data_wait_s": 0.03}, 40) == [], "under a third"
    (busy,) = watched(
        lambda s, r: {
            "data_wait_s": 0.04, "loader_workers": 2, "cpu_percent": 385.0,
            "resources": Resources(cpus=8),
        },
        40,
    )  # fmt: skip
    assert "its 8 CPUs are busy, so only cheaper loading" in busy.message
    preempted = watched(
        lambda s, r: {"data_wait_s": 0.04, "loader_workers": 0, "cpu_wait_total_s": 0.2 * s}, 40
    )
    assert preempted == [], "other processes have its CPU, for half of that"
    with_workers = watched(
        lambda s, r: {"data_wait_s": 0.04, "loader_workers": 2, "cpu_wait_total_s": 0.2 * s}, 40
    )
    assert ids(with_workers) == ["starved"], "it does not load by itself"
    bursts = watched(lambda s, r: {"data_wait_s": 0.09 if s % 10 == 0 else 0.001}, 40)
    assert bursts == []
    (uneven,) = watched(lambda s, r: {"data_wait_s": 0.04 + 0.03 * r}, 40)
    assert uneven.id == "starved", "the one that waits longest is no other mistake"
    busy = watched(lambda s, r: {"data_wait_s": 0.06, "gpu_util_percent": 97.0}, 40)
    assert busy == [], "the device has enough to do meanwhile"
    tiny = watched(lambda s, r: {"step_time_s": 0.004, "data_wait_s": 0.003}, 40)
    assert tiny == [], "a few milliseconds are no trouble"


def slower(
    step_s: float = 0.16, since: int = 540, seconds: int = 700, **figures: tuple[float, float]
) -> list[Alert]:
    """The alerts of ranks on devices whose steps take longer from a second on.

    Args:
        step_s: of each step then, 0.1 before.
        since: that second.
        seconds: how long the job is watched.
        **figures: (before, then) of `data_wait_s`, and per step of `cpu_wait`, `elements`; `mhz`.
    """
    watch, totals, alerts = JobWatch(), {"cpu_wait": 0.0, "elements": 0.0}, []
    for second in range(seconds):
        is_late = second >= since
        now = {name: known[is_late] for name, known in figures.items()}
        for name in totals:
            totals[name] += 10 * now.get(name, 0)
        gpus = [GpuSample(index=n, sm_clock_mhz=int(now.get("mhz", 1980))) for n in range(2)]
        ranks = [
            RankSample(
                rank=n, local_rank=n, host="h", pid=n + 1, state="running", step=10 * second,
                steps_per_s=10.0, step_time_s=step_s if is_late else 0.1, gpu=n,
                data_wait_s=now.get("data_wait_s", 0.001), cpu_wait_total_s=totals["cpu_wait"],
                resources=Resources(batch_elements_total=int(totals["elements"])),
            )
            for n in range(2)
        ]  # fmt: skip
        snapshot = NodeSnapshot(
            job="j", job_id="j@1", host="h", seq=second, ts=NOON + dt.timedelta(seconds=second),
            started_at=NOON, state="running", attempt=0, ranks=ranks, gpus=gpus,
        )  # fmt: skip
        alerts, _ = watch.update(snapshot, float(second))
    return [one for one in alerts if one.id == "slower-than-before"]


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"mhz": (1980, 1100)}, "the GPUs run at 1100 MHz, before at 1980"),
        ({"cpu_wait": (0.001, 0.06)}, "they wait 60 ms of each step for a CPU, before 1.0 ms"),
        ({"data_wait_s": (0.004, 0.05)}, "they wait 50 ms of each step for data, before 4.0 ms"),
    ],
)
def test_ranks_that_are_all_slower_than_before_are_named_with_the_cause(figures, words) -> None:
    (alert,) = slower(**figures)
    assert alert.message.startswith(
        "all ranks are 1.6 times slower than in the first minutes (160 ms per step, before 100 ms)"
    )
    assert words in alert.message and alert.ranks == [0, 1]


@pytest.mark.parametrize(
    "figures",
    [
        {},  # the script may do more by now
        {"mhz": (1980, 1900)},
        {"mhz": (1980, 1100), "elements": (512, 1024)},  # a curriculum of longer sequences
        {"mhz": (1980, 1100), "step_s": 0.125},
        {"mhz": (1980, 1100), "since": 630},  # a minute ago
        {"mhz": (1980, 1100), "since": 200},  # the first minutes were no steadier
    ],
)
def test_slower_steps_are_not_named_without_a_lasting_cause(figures) -> None:
    assert slower(**figures) == []


def worker(*frames: str, state: str = "---") -> str:
    shown = ""
    for frame in frames:
        place, _, name = frame.partition(" in ")
        file, _, line = place.rpartition(":")
        shown += f'  File "{file}", line {line} in {name}\n'
    return (
        f"--- data loader process 7 {state}\nCurrent thread 0x1 (most recent call first):\n{shown}"
    )


FETCH = "/v/site-packages/torch/utils/data/_utils/fetch.py:52 in fetch"
LOADING = worker(
    "/v/site-packages/PIL/Image.py:312 in load", "/job/transforms.py:88 in crop", FETCH
)
IDLE = worker("/usr/lib/python3.11/selectors.py:415 in select")
IN_DISK = worker(FETCH, state="in uninterruptible sleep (D) ---")
SEEN = "in load (Image.py:312), called in crop (transforms.py:88)"


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        ([LOADING, LOADING, IDLE, LOADING], f"3 of 4 workers were {SEEN}"),
        ([LOADING, IDLE, IDLE], None),
        ([worker("/job/transforms.py:9 in get", FETCH)], "1 of 1 workers were in get"),
        ([IN_DISK, IN_DISK], "2 of 2 workers were in uninterruptible sleep (D)"),
        ([], None),
    ],
)
@pytest.mark.parametrize(("id_", "wait_s"), [("starved", (0.04, 0.04)), ("straggler", (0.0, 0.04))])
def test_the_workers_that_are_waited_for_are_told_by_their_place(workers, words, id_, wait_s):
    watch = JobWatch()
    watched(lambda s, r: {"data_wait_s": wait_s[r]}, 40, watch=watch)
    watch.note_workers("\n".join(workers))
    again = watched(lambda s, r: {"data_wait_s": wait_s[r]}, 2, watch=watch, first_second=40)
    assert ids(again) == [id_]
    assert (f"; {words}" if words else "") in again[0].message
    assert ("workers were" in again[0].message) == bool(words)


def test_a_rank_that_stops_again_and_again_is_named() -> None:
    def figures(second: int, rank: int, period: int = 5) -> dict[str, object]:
        stops = second // period if rank == 1 else 0
        return {"until_backward_total_s": 0.5 * second + 1.5 * stops}

    alerts = watched(figures, 60)
    assert [(one.id, one.ranks) for one in alerts] == [("stalls", [1])]
    assert alerts[0].evidence["stall_s"] == 1.5
    assert alerts[0].evidence["share_percent"] == pytest.approx(28, abs=4)
    assert watched(lambda s, r: figures(s, r, 30), 90) == [], "too rare to cost much"
    together = watched(lambda s, r: figures(s, 1), 60)
    assert together == [], "all ranks stop alike"


def test_a_pause_of_one_rank_is_no_stall() -> None:
    """It evaluates for 4 s, four times."""

    def figures(second: int, rank: int) -> dict[str, object]:
        is_pause = second % 15 >= 11
        taken = second - 4 * (second // 15) - (second % 15 - 11 if is_pause else 0)
        return {
            "step": 10 * taken,
            "phase": "evaluation" if is_pause and rank == 0 else "steps",
            "until_backward_total_s": 0.5 * taken + (4.0 * (second // 15) if rank == 0 else 0),
        }

    assert watched(figures, 85) == []


def test_memory_that_grows_steadily_is_named_with_the_time_left() -> None:
    def leak(second: int) -> int:
        return second * 20_000_000

    def memory(left: Callable[[int], int | None], seconds: int = 70, **more: object) -> list[Alert]:
        now = {"second": 0}

        def figures(second: int, rank: int) -> dict[str, object]:
            now["second"] = second
            return {"rss_bytes": GIB + leak(min(second, more.get("until", 1000)))}  # type: ignore

        return watched(figures, seconds, watch=JobWatch(lambda: left(now["second"])))

    alerts = memory(lambda s: 8 * GIB - 2 * leak(s))
    assert ids(alerts) == ["memory-growth"]
    assert alerts[0].evidence["bytes_per_s"] == pytest.approx(40_000_000, rel=0.05)
    assert "full in 2 min" in alerts[0].message or "full in 14" in alerts[0].message
    assert ids(memory(lambda s: 20 * GIB - 2 * leak(s), 75)) == ["memory-growth"], "in 8 min"
    assert memory(lambda s: 20 * GIB - 2 * leak(s), 60) == [], "it has not grown for long enough"
    assert " per minute; at" in alerts[0].message, "of what kind is unknown"
    assert memory(lambda s: None) == [], "unknown how much is left"
    assert memory(lambda s: 5 * GIB) == [], "mapped files: nothing less is left"
    assert memory(lambda s: 100 * GIB - 2 * leak(s)) == [], "hours are left: wait and see"
    assert memory(lambda s: 8 * GIB - 2 * leak(s), 90, until=30) == [], "a cache that has filled"


@pytest.mark.parametrize(
    ("children", "blocks", "words"),
    [
        (0.9, 0, " in loader workers;"),
        (0.0, 300_000, " in Python objects;"),
        (0.3, 10, ", not in Python objects;"),
        (0.5, 100_000, " per minute;"),  # a mixture
    ],
)
def test_the_kind_of_memory_that_grows_is_named(children: float, blocks: int, words: str) -> None:
    def figures(second: int, rank: int) -> dict[str, object]:
        grown = second * 20_000_000
        return {
            "rss_bytes": GIB + grown, "children_rss_bytes": int(children * grown),
            "python_blocks": 10**6 + second * blocks, "step": 10 * second,
        }  # fmt: skip

    now = itertools.count()
    watch = JobWatch(lambda: 8 * GIB - 160_000_000 * next(now))
    (alert,) = watched(figures, 70, watch=watch)
    assert alert.id == "memory-growth" and words in alert.message


@pytest.mark.parametrize(
    ("allocated", "left", "numbers"),
    [
        (lambda s, r: GIB + 20_000_000 * s, lambda s: 8 * GIB - 20_000_000 * s, [0, 1]),
        (lambda s, r: GIB + 20_000_000 * s * r, lambda s: 8 * GIB - 20_000_000 * s, [1]),
        (lambda s, r: GIB + 20_000_000 * s, lambda s: 16 * GIB - 20_000_000 * s, None),  # it is far
        (lambda s, r: GIB + 20_000_000 * s, lambda s: 2 * GIB, None),  # what is left does not fall
        (lambda s, r: GIB, lambda s: 8 * GIB - 20_000_000 * s, None),  # it grows by a cache
        (lambda s, r: GIB + 20_000_000 * (s % 120), lambda s: 8 * GIB - 20_000_000 * s, None),
        (lambda s, r: GIB + 20_000_000 * min(s, 90), lambda s: 4 * GIB - 20_000_000 * s, None),
        (
            lambda s, r: GIB + 20_000_000 * s if s < 215 else None,  # unknown by now
            lambda s: 8 * GIB - 20_000_000 * s,
            None,
        ),
        (lambda s, r: GIB + 20_000_000 * s, lambda s: None, None),
    ],
)
def test_tensors_that_pile_up_on_a_device_are_named(allocated, left, numbers) -> None:
    """Never recorded on a device: the figures are simulated."""
    watch, alerts = JobWatch(), []
    for second in range(240):
        free = left(second)
        snapshot = NodeSnapshot(
            job="j", job_id="j@1", host="h", seq=second, ts=NOON + dt.timedelta(seconds=second),
            started_at=NOON, state="running", attempt=0,
            ranks=[
                RankSample(
                    rank=n, local_rank=n, host="h", pid=n + 1, state="running", step=10 * second,
                    gpu=n + 2, device_allocated_bytes=allocated(second, n),
                )
                for n in range(2)
            ],
            gpus=[
                GpuSample(
                    index=n + 2, mem_total_bytes=10 * GIB,
                    mem_used_bytes=None if free is None else 10 * GIB - free,
                )
                for n in range(2)
            ],
        )  # fmt: skip
        alerts, _ = watch.update(snapshot, float(second))
    found = {one.id: one for one in alerts}
    if numbers is None:
        assert "memory-growth" not in found
        return
    alert = found["memory-growth"]
    assert alert.ranks == numbers
    assert "more tensors on the device with each step, 1.1 GiB per minute" in alert.message
    assert f"that of rank {numbers[0]} is full in 3 min" in alert.message


def losses(loss: float, **more: object) -> dict[str, object]:
    return {
        "loss": loss, "loss_min": loss, "loss_max": loss, "loss_state": "ok",
        "loss_source": "probe", **more,
    }  # fmt: skip


def test_a_loss_that_never_changes_is_named() -> None:
    alerts = watched(lambda s, r: losses(-0.0), 30)
    assert ids(alerts) == ["constant-loss"]
    assert watched(lambda s, r: losses(0.0 if s else 1.0), 60) == [], "it has converged"
    assert watched(lambda s, r: losses(0.0, loss_source="log"), 60) == [], "as printed"
    late = JobWatch()
    late.recall([])
    assert watched(lambda s, r: losses(0.0), 60, watch=late) == [], "the start was not seen"
    one_exits = watched(
        lambda s, r: losses(float(s < 5), state="exited" if s > 30 and r else "running"), 90
    )
    assert "constant-loss" not in ids(one_exits)


def test_a_loss_far_above_the_first_ones_that_rises_is_named() -> None:
    alerts = watched(lambda s, r: losses(2.0 if s < 10 else 2.0 * 1.2**s), 60)
    assert ids(alerts) == ["exploding-loss"]
    assert alerts[0].evidence["first_loss"] == 2.0
    assert watched(lambda s, r: losses(2.0 + s), 60) == []
    one_is_flat = watched(lambda s, r: losses(2.0 if s < 10 else 999.0 if r else 2.0 * 1.2**s), 60)
    assert one_is_flat[0].ranks == [0, 1], "as high, though it does not rise at the moment"
    one_is_fine = watched(lambda s, r: losses(2.0 if s < 10 or r else 2.0 * 1.2**s), 60)
    assert one_is_fine[0].ranks == [0]
    gan = watched(lambda s, r: losses(2.0 * 1.2**s, losses={"Adam 1": 1.0, "Adam 2": 2.0}), 60)
    assert gan == []
    jump = watched(lambda s, r: losses(50.0 if 20 <= s < 24 else 2.0 - s / 100), 60)
    assert jump == [], "a spike"
    falls = watched(lambda s, r: losses(2.0 if s < 10 else 2000.0 - s), 60)
    assert falls == [], "it recovers"
    late = JobWatch()
    late.recall([])
    resumed = watched(lambda s, r: losses(2.0 if s < 10 else 2.0 * 1.2**s), 60, watch=late)
    assert resumed == [], "the first losses were not seen"
