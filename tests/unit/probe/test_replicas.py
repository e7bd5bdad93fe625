"""Weights are hashed at equal steps on all ranks, where replicas are equal."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.probe_ranks import Rank, lines

from ddptop_runner.model.probe_message import ProbeMessage
from ddptop_runner.probe.replicas import EVERY_S, _common, _sum, next_look

SCRIPT = str(Path(__file__).parent / "scripts" / "replicas.py")
KINDS = ("plain", "accumulate", "zero", "diverge", "local", "join")


@pytest.fixture(scope="module")
def finals(module_rank: Rank) -> dict[str, list[ProbeMessage]]:
    """{kind: the last message of each of its two ranks}."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        del module_rank.env[name]
    found = {}
    for check, kinds in (("on", KINDS), ("off", ["off"])):
        argv = ("-W", "ignore", SCRIPT, *kinds)  # newer versions warn of forks
        status, out, err = module_rank.run(*argv, DDPTOP_REPLICA_CHECK=check)
        assert status == 0, err
        for line in lines(out):
            found[line["kind"]] = [module_rank.receiver.last(pid) for pid in line["pids"]]
    return found


@pytest.mark.torch
@pytest.mark.parametrize("kind", [*KINDS, "off"])
def test_two_ranks_hash_what_must_be_equal(
    finals: dict[str, list[ProbeMessage]], kind: str
) -> None:
    last = finals[kind]
    assert [message.rank for message in last] == [0, 1]
    found = [last[number].weight_hashes for number in (0, 1)]
    batches = [None, None] if kind == "join" else [100, 101]
    assert [last[number].epoch_batches for number in (0, 1)] == batches
    if kind in ("local", "off", "join"):
        assert found == [None, None]
        return
    first, second = found
    assert first is not None and second is not None
    assert first.step == second.step == 16 and first.layout == second.layout
    names = ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"]
    assert (last[0].weight_groups, last[1].weight_groups) == (names, [])
    differ = [a != b for a, b in zip(first.groups, second.groups, strict=True)]
    assert differ == [kind == "diverge" and name == "3.bias" for name in names]


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize(("start", "length"), [(0, 1), (0, 8), (0, 9), (1, 8), (3, 5)])
def test_each_element_of_a_parameter_counts(dtype: str, start: int, length: int) -> None:
    torch = pytest.importorskip("torch")
    values = torch.ones(16, dtype=getattr(torch, dtype))[start : start + length]
    sums = {_sum(torch, values).item()}
    for index in range(length):
        values[index] = 2.0 + index
        sums.add(_sum(torch, values).item())
    assert len(sums) == length + 1


def test_a_group_of_parameters_is_named_after_what_they_share() -> None:
    assert _common(["layer1.0.bn1.weight", "layer1.0.bn1.bias"]) == "layer1.0.bn1"
    assert _common(["conv1.weight", "bn1.weight"]) == "conv1.weight to bn1.weight"


def looks(step_s: float, until: int) -> list[int]:
    found = [next_look(0, 0.0)]
    while found[-1] < until:
        found.append(next_look(found[-1], step_s))
    return found


def test_ranks_look_at_powers_of_two_then_at_most_every_five_minutes() -> None:
    assert looks(1.0, 1000) == [4, 8, 16, 32, 64, 128, 256, 512, 768, 1024]
    later = [step for step in looks(0.3, 20_000) if step > 1024]
    assert all(EVERY_S / 2 <= 0.3 * (b - a) <= EVERY_S for a, b in pairwise(later))


def test_ranks_whose_steps_seem_to_differ_still_look_at_the_same_ones() -> None:
    fast, slow = looks(0.29, 20_000), looks(0.30, 20_000)
    assert fast != slow and set(slow) | {20480} >= set(fast)
