"""The snapshot of a job on several nodes, merged from its nodes' snapshots."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from tests.runner.builders import make_spec
from tests.runner.nodes import HOSTS, NOON, merged, placement, ranks_and_devices

from ddptop_runner.job.state import JobState, NodeLife, RankLife
from ddptop_runner.job.transition import apply
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import NodeSnapshot
from ddptop_runner.node import head_snapshot

LIVES = {host: NodeLife(takes_part=True, started=True) for host in HOSTS}
JOB = JobState(phase="running", attempt=0, nodes=LIVES, ranks={n: RankLife() for n in range(8)})


def seen(
    job: JobState, *exited: int, began: dict[str, dict[int, int]] | None = None, **rank: Any
) -> NodeSnapshot:
    """What viewers see of eight ranks that run, as far as their nodes know."""
    ranks, gpus = ranks_and_devices()
    ranks = [replace(one, **rank) for one in ranks]
    ranks = [replace(one, state="exited") if one.rank in exited else one for one in ranks]
    views = [
        head_snapshot.NodeView(
            host=host,
            snapshot=replace(
                merged([one for one in ranks if one.host == host], gpus),
                attempts_began=(began or {}).get(host, {}),
            ),
            is_live=True,
            attempt=0,
            ended=False,
            clock_offset_s=0.0,
        )
        for host in HOSTS
    ]
    begun = merged([], [], state=job.phase)
    return head_snapshot.merged(begun, job, make_spec(placement=placement()), views, None, {})


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
