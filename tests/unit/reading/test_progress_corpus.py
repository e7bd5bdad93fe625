"""Outputs in many styles, read like logs: a bar if the text allows one, and never a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.progress_corpus import CASES, PAUSES, RESUMED_CASES, Case, Point, replay
from tests.support.resumed_corpus import Shown, resumed

EPOCH_OFF = 0.12
"""A line every 20 of 188 steps, and one at the end of the epoch."""
ETA_OFF, ETA_OFF_S = 0.25, 12.0
"""A pause of 10 s after each epoch is unknown before the first, as is one after the last."""
STEP_TIME_OFF = 0.08


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_shown_is_true(case: Case, tmp_path: Path) -> None:
    points = replay(case, tmp_path)
    assert len(points) >= 4
    for point in points:
        _check_share(case, point)
        if point.shown_step_s is not None:
            assert point.shown_step_s == pytest.approx(point.step_s, rel=STEP_TIME_OFF)
    if case.answer in ("run", "estimate"):
        assert points[-1].shown is not None
        assert points[-1].shown.eta_s is not None


def _check_share(case: Case, point: Point) -> None:
    shown = point.shown
    fraction = None if shown is None else shown.fraction
    early = point.share < case.known_from
    if case.answer in ("run", "estimate") and not early:
        assert shown is not None
        assert fraction == pytest.approx(point.share, abs=case.off)
        assert shown.estimated == (case.answer == "estimate")
        if shown.eta_s is not None and case.off < 0.1:
            assert abs(shown.eta_s - point.eta_s) <= max(ETA_OFF_S, ETA_OFF * point.eta_s)
    elif fraction is not None:  # none at all, or one that is marked as an estimate
        assert early
        assert shown is not None
        assert shown.estimated or fraction == pytest.approx(point.share, abs=case.off)
    if case.answer == "epoch" and not early:
        assert shown is not None
        assert shown.epoch_fraction is not None
        behind = (point.epoch_share - shown.epoch_fraction) % 1.0  # its last line may be older
        assert min(behind, 1.0 - behind) <= max(EPOCH_OFF, case.off)


BEGAN = 300
RESUMED_ETA_OFF, ETA_OFF_WITH_PAUSES = 0.2, 0.3
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
        off = ETA_OFF_WITH_PAUSES if case.run == PAUSES else RESUMED_ETA_OFF
        assert done.eta_s == pytest.approx(shown.true_eta_s, rel=off)
