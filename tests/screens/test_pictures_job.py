"""Pictures of the job screen: cards, a table, a map, a failure.

After an intended change: `pytest tests/screens/test_pictures_job.py --snapshot-update`, then look
at each changed picture.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import fake_gpus, fake_home, fake_ranks
from tests.support.pictures import (
    SIZES,
    SMALL,
    Picture,
    after,
    by_look,
    by_size,
    name_of,
)


@by_look
def test_eight_gpus_with_a_straggler(
    frozen: Path, picture: Picture, size: object, theme: str
) -> None:
    fake_gpus.eight_gpu_ranks(frozen)
    picture(size, after(theme, "]"), "llama-ft")


@pytest.mark.parametrize("size", [SIZES[0], SMALL], ids=name_of)
def test_two_cpu_ranks(frozen: Path, picture: Picture, size: object) -> None:
    fake_home.two_cpu_ranks(frozen)
    picture(size, after("ddptop"), "mlp-cpu")


@pytest.mark.parametrize("size", SIZES[:2], ids=name_of)
def test_a_failed_job(frozen: Path, picture: Picture, size: object) -> None:
    fake_home.failed_job(frozen)
    picture(size, after("ddptop"), "vit-base")


@by_size
def test_a_thousand_ranks(frozen: Path, picture: Picture, size: object) -> None:
    fake_ranks.many(frozen, 1024)
    picture(size, after("ddptop", "down", "right"), "llama-ft")


def test_sixteen_ranks_are_a_table(frozen: Path, picture: Picture) -> None:
    fake_ranks.many(frozen, 16)
    picture((120, 40), after("ddptop", "S"), "llama-ft")


@pytest.mark.parametrize("key", ["2", "4"], ids=["devices", "log"])
def test_one_of_its_pages(frozen: Path, picture: Picture, key: str) -> None:
    fake_gpus.eight_gpu_ranks(frozen)
    picture((80, 24), after("ddptop", key), "llama-ft")
