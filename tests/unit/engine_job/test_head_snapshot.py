"""The snapshot of a job on several nodes, merged from its nodes' snapshots."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
from msgspec.structs import replace
from tests.support.builders import make_spec
from tests.support.head_nodes import HOSTS, NOON, merged, placement, ranks_and_devices

from ddptop_runner.job import failure
from ddptop_runner.job.samples import of_nodes
from ddptop_runner.job.state import JobState, NodeLife, RankLife
from ddptop_runner.job.transition import apply
from ddptop_runner.job.view import view
from ddptop_runner.judge.causes.culprit import RankEnd
from ddptop_runner.judge.checkpoints import CheckpointBook
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.diagnose import AttemptOutcome, RankExit
from ddptop_runner.model.snapshot import Cause, Checkpoint, NodeSnapshot

RANKS = {n: RankLife(node=HOSTS[n // 4]) for n in range(8)}
LIVES = {host: NodeLife(takes_part=True) for host in HOSTS}
JOB = JobState(phase="running", attempt=0, nodes=LIVES, ranks=RANKS)


def seen(
    job: JobState, *exited: int, began: dict[str, dict[int, int]] | None = None, **rank: Any
) -> NodeSnapshot:
    """What viewers see of eight ranks that run, as far as their nodes know."""
    ranks, gpus = ranks_and_devices()
    ranks = [replace(one, **rank) for one in ranks]
    ranks = [replace(one, state="exited") if one.rank in exited else one for one in ranks]
    nodes = {
        host: replace(
            merged([one for one in ranks if one.host == host], gpus),
            attempts_began=(began or {}).get(host, {}),
        )
        for host in HOSTS
    }
    samples = of_nodes(
        job, nodes, stale=(), clock_offsets={}, started_at=NOON, pause=None, checkpoint=None
    )
    return view(make_spec(placement=placement()), job, samples, NOON)


def test_ranks_that_hang_are_shown_so_though_their_nodes_see_them_run():
    hung = apply(JOB, ev.TroubleFound(attempt=0, reason="hang", ranks=[1, 5, 6]), NOON)
    states = [one.state for one in seen(hung, 6).ranks]
    assert [rank for rank, state in enumerate(states) if state == "hung"] == [1, 5]
    assert states[6] == "exited"
    well = apply(hung, ev.TroubleDropped(attempt=0), NOON)
    assert "hung" not in {one.state for one in seen(well).ranks}


def test_ranks_of_all_nodes_continue_from_a_checkpoint_that_one_of_them_saved():
    job = replace(JOB, attempt=1)
    known = seen(job, began={HOSTS[0]: {1: 400}}, step=50, step_source="probe", run_step=None)
    assert {one.run_step for one in known.ranks} == {450}
    assert (known.run_step.step, known.run_step.counts, known.attempts_began) == (
        450,
        "run",
        {1: 400},
    )
    unknown = seen(job, step=50, step_source="probe", run_step=None)
    assert {one.run_step for one in unknown.ranks} == {None}


def test_others_that_were_stopped_are_counted_on_all_nodes():
    def end(rank: int, by_us: bool) -> RankEnd:
        return RankEnd(RankExit(rank, 100, -15 if by_us else 1, rank + 0.0, ended_by_us=by_us))

    cause = Cause(kind="exit_code", rank=1, exit_code=1, summary="Rank 1 failed.")
    outcome = AttemptOutcome(0, 30.0, 245, 1, None, None)
    judged = {
        host: pt.RanksJudged(
            ends=[msgspec.to_builtins(end(rank, rank != 1)) for rank in ranks],
            cause=cause,
            outcome=outcome,
        )
        for host, ranks in zip(HOSTS, (range(4), range(4, 8)), strict=True)
    }
    found, _ = failure.blame(JOB, make_spec(placement=placement()), judged)
    assert found is not None
    assert found.summary == "Rank 1 failed. 7 other ranks were stopped as a result."


def test_lost_work_and_progress_count_from_the_last_checkpoint_of_any_node():
    book = CheckpointBook()
    early, late = (
        Checkpoint(
            path="/c", at=NOON + dt.timedelta(seconds=at), attempt=0, step=at, global_step=at
        )
        for at in (20, 240)
    )
    for saved in (early, late, early, None):
        book.learn(saved)
    ranks = [replace(one, step=247, run_step=247) for one in ranks_and_devices()[0]]
    outcome, cause = failure.achieved_on_nodes(
        AttemptOutcome(0, 30.0, 245, None, "SIGKILL", None),
        Cause(kind="signal", rank=5, summary="Rank 5 was killed.", host=HOSTS[1]),
        replace(JOB, checkpoint=early),
        ranks,
        {},
        book,
    )
    assert (cause.work_lost_steps, outcome.checkpoint_step, outcome.global_step) == (7, 240, 247)
