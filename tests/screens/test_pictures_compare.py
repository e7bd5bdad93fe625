"""Pictures of the compare screen, at three sizes.

After an intended change: `pytest tests/screens/test_pictures_compare.py --snapshot-update`, then
look at each changed picture.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from ddptop.tui import messages
from ddptop.tui.themes import DARK
from tests.support import fake_home, fake_story
from tests.support.pictures import Picture, after, by_size, name_of


@by_size
def test_a_job_and_its_companion(frozen: Path, picture: Picture, size: object) -> None:
    fake_story.learner(frozen, "gpt-lr3e-4", "3e-4")
    fake_story.learner(frozen, "gpt-lr1e-3", "1e-3", falls=60, ago_s=7000, restart_at=240)
    fake_story.learner(frozen, "vit-base", "5e-4", ago_s=5000, target="fit.py", bad_from=300)
    picture(size, after(DARK.name), opening=messages.ScreenWanted("compare", ("gpt-lr3e-4",)))


@pytest.mark.parametrize("size", [(120, 40), (200, 60)], ids=name_of)
def test_a_sweep_with_a_failed_job(frozen: Path, picture: Picture, size: object) -> None:
    jobs = [f"gpt-lr{lr}-seed{seed}" for lr in ("3e-4", "1e-3") for seed in (1, 2, 3)]
    for place, job in enumerate(jobs):
        steps = 200 if place == 4 else 600
        folder = fake_story.learner(
            frozen, job, job[6:10], steps=steps, falls=90 + 25 * place, scalars_from=place / 10,
            ago_s=7200 - place, group="gpt", array={"lr": job[6:10], "seed": job[-1]},
        )  # fmt: skip
        if steps == 200:
            fake_home.change(folder, state="failed")
    picture(size, after(DARK.name), opening=messages.ScreenWanted("compare", (*jobs,)))
