"""Where ranks are, according to the output of faulthandler and py-spy."""

from __future__ import annotations

import json

import pytest

from ddptop_runner.judge.hangs import records as places
from ddptop_runner.judge.hangs.records import hang_cause
from ddptop_runner.judge.hangs.verdict import HangVerdict

WAITING = """\
Thread 0x00007f0a6f7fe6c0 (most recent call first):
  File "/opt/ddptop/runner/ddptop_runner/probe/sender.py", line 230 in _send_until_stopped

Current thread 0x00007f0b1e36e740 (most recent call first):
  File "/v/lib/python3.11/site-packages/torch/autograd/graph.py", line 841 in _engine_run_backward
  File "/v/lib/python3.11/site-packages/torch/_tensor.py", line 647 in backward
  File "/home/me/train.py", line 41 in step
  File "/home/me/train.py", line 9 in <module>
"""
SLEEPING = """\
Current thread 0x00007f0b1e36e740 (most recent call first):
  File "/home/me/data.py", line 7 in fetch
  File "/home/me/train.py", line 9 in <module>
"""
PY_SPY = """\
Process 4711: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 4711 (active): "MainThread"
    wait (threading.py:327)
    fetch (/home/me/data.py:7)
    <module> (/home/me/train.py:9)
Thread 4720 (idle): "Thread-1"
    run (other.py:1)
"""

INSTALLED = """\
Current thread 0x00007f0b1e36e740 (most recent call first):
  File "/v/lib/python3.11/site-packages/ddptop_runner/probe/time_parts.py", line 275 in wait
  File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 5 in barrier
  File "/v/lib/python3.11/site-packages/ddptop/demo/sick.py", line 187 in train
  File "/v/lib/python3.11/site-packages/ddptop_runner/agent/zygote.py", line 564 in run_script
"""

PLACES = {
    "the script's innermost frame": (WAITING, "/home/me/train.py:41 in step"),
    "its own at the top": (SLEEPING, "/home/me/data.py:7 in fetch"),
    "py-spy has the main thread first": (PY_SPY, "threading.py:327 in wait"),
    "an installed script": (
        INSTALLED,
        "/v/lib/python3.11/site-packages/ddptop/demo/sick.py:187 in train",
    ),
    "none": ("no stacks: the rank is paused\n", None),
    "empty": ("", None),
    "a header alone": ("Current thread 0x0 (most recent call first):\n  <no Python frame>\n", None),
}


@pytest.mark.parametrize("case", PLACES.values(), ids=list(PLACES))
def test_place(case):
    text, expected = case
    assert places.place(text) == expected


MINORITIES = {
    "one of three": ({0: WAITING, 1: SLEEPING, 2: WAITING}, (1,)),
    "two of five": ({0: WAITING, 1: SLEEPING, 2: WAITING, 3: WAITING, 4: SLEEPING}, (1, 4)),
    "half": ({0: WAITING, 1: SLEEPING}, ()),
    "all at one place": ({0: WAITING, 1: WAITING}, ()),
    "of one nothing is known": ({0: WAITING, 1: "", 2: WAITING, 3: SLEEPING}, ()),
    "nobody": ({}, ()),
}


@pytest.mark.parametrize("case", MINORITIES.values(), ids=list(MINORITIES))
def test_minority(case):
    texts, expected = case
    assert places.minority(texts) == expected


def verdict(*ranks):
    return HangVerdict(ranks, "no rank made progress for 61 s (limit: 60 s); and so on")


def keep(folder, texts):
    for rank, text in texts.items():
        (folder / f"stacks-rank-{rank}.txt").write_text(text)
    (folder / "snapshot.json").write_text("{}")
    return str(folder)


