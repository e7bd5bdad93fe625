"""A job looks the same live, to its next supervisor, and replayed from its log."""

from __future__ import annotations

from tests.support import views
from tests.support.builders import make_spec

from ddptop_runner.job.state import JobState, RankLife
from ddptop_runner.job.view import Samples, view
from ddptop_runner.model.snapshot import RankSample


def test_three_hundred_histories_of_one_node():
    for seed in range(300):
        try:
            views.drive(seed)
        except AssertionError as error:
            raise AssertionError(f"benchmarks/state_machine.py --views --seed {seed}") from error


def test_forty_histories_of_several_nodes():
    for seed in range(40):
        try:
            views.drive_nodes(seed)
        except AssertionError as error:
            raise AssertionError(
                f"benchmarks/state_machine.py --views --nodes --seed {seed}"
            ) from error


def test_each_rank_ends_or_hangs_as_the_state_says():
    lives = {
        0: RankLife(exited=True, status=0),
        1: RankLife(exited=True, status=3),
        2: RankLife(exited=True, status=-9),
        3: RankLife(exited=True),
        4: RankLife(exited=True, status=-15, by_us=True),
        5: RankLife(hung=True),
        6: RankLife(hung=True, exited=True, status=1),
        7: RankLife(pid=7, exited=True, status=1),
        8: RankLife(),
    }
    ranks = [RankSample(rank=n, local_rank=n, host="h", pid=99, state="quiet") for n in lives]
    state = JobState(phase="running", attempt=0, ranks=lives)
    shown = view(
        make_spec(nproc=9), state, Samples(started_at=views.LATER, ranks=ranks), views.LATER
    )
    assert [(one.state, one.exit_code, one.signal) for one in shown.ranks] == [
        ("exited", 0, None),
        ("failed", 3, None),
        ("failed", None, "SIGKILL"),
        ("failed", None, None),
        ("stopped", None, "SIGTERM"),
        ("hung", None, None),
        ("failed", 1, None),
        ("quiet", None, None),  # that was another process
        ("quiet", None, None),
    ]
