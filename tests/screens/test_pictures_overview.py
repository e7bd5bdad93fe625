"""Pictures of the overview, at three sizes, dark and light.

After an intended change: `pytest tests/screens/test_pictures_overview.py --snapshot-update`, then
look at each changed picture.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from ddptop.tui.themes import DARK, LIGHT
from tests.support import fake_foreign, fake_gpus, fake_home
from tests.support.fake_device_history import write_gpu_history
from tests.support.pictures import Picture, after, by_look, by_size


@by_look
def test_all_jobs(eight_gpus: Path, picture: Picture, size: object, theme: str) -> None:
    fake_home.two_cpu_ranks(eight_gpus)
    write_gpu_history(fake_gpus.eight_gpu_ranks(eight_gpus), 600)
    fake_home.failed_job(eight_gpus)
    fake_home.finished_job(eight_gpus)
    picture(size, after(theme, "down", looks=4))


@by_size
@pytest.mark.parametrize("keys", [(), ("enter",)], ids=["closed", "open"])
def test_a_sweep(frozen: Path, picture: Picture, size: object, keys: tuple[str, ...]) -> None:
    fake_home.sweep(frozen)
    fake_home.finished_job(frozen)
    picture(size, after(DARK.name, *keys, looks=4))


@by_size
def test_jobs_that_ddptop_did_not_start(held_gpus: Path, picture: Picture, size: object) -> None:
    for make in (fake_home.two_cpu_ranks, fake_home.failed_job):
        make(held_gpus)
    fake_foreign.healthy()
    fake_foreign.with_findings()
    fake_foreign.unreadable()
    picture(size, after(DARK.name, looks=4))


def test_no_job(frozen: Path, picture: Picture) -> None:
    picture((80, 24), after(LIGHT.name, looks=4))


def test_a_filter_and_marks(eight_gpus: Path, picture: Picture) -> None:
    for make in (fake_home.two_cpu_ranks, fake_home.failed_job, fake_home.finished_job):
        make(eight_gpus)
    keys = ("j", "space", "slash", *"done>2 loss<9")
    picture((80, 24), after(DARK.name, *keys, looks=4))
