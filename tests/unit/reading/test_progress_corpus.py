"""Outputs in many styles, read like logs: a bar if the text allows one, and never a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.progress_corpus import CASES, Case, Point, replay

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
