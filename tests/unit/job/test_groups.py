"""A sweep as one job: its state, what is said about it, and its best job."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddptop.job.compare import compare
from ddptop.job.figures.jobs import Subject, job_table
from ddptop.job.groups import best_in_words, by_loss, grouped, labels
from ddptop.job.progress import progress_of
from ddptop.job.record import Job
from ddptop.job.status import Need, attention, seen_key
from msgspec.structs import replace
from tests.support import fake_home
from tests.support.fake_home import NOW
from tests.support.own_views import read, view_of
from tests.unit.job.test_compare_differences import run


@pytest.fixture
def members(ddptop_home: Path) -> list[Job]:
    folders = fake_home.sweep(ddptop_home)
    return [replace(read(folder), read_at=NOW, snapshot_age_s=0.4) for folder in folders]


def test_a_sweep_is_one_job_in_the_state_of_its_most_active_one(members: list[Job]) -> None:
    alone = view_of(state="running")
    one, first = grouped([*reversed(members), alone])
    assert first is alone
    assert (one.name, one.state, one.is_live, one.members) == ("bert", "running", True, (*members,))
    assert one.command == "train.py lr=1e-3,1e-4 seed=1,2,3"
    assert (one.world_size, one.has_history, one.can_restart) == (2, False, False)
    progress = progress_of(one)
    assert progress is not None and progress.fraction == pytest.approx(
        (1 + 1 + 0.6 + 0.4 + 0.2 + 0) / 6
    )
    vague = replace(members[3], snapshot=replace(members[3].snapshot, progress=None))
    assert vague.state == "running" and progress_of(grouped([*members[:3], vague])[0]) is None
    (ended,) = grouped(members[:3])
    assert (ended.state, ended.is_live, ended.ended_at) == ("failed", False, members[2].ended_at)


def test_a_failure_is_told_until_the_sweep_was_opened(members: list[Job]) -> None:
    (one,) = grouped(members)
    needs = attention(one, NOW)
    assert needs.need == Need.FAILED
    assert needs.sentence == (
        "2 running, 1 queued, 1 failed, 2 finished; lr1e-3-seed3: rank 0: RuntimeError: CUDA error:"
        " an illegal memory access; best: lr1e-4-seed2 (validation loss 1.3400)"
    )
    calm = attention(one, NOW, [seen_key(members[2])])
    assert calm.need == Need.RUNNING and calm.is_calm
    assert "RuntimeError" not in calm.sentence


def test_the_best_has_the_lowest_validation_loss_or_else_loss(members: list[Job]) -> None:
    order = ["lr1e-4-seed2", "lr1e-3-seed1", "lr1e-3-seed2", "lr1e-3-seed3", "lr1e-4-seed1"]
    assert labels(by_loss(members)) == [*order, "lr1e-4-seed3"]
    assert labels([members[0], view_of(state="running")])[0] == "bert-lr1e-3-seed1"
    best = members[4]
    ranks = [replace(rank, metrics={}) for rank in best.snapshot.ranks]
    without = replace(best, snapshot=replace(best.snapshot, ranks=ranks))
    assert labels(by_loss([without, *members[:4]])) == [*order[1:], order[0]]
    (few,) = grouped([members[0], members[5]])
    assert best_in_words(few) == ""


def test_of_a_sweep_those_that_finished_are_judged() -> None:
    long, short = [5.0, 4.0, 3.0, 2.0], [5.0, 1.0]
    runs = [
        run(job, losses, group=group)
        for job, losses, group in [("a", long, "s"), ("b", short, "s"), ("c", [], "s")]
    ]
    assert compare(runs).judged == (0, 1)  # those that have losses
    assert compare([*runs[:2], run("c", [], group=None)]).judged == (0, 1, 2)


def test_ls_has_a_column_for_losses_of_a_sweep(members: list[Job]) -> None:
    def table(jobs: list[Job]) -> tuple[list[str], list[list[str]], list[int]]:
        return job_table([Subject(attention(job, NOW), NOW) for job in jobs], "ls")

    headers, (best, *_), _ = table(by_loss(members))
    assert best[headers.index("LOSS")] == "1.3400 (val)"
    assert "LOSS" not in table(grouped(members))[0]
