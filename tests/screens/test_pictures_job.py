"""Pictures of the job screen: cards, a table, a map, a failure.

After an intended change: `pytest tests/screens/test_pictures_job.py --snapshot-update`, then look
at each changed picture.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import fake_gpus, fake_home, fake_ranks
from tests.support.pictures import SIZES, SMALL, Compare, MakeApp, after, by_look, by_size, name_of


@by_look
def test_eight_gpus_with_a_straggler(
    frozen: Path, make_app: MakeApp, snap_compare: Compare, size: object, theme: str
) -> None:
    fake_gpus.eight_gpu_ranks(frozen)
    assert snap_compare(make_app("llama-ft"), terminal_size=size, run_before=after(theme, "]"))


@pytest.mark.parametrize("size", [SIZES[0], SMALL], ids=name_of)
def test_two_cpu_ranks(
    frozen: Path, make_app: MakeApp, snap_compare: Compare, size: object
) -> None:
    fake_home.two_cpu_ranks(frozen)
    assert snap_compare(make_app("mlp-cpu"), terminal_size=size, run_before=after("ddptop"))


@pytest.mark.parametrize("size", SIZES[:2], ids=name_of)
def test_a_failed_job(frozen: Path, make_app: MakeApp, snap_compare: Compare, size: object) -> None:
    fake_home.failed_job(frozen)
    assert snap_compare(make_app("vit-base"), terminal_size=size, run_before=after("ddptop"))


@by_size
def test_a_thousand_ranks(
    frozen: Path, make_app: MakeApp, snap_compare: Compare, size: object
) -> None:
    fake_ranks.many(frozen, 1024)
    app = make_app("llama-ft")
    assert snap_compare(app, terminal_size=size, run_before=after("ddptop", "down", "right"))


def test_sixteen_ranks_are_a_table(frozen: Path, make_app: MakeApp, snap_compare: Compare) -> None:
    fake_ranks.many(frozen, 16)
    app = make_app("llama-ft")
    assert snap_compare(app, terminal_size=(120, 40), run_before=after("ddptop", "S"))


@pytest.mark.parametrize("key", ["2", "4"], ids=["devices", "log"])
def test_one_of_its_pages(frozen: Path, make_app: MakeApp, snap_compare: Compare, key: str) -> None:
    fake_gpus.eight_gpu_ranks(frozen)
    app = make_app("llama-ft")
    assert snap_compare(app, terminal_size=(80, 24), run_before=after("ddptop", key))
