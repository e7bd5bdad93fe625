"""What the results of all hosts mean together, without a host."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.tables import table

from ddptop_runner.launch import device_check
from ddptop_runner.launch.device_check import HostResult, RankResult
from ddptop_runner.launch.gpus.choice import ON_CPU
from ddptop_runner.launch.preflight import HostFacts
from ddptop_runner.launch.readiness import Surveyed, Wanted, judge
from ddptop_runner.launch.request import HostRequest, parse_hosts
from ddptop_runner.launch.ssh import Unreachable
from ddptop_runner.model.spec import Device

WANTED = Wanted(
    target="train.py",
    kind="script",
    cwd="/w",
    python="/v/bin/python",
    script_digest="aa",
    files={"train.py": "aa", "model.py": "bb"},
)
GPUS = [Device(index=0), Device(index=1)]


def facts(host="a", **known):
    fields = {
        "ddptop": "1.0",
        "command": ["/v/bin/python", "start.py", "node"],
        "now_s": 1.0,
        "python": "/v/bin/python",
        "python_version": "3.11",
        "torch": "2.13.0+cu126",
        "script_digest": "aa",
        "files": {"train.py": "aa", "model.py": "bb"},
        "devices": GPUS,
        "ranks": len(GPUS),
        "addresses": [f"10.0.0.{ord(host[0]) - ord('a') + 1}", "172.17.0.1", "127.0.0.1"],
        "ports": [20001, 20002, 20003],
        "nonce": host,
    }
    return HostFacts(**{**fields, **known})


def survey(wanted=WANTED, hosts="a,b,c", **changed):
    """Three good hosts, except for changes to one: facts, or why there are none."""
    asked = parse_hosts(hosts)
    found = []
    for request in asked:
        name = request.host
        change = changed.get(name, {})
        if isinstance(change, Unreachable):
            found.append(Surveyed(request, unreachable=change))
            continue
        about = {key: change.pop(key) for key in ("clock_offset_s", "reached") if key in change}
        about.setdefault("clock_offset_s", 0.01)
        about.setdefault(
            "reached", {one.host: facts(one.host).addresses[:1] for one in asked if one != request}
        )
        found.append(Surveyed(request, facts=facts(name, **change), **about))
    return judge(found, wanted)


def refusals(*arguments, **options):
    return [str(refusal) for refusal in survey(*arguments, **options).refusals]


def test_good_hosts_become_nodes_in_order():
    judged = survey(hosts="b:0-1,a,c")
    assert judged.refusals == []
    assert judged.notes == []
    assert [node.host for node in judged.nodes] == ["b", "a", "c"]
    first = judged.nodes[0]
    assert (first.address, first.nproc, first.devices) == ("10.0.0.2", 2, GPUS)
    assert first.command == ["/v/bin/python", "start.py", "node"]
    assert first.ports == [20001, 20002]  # the last one is still listening
    shared = ["ready", "1.0", "2.13.0+cu126", "3.11", "2 on GPUs 0, 1", "+0.01 s"]
    assert judged.rows == [
        ["HOST", "STATE", "DDPTOP", "TORCH", "PYTHON", "RANKS", "CLOCK", "ADDRESS"],
        ["b", *shared, "10.0.0.2"],
        ["a", *shared, "10.0.0.1"],
        ["c", *shared, "10.0.0.3"],
    ]


REFUSED = table(__file__, "refused")


@pytest.mark.parametrize("what", REFUSED)
def test_a_host_that_does_not_fit_is_refused_in_one_line_with_the_remedy(what):
    case = REFUSED[what]
    known = {key: None if one == "none" else one for key, one in case.get("facts", {}).items()}
    judged = survey(b=Unreachable(*case["unreachable"]) if "unreachable" in case else known)
    said = [str(refusal) for refusal in judged.refusals]
    assert said[0] == case["line"]
    assert judged.nodes == []
    states = {row[0]: row[1] for row in judged.rows[1:]}
    assert states["a"] == "ready"
    assert states["b"] != "ready"


def test_hosts_with_the_same_problem_share_a_line():
    gone = Unreachable("ddptop", "ddptop is not installed", "x")
    assert refusals(b=gone, c=gone) == ["b, c: ddptop is not installed; run ddptop setup-host b c"]


def test_force_takes_what_differs_but_not_what_is_missing():
    forced = msgspec.structs.replace(WANTED, force=True)
    assert refusals(forced, b={"script_digest": "a0"}, c={"files": {}}) == []
    assert "no script" in refusals(forced, b={"script_digest": None})[0]


def test_a_script_that_is_not_here_is_compared_among_the_hosts():
    elsewhere = msgspec.structs.replace(WANTED, script_digest=None, files=None)
    assert refusals(elsewhere) == []
    [line] = refusals(elsewhere, c={"script_digest": "cc"})
    assert line.startswith("c: train.py in /w is not the same as on a;")


def test_folders_that_could_not_be_compared_are_no_difference():
    assert refusals(b={"files": None}) == []


def test_ranks_come_from_the_hostfile_then_nproc_then_the_gpus():
    hosts = [
        Surveyed(HostRequest("a", slots=1), facts=facts("a")),
        Surveyed(HostRequest("b"), facts=facts("b")),
    ]
    judged = judge(hosts, msgspec.structs.replace(WANTED, nproc=2))
    assert [node.nproc for node in judged.nodes] == [1, 2]
    judged = judge(hosts, msgspec.structs.replace(WANTED, nproc=3))
    assert "3 ranks do not fit on 2 GPUs" in str(judged.refusals[0])
    judged = judge(hosts, WANTED)
    assert [node.nproc for node in judged.nodes] == [1, 2]


def test_hosts_without_nvidia_hardware_train_on_their_cpus():
    without = {"devices": None, "ranks": 2}
    judged = survey(hosts="a,b", a=without, b=without)
    assert [node.nproc for node in judged.nodes] == [2, 2]
    assert [str(note) for note in judged.notes] == [f"a, b: {ON_CPU}"]
    judged = survey(msgspec.structs.replace(WANTED, nproc=3), hosts="a,b", a=without, b=without)
    assert ([node.nproc for node in judged.nodes], judged.notes) == ([3, 3], [])


def test_the_address_is_one_that_all_others_reach():
    second = {"a": ["172.17.0.1"], "c": ["10.0.0.3"]}
    judged = survey(b={"reached": second})
    assert [node.address for node in judged.nodes] == []  # c can reach a only at another address
    assert "b cannot connect to it at 10.0.0.1, 172.17.0.1, TCP port 20003" in str(
        judged.refusals[0]
    )
    judged = survey(b={"reached": second}, c={"reached": {"a": ["172.17.0.1"], "b": ["10.0.0.2"]}})
    assert [node.address for node in judged.nodes] == ["172.17.0.1", "10.0.0.2", "10.0.0.3"]


def test_what_is_odd_but_no_reason_to_refuse_is_noted():
    judged = survey(
        b={"clock_offset_s": -3.2},
        c={"gpus_note": "GPU 0 is in doubt"},
    )
    assert judged.refusals == []
    assert [node.host for node in judged.nodes] == ["a", "b", "c"]
    assert [row[1] for row in judged.rows[1:]] == ["ready", "ready", "ready"]
    assert [str(note) for note in judged.notes] == [
        "b: its clock is 3.2 s behind; synchronize it (timedatectl set-ntp true)",
        "c: GPU 0 is in doubt",
    ]


# --- --check ------------------------------------------------------------------------------------


def done(rank, flops=1e12, **links):
    return RankResult(
        rank=rank,
        local_rank=rank % 2,
        stage="done",
        flops_per_s=flops,
        all_reduce_s=0.01,
        links={peer[1:]: speed for peer, speed in links.items()},
    )


def measured(*hosts):
    return {name: HostResult(ranks=ranks) for name, ranks in zip("abcd", hosts, strict=False)}


def check(results, devices=None):
    return device_check.judge(results, dict.fromkeys("abcd", devices))


def test_each_slow_link_is_named():
    machine = measured(
        [done(0, _1=1e9)], [done(1, _2=1.1e9)], [done(2, _3=1e10)], [done(3, _0=9e9)]
    )
    assert check(machine).slow == [
        "the link between a and b is slow (1 GB/s, others 10 GB/s)",
        "the link between b and c is slow (1.1 GB/s, others 10 GB/s)",
    ]
    link = measured([done(0, _1=1e9)], [done(1, _2=9e9)], [done(2, _0=1e10)])
    assert check(link).slow == ["the link between a and b is slow (1 GB/s, others 10 GB/s)"]


def test_the_broken_device_is_named_and_not_those_that_waited_for_it():
    waited = RankResult(rank=0, local_rank=0, stage="matmul", error="Connection reset by peer")
    failed = RankResult(rank=2, local_rank=0, error="CUDA error: uncorrectable ECC error")
    found = check(measured([waited], [failed]), GPUS)
    assert found.broken == [
        "b: rank 2 (GPU 0) failed on its own: CUDA error: uncorrectable ECC error"
    ]
    hung = RankResult(rank=1, local_rank=0, stage="matmul")
    found = check({"a": None, "b": HostResult(ranks=[hung])})
    assert found.broken == [
        "a: no result",
        "b: rank 1 failed with the others, after matmul: no progress",
    ]


def test_a_slow_gpu_is_named():
    found = check(measured([done(0), done(1)], [done(2, flops=0.6e12), done(3)]), GPUS)
    assert found.slow == [
        "b: rank 2 (GPU 0) computes at 60 % of the median (600 GFLOP/s of 1 TFLOP/s)"
    ]
    assert check(measured([done(0), done(1)], [done(2, flops=0.6e12)])).slow == []  # CPUs vary
