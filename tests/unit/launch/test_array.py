"""`--array`: which jobs follow from it, and what is refused."""

from __future__ import annotations

import pytest

from ddptop_runner.base.errors import UsageError
from ddptop_runner.launch.array import expand, parse_arrays

ARGS = ("--lr", "{lr}", "--out={seed}/{lr}", "{other} {{lr}}", "--json", '{"lr": 1}')


def test_each_combination_is_a_job_and_only_known_placeholders_are_replaced() -> None:
    jobs = expand(parse_arrays(["lr=1e-3,0.1", "seed=9-10"]), "bert", ARGS)
    assert [job.name for job in jobs] == [
        "bert-lr1e-3-seed9",
        "bert-lr1e-3-seed10",
        "bert-lr0-1-seed9",
        "bert-lr0-1-seed10",
    ]
    last = jobs[-1]
    assert last.values == {"lr": "0.1", "seed": "10"}
    assert last.args == ("--lr", "0.1", "--out=10/0.1", "{other} {0.1}", "--json", '{"lr": 1}')


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (["lr"], "--array 'lr' is not in the form NAME=VALUES; use --array lr=1e-3,1e-4 or"),
        (["lr=1\n2"], "--array 'lr=1\\n2' is not in the form NAME=VALUES"),
        (["=1"], "is not in the form NAME=VALUES"),
        (["a-b=1"], "is not in the form NAME=VALUES"),
        (["lr="], "--array lr has an empty value"),
        (["lr=1,,2"], "--array lr has an empty value"),
        (["lr=1", "lr=2"], "--array lr is given twice; list all of its values in one"),
        (["lr=1,2,1"], "--array lr lists 1 twice"),
        (["lr=1-3,2"], "--array lr lists 2 twice"),
        (["lr=3-1"], "--array lr: the range 3-1 is reversed; use 1-3"),
        (["lr=0-999999999"], "--array gives 1000000000 jobs; use at most 100"),
        (["lr=1-100", "seed=1-2"], "--array gives 200 jobs; use at most 100"),
        (["lr=0.1,0/1"], "0.1 and 0/1 have the same job name, bert-lr0-1; use values that differ"),
        (["lr=" + "x" * 50], "has 57 characters; use 48 or fewer"),
        (["lr=1", "wd=1"], "--array wd: the arguments do not contain {wd}; pass it to the script"),
    ],
)
def test_what_is_refused(given: list[str], error: str) -> None:
    with pytest.raises(UsageError) as refused:
        expand(parse_arrays(given), "bert", ARGS)
    assert error in str(refused.value)
