"""Data keyed by PID or device index is correct even if two hosts have equal ones."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from ddptop.job.help import explain_alert as explain
from ddptop.job.progress import median_loss
from ddptop.job.ranks import node_in_words, short_names
from tests.support.builders import make_spec, put_job
from tests.support.head_nodes import HOSTS, NOON, merged, placement, rank_on, ranks_and_devices
from tests.support.tables import table

from ddptop_runner.host import procs
from ddptop_runner.job.moment import samples_of
from ddptop_runner.job.registry import rank_of_pid, read_job
from ddptop_runner.job.state import JobState, NodeLife, RankLife
from ddptop_runner.job.view import devices_for_history, for_history, view
from ddptop_runner.judge.alerts import REPORTED_BY_EVENTS, of_nodes
from ddptop_runner.judge.balance.imbalance import RankDeviation, deviations
from ddptop_runner.judge.balance.job_watch import JobWatch
from ddptop_runner.model.snapshot import (
    Alert,
    NodeSnapshot,
    NodeStatus,
    RankSample,
)
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.store.history import HistoryReader, HistoryWriter
from ddptop_runner.store.history_reader import Figures
from ddptop_runner.store.history_schema import GPU, device_number

RANKS, GPUS = ranks_and_devices()
START = 1_767_225_600


def change(samples, **by_place):
    """The samples, with the given ones changed."""
    found = list(samples)
    for place, fields in by_place.items():
        number = int(place[1:])
        found[number] = msgspec.structs.replace(found[number], **fields)
    return found


def at_noon(spec: JobSpec, job: JobState, figures: Figures, last: NodeSnapshot | None):
    """The replayed job."""
    return view(spec, job, samples_of(spec, job, figures, NOON, last), NOON)


def alerts_of(ranks, gpus, seconds: int = 90) -> list[Alert]:
    """What holds after that time; each rank takes steps."""
    watch, found = JobWatch(), []
    for second in range(seconds):
        stepping = [msgspec.structs.replace(rank, step=50 + 5 * second) for rank in ranks]
        found, _ = watch.update(merged(stepping, gpus, second), float(second))
    return found


# --- keys -----------------------------------------------------------------------------------------


def test_the_pids_of_other_hosts_are_not_local_ones(ddptop_home: Path):
    host = make_spec().host
    here, _ = ranks_and_devices((host, "b"))
    ranks = change(here, _4={"pid": 555})
    gpus = [msgspec.structs.replace(gpu, host="b") for gpu in GPUS[4:]]
    alive = {"ranks": ranks, "gpus": gpus, "guardian": procs.identify(os.getpid())}
    folder = put_job(snapshot=alive, placement=placement((host, "b")))
    owners = rank_of_pid([read_job(folder)])
    assert owners == {100 + local: ("train", local) for local in range(4)}


def test_history_keeps_the_devices_of_hosts_apart(tmp_path: Path):
    writer = HistoryWriter(tmp_path / "history.db", hosts=HOSTS)
    gpus = change(GPUS, _1={"util_percent": 10.0}, _5={"util_percent": 90.0})
    for second in range(3):
        writer.add(START + second, 0, RANKS, gpus)
    writer.close()
    series = HistoryReader(tmp_path / "history.db").series(GPU, "util_percent", 0, START + 9, 100)
    assert len(series) == 8
    assert set(series[device_number(HOSTS, "a", 1)].mean) == {10.0}
    assert set(series[device_number(HOSTS, "b", 1)].mean) == {90.0}


def test_a_replay_shows_the_devices_of_each_host(tmp_path: Path):
    writer = HistoryWriter(tmp_path / "history.db", hosts=HOSTS)
    writer.add(START, 0, RANKS, change(GPUS, _6={"util_percent": 11.0}))
    writer.close()
    spec = make_spec(placement=placement(), nproc=8)
    figures = HistoryReader(tmp_path / "history.db").figures_at(START)
    then = at_noon(spec, JobState(phase="running", attempt=0), figures, merged(RANKS, GPUS))
    assert [(gpu.host, gpu.index) for gpu in then.gpus] == [(gpu.host, gpu.index) for gpu in GPUS]
    assert then.gpus[6].util_percent == then.ranks[6].gpu_util_percent == 11.0
    assert then.ranks[2].gpu_util_percent == 97.0
    unknown = at_noon(spec, JobState(phase="running", attempt=0), figures, None)
    assert [(gpu.host, gpu.index) for gpu in unknown.gpus] == [(g.host, g.index) for g in GPUS]


# --- findings -------------------------------------------------------------------------------------


def test_what_is_wrong_with_a_device_names_its_host():
    gpus = change(GPUS, _1={"xid": [79]}, _5={"xid": [79]}, _6={"lost": True})
    alerts = {alert.id: alert for alert in alerts_of(RANKS, gpus)}
    assert alerts.keys() == {"xid-79-1@a", "xid-79-1@b", "gpu-lost@b"}
    assert alerts["xid-79-1@b"].ranks == [5]
    assert alerts["xid-79-1@b"].message.startswith("b: GPU 1 (rank 5) reported XID 79")
    assert (alerts["gpu-lost@b"].host, alerts["gpu-lost@b"].gpus) == ("b", [2])
    assert explain("xid-79-1@b") == explain("xid-79-1") != ""


# --- a slow host ----------------------------------------------------------------------------------


def busy(host: str, number: int, local: int, own_s: float, step_s: float = 0.3) -> RankSample:
    """A rank that computes for that long and waits for the others in the rest of each step."""
    return rank_on(host, number, local, step_time_s=step_s, sync_s=step_s - own_s, data_wait_s=0.01)


def nodes_busy(*own_s: float, per_host: int = 4) -> list[RankSample]:
    """How long each rank on each host is busy."""
    return [
        busy("abcd"[node], per_host * node + local, local, seconds)
        for node, seconds in enumerate(own_s)
        for local in range(per_host)
    ]


def test_a_host_whose_ranks_are_all_slow_is_named():
    (one,) = alerts_of(nodes_busy(0.15, 0.15, 0.29), [])
    assert (one.id, one.ranks) == ("straggler", [8, 9, 10, 11])
    assert one.message.startswith(
        "all ranks of c (8-11) are holding up the others: rank 8 is busy for"
    )


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hosts", "short"), table(__file__, "short_names"))  # fmt: skip
def test_host_names_are_shortened_so_that_they_still_tell_hosts_apart(hosts, short):
    assert [short_names(hosts)[host] for host in hosts] == short


# --- states of nodes ------------------------------------------------------------------------------

SINCE = NOON.replace(minute=3)


def with_nodes(state: str, **fields) -> NodeSnapshot:
    """The job while b is in that state."""
    well = NodeStatus(host="a", state="running", ranks=[0, 1, 2, 3])
    b = NodeStatus(host="b", state=state, ranks=[4, 5, 6, 7], **fields)
    return merged(RANKS, GPUS, nodes=[well, b])


def test_unreachable_host_is_a_warning_with_time_and_reason():
    snapshot = with_nodes("unreachable", unknown_since=SINCE, why="no route to host")
    ((alert,), _) = JobWatch().update(snapshot, 0.0)
    clock = f"{SINCE.astimezone():%H:%M}"
    assert (alert.id, alert.severity, alert.ranks) == ("node-unreachable", "warning", [4, 5, 6, 7])
    assert alert.message == (
        f"b has been unreachable since {clock}: its ranks 4-7 may be training (no route to host)"
    )
    assert alert.id in REPORTED_BY_EVENTS
    assert node_in_words(snapshot.nodes[1]) == f"unreachable since {clock} (no route to host)"


def test_a_host_that_was_given_up_is_a_warning_and_others_are_none():
    ((alert,), _) = JobWatch().update(with_nodes("lost", why="out of reach for 5 min"), 0.0)
    assert alert.message == "b is lost (out of reach for 5 min)"
    for state in ("waiting", "starting", "running", "held", "ended"):
        assert JobWatch().update(with_nodes(state), 0.0)[0] == []


def test_many_hosts_out_of_reach_are_one_alert():
    nodes = [NodeStatus(host=f"n{n}", state="unreachable", ranks=[n]) for n in range(9)]
    (one,) = of_nodes(nodes)
    assert one.message.startswith("n0, n1, n2, n3 and 5 more have been unreachable: their ranks")


def test_a_straggler_is_named_with_its_host():
    ranks = nodes_busy(0.15, 0.15)
    ranks[5] = busy("b", 5, 1, 0.29)
    (one,) = alerts_of(ranks, [])
    assert one.message.startswith("rank 5 on b is holding up the others: ")
    assert one.ranks == [5]


def test_figures_of_a_host_out_of_reach_are_neither_compared_nor_recorded():
    ranks = [
        *RANKS[:4],
        *(msgspec.structs.replace(r, state="unknown", loss=9.0) for r in RANKS[4:]),
    ]
    ranks[3] = msgspec.structs.replace(ranks[3], loss=2.2)
    snapshot = msgspec.structs.replace(with_nodes("unreachable"), ranks=ranks)
    apart = deviations(ranks, GPUS)
    assert apart[0].loss == 0.0 and apart[5] == RankDeviation()
    assert median_loss(snapshot)[0] == 2.0
    assert [rank.rank for rank in for_history(snapshot)] == [0, 1, 2, 3]
    assert {gpu.host for gpu in devices_for_history(snapshot)} == {"a"}
    assert devices_for_history(with_nodes("running")) == GPUS


def test_a_replay_places_the_ranks_on_the_nodes_of_that_attempt():
    spec = make_spec(placement=placement(("a", "b"), per_host=2), nproc=4)
    alone = JobState(
        phase="running",
        attempt=1,
        nodes={"a": NodeLife(lost=True, why="gone"), "b": NodeLife(takes_part=True)},
        ranks={0: RankLife(node="b"), 1: RankLife(node="b")},
    )
    both, gpus = ranks_and_devices(per_host=2)
    then = at_noon(spec, alone, Figures(), merged(both, gpus, attempt=2))
    assert [(rank.host, rank.local_rank, rank.gpu) for rank in then.ranks] == [
        ("b", 0, 0),
        ("b", 1, 1),
    ]
    assert [(node.host, node.state, node.ranks) for node in then.nodes] == [
        ("a", "lost", []),
        ("b", "running", [0, 1]),
    ]
