"""Explain one line of a log for the help."""

from __future__ import annotations

from ddptop.logs.row import LogRow
from ddptop.view.keys import key
from ddptop_runner.base import units
from ddptop_runner.base.paths import LAUNCHER

_LEVELS = {
    "": "none: the text does not look like a warning or an error",
    "warn": "a warning, judging by its text",
    "error": "an error, judging by its text",
}


def about_line(
    row: LogRow, whose: int | None, attempt: int | None, bounds: tuple[int, int] | None
) -> list[tuple[str, str]]:
    """Headings and texts.

    Args:
        row: the line.
        whose: the rank whose log is shown, `model.LAUNCHER`, or None for all.
        attempt: which; None where attempts are not known.
        bounds: the log's first byte and the one behind its last; None of lines in memory.
    """
    if row.is_note:
        return [("this line", "a placeholder for missing lines; not part of the output")]
    if row.label == "launcher" or (whose == LAUNCHER and not row.label):
        who = "the launcher, or a rank whose output it forwards"
    elif row.label:
        ranks = row.label.rstrip("~")
        who = f"ranks {ranks}" if ranks != row.label or not ranks.isdigit() else f"rank {ranks}"
    else:
        who = "one of the job's processes" if whose is None else f"rank {whose}"
    place = "" if attempt is None else f", attempt {attempt}"
    if bounds is not None:
        size = units.size(bounds[1] - bounds[0])
        place += f", at byte {row.at:,} of {size}"
    level = _LEVELS[row.level]
    if row.inside:
        level = f"{level}; continues a message that starts above"
    texts = [("this line", f"printed by {who}{place}"), ("level", level)]
    if row.label.endswith("~"):
        texts.append(
            (
                "~",
                "these ranks printed similar lines that differ in rank numbers or "
                f"times; press {key('log.alike')} to show each separately",
            )
        )
    elif "-" in row.label or "," in row.label:
        texts.append(
            (
                row.label,
                f"these ranks printed identical lines; press {key('log.alike')} to show each "
                "separately",
            )
        )
    return texts
