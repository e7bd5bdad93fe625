"""Outputs in many styles, of runs that resume: one step everywhere, and an ETA by its own pace."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.progress_corpus import PAUSES, RESUMED_CASES, Case
from tests.support.resumed_corpus import Shown, resumed

BEGAN = 300
ETA_OFF, ETA_OFF_WITH_PAUSES = 0.2, 0.3
"""A pause of 10 s after each epoch is known from one example at most."""


@pytest.mark.parametrize("case", RESUMED_CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("source", ["first attempt", "loaded", "named"])
def test_the_step_is_that_of_the_run(case: Case, source: str, tmp_path: Path) -> None:
    began = 0 if source == "first attempt" else BEGAN
    shown = resumed(case, tmp_path, began, loaded=source == "loaded", named=source == "named")
    assert (shown.step, shown.counts) == (pytest.approx(shown.true_step, abs=1), "run")
    _check(case, shown)


@pytest.mark.parametrize("case", RESUMED_CASES, ids=lambda case: case.name)
def test_without_a_checkpoint_it_is_right_or_marked(case: Case, tmp_path: Path) -> None:
    shown = resumed(case, tmp_path, BEGAN, loaded=False, named=False)
    if shown.counts == "run":
        assert shown.step == pytest.approx(shown.true_step, abs=max(shown.every, 2))
    else:
        assert (shown.step, shown.counts) == (shown.true_step - BEGAN, "attempt")


def _check(case: Case, shown: Shown) -> None:
    done = shown.progress
    if done is None or done.fraction is None or case.known_from > shown.true_share:
        return
    assert done.fraction == pytest.approx(shown.true_share, abs=max(case.off, 0.06))
    if done.eta_s is not None and case.off < 0.1:
        off = ETA_OFF_WITH_PAUSES if case.run == PAUSES else ETA_OFF
        assert done.eta_s == pytest.approx(shown.true_eta_s, rel=off)
