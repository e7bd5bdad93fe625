"""Which rank broke the order of collectives, as a table of records."""

from __future__ import annotations

import json

import pytest

from ddptop_runner.judge.hangs.records import Call, Left, read_calls, who_left

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
    "the one that ended at once": ({0: steps(20, (W, B))}, (1, None, "")),
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
    assert who_left({0: calls([*(epoch * 4), *STEP, *STEP])}, 2) == Left(1)
    assert who_left({0: calls([*(epoch * 3), *(STEP * 12), "[7]"])}, 2) == Left(1)


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