def test_the_cause_names_where_the_culprit_stood(tmp_path):
    evidence = keep(tmp_path, {0: WAITING, 1: SLEEPING})
    cause = hang_cause(verdict(1), evidence)
    assert (cause.kind, cause.rank, cause.place) == ("hang", 1, "/home/me/data.py:7 in fetch")
    assert cause.summary == (
        "The job hung: no rank made progress for 61 s (limit: 60 s); and so on, "
        "last seen at /home/me/data.py:7 in fetch."
    )
    assert cause.evidence == evidence


def test_where_nobody_was_behind_the_stacks_tell_who_stands_apart(tmp_path):
    evidence = keep(tmp_path, {0: WAITING, 1: WAITING, 2: SLEEPING})
    cause = hang_cause(verdict(0, 1, 2), evidence)
    assert (cause.rank, cause.place) == (2, "/home/me/data.py:7 in fetch")
    assert cause.summary.endswith(
        "; rank 2 is not where the others are, but at /home/me/data.py:7 in fetch."
    )


def record(*calls):
    """A flight record of calls of the default group: (number, name, size)."""
    entries = [
        {
            "collective_seq_id": number, "profiling_name": f"gloo:{name}",
            "process_group": ["0", "default_pg"], "input_sizes": [[size]], "is_p2p": False,
        }
        for number, name, size in calls
    ]  # fmt: skip
    return json.dumps({"version": "2.10", "entries": entries})


FIRST = (106, "all_reduce", 64)
CALLS = {
    "another one": (
        [(107, "barrier", 0)],
        [(107, "all_reduce", 64)],
        "rank 0 in barrier, rank 1 in all_reduce of 64 elements",
    ),
    "another size": (
        [(107, "all_reduce", 3)],
        [(107, "all_reduce", 64)],
        "rank 0 in all_reduce of 3 elements, rank 1 in all_reduce of 64 elements",
    ),
    "sizes that may differ": ([(107, "gather", 3)], [(107, "gather", 4)], None),
    "equal ones": ([(107, "barrier", 0)], [(107, "barrier", 0)], None),
    "one that the other has not reached": ([(107, "barrier", 0)], [], None),
}


@pytest.mark.parametrize("case", CALLS.values(), ids=list(CALLS))
def test_calls_that_differ_are_named(tmp_path, case):
    first, second, expected = case
    (tmp_path / "flight-rank-0.json").write_text(record(FIRST, *first))
    (tmp_path / "flight-rank-1.json").write_text(record(FIRST, *second))
    headline = hang_cause(verdict(0, 1), str(tmp_path)).headline
    _, found, words = headline.partition("; they called different collectives: ")
    assert (words if found else None) == expected


def test_the_rank_with_another_call_is_blamed_where_there_are_more(tmp_path):
    for rank in range(3):
        name = "barrier" if rank == 1 else "all_reduce"
        (tmp_path / f"flight-rank-{rank}.json").write_text(record(FIRST, (107, name, 64)))
    assert hang_cause(verdict(0, 1, 2), str(tmp_path)).rank == 1
    (tmp_path / "flight-rank-2.json").write_text("{damaged")
    assert hang_cause(verdict(0, 1, 2), str(tmp_path)).rank is None


CRASH = """\
Fatal Python error: Aborted

Thread 0x00007f0a6f7fe6c0 (most recent call first):
  File "/opt/ddptop/runner/ddptop_runner/probe/sender.py", line 230 in _send_until_stopped

{} 0x00007f0b1e36e740 (most recent call first):
  File "/home/me/train.py", line 41 in step

{} 0x00007f0b1e36e741 (most recent call first):
  File "/home/me/train.py", line 9 in main
"""


@pytest.mark.parametrize(
    ("threads", "expected"),
    [
        (("Thread", "Thread"), "/home/me/train.py:9 in main"),  # a thread of C++ aborted
        (("Current thread", "Thread"), "/home/me/train.py:41 in step"),
    ],
)
def test_the_place_of_a_crash(threads, expected):
    assert places.of_crash("earlier dumps\n" + CRASH.format(*threads)) == expected
    assert places.of_crash(WAITING) is None
