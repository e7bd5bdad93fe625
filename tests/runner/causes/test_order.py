"""Which rank broke the order of collectives, as a table of records."""

from __future__ import annotations

import json

import pytest

from ddptop_runner.judge.hangs.records import Call, Left, differences, read_calls, who_left

STEP = ("[64, 16]", "[64]", "[1]")


def calls(sizes):
    return [Call(number, "all_reduce", one) for number, one in enumerate(sizes, 1)]


def steps(number, then=()):
    """That many complete steps, followed by the given collective."""
    return calls([*(STEP * number), *then])


W, B, N = STEP
REGULAR = {
    # records by rank -> (rank that diverged, what it entered, what was due)
    "one skipped, both stand": ({0: steps(20, (W, B)), 1: steps(20, (B,))}, (1, B, W)),
    "one skipped, the other ended at once": ({1: steps(20, (W, N))}, (1, N, B)),
    "it went on for a moment": ({1: steps(20, (B, N, W))}, (1, B, W)),
    "one entered one more": ({0: steps(20, (W, W)), 1: steps(20, (W, B))}, (0, W, B)),
    "of two, one kept to its own": ({0: steps(20, (W, B))}, None),
    "of four, three kept to theirs": ({rank: steps(20, (W,)) for rank in (0, 1, 3)}, (2, None, "")),
    "of four, two are unknown": ({rank: steps(20, (W,)) for rank in (0, 1)}, None),
    "too short to show an order": ({0: steps(3, (W,)), 1: steps(3, (B,))}, None),
    "no order at all": ({0: calls([f"[{n * n}]" for n in range(60)])}, None),
    "both left": ({0: steps(20, (B,)), 1: steps(20, (N,))}, None),
    "nothing known": ({}, None),
}


@pytest.mark.parametrize("name", REGULAR)
def test_who_left(name):
    records, expected = REGULAR[name]
    found = who_left(records, 4 if "four" in name else 2)
    if expected is None:
        assert found is None
        return
    rank, entered, due = expected
    assert found is not None and found.rank == rank
    assert (None if found.entered is None else found.entered.sizes) == entered
    assert found.expected == (f"all_reduce {due}" if due else "")


def test_an_end_of_epoch_that_came_before_is_in_order():
    epoch = (*(STEP * 12), "[7]", "[8]")
    for kept in ([*(epoch * 4), *STEP, *STEP], [*(epoch * 3), *(STEP * 12), "[7]"]):
        assert who_left({rank: calls(kept) for rank in (0, 2)}, 3) == Left(1)


@pytest.mark.parametrize(
    ("records", "told"),
    [
        (
            {0: calls([W, B, N]), 1: calls([W, N, B])},
            "In collective 2, rank 0 entered all_reduce [64] and rank 1 all_reduce [1]. It is",
        ),
        (
            {0: calls([W, B])},
            "The last collective of rank 0 was 2, all_reduce [64]; rank 1 left no flight record. ",
        ),
        (
            {0: calls([W]), 1: calls([W, B])},
            "Rank 0 did not join collective 2, all_reduce [64], which rank 1 entered.",
        ),
        ({0: calls([W]), 1: calls([W])}, "It is unknown which rank is at fault."),
        ({}, "It is unknown which rank is at fault."),
    ],
)
def test_of_two_ranks_each_is_told_and_none_is_blamed_without_evidence(records, told):
    assert differences(records, 2).startswith(told)
    assert differences(records, 4) == "It is unknown which rank is at fault."


def test_words():
    left = Left(1, Call(31, "all_reduce", "[64]"), "all_reduce [64, 16]")
    assert left.in_words() == (
        "Rank 1 issued its collectives out of order: its collective 31 was all_reduce [64] instead "
        "of all_reduce [64, 16]."
    )


ENTRY = {
    "collective_seq_id": 2,
    "profiling_name": "gloo:all_reduce",
    "input_sizes": [[64, 16]],
    "process_group": ["0", "default_pg"],
    "is_p2p": False,
}


def test_a_record_is_read_in_order_and_without_other_groups(tmp_path):
    path = tmp_path / "flight.json"
    other = {**ENTRY, "process_group": ["1", "x"]}
    entries = [ENTRY, {**ENTRY, "collective_seq_id": 1}, other, {**ENTRY, "is_p2p": True}]
    path.write_text(json.dumps({"entries": entries}))
    assert read_calls(path) == [
        Call(1, "all_reduce", "[64, 16]"),
        Call(2, "all_reduce", "[64, 16]"),
    ]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"entries": 3}', '{"entries": [{}]}', "[" * 100_000, '{"entries": [1]}']
)
def test_damaged_record_yields_nothing(tmp_path, text):
    path = tmp_path / "flight.json"
    path.write_text(text)
    assert read_calls(path) == []
    assert read_calls(tmp_path / "none.json") == []
