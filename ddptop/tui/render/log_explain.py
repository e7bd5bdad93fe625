"""What can be said of one line of a log."""

from __future__ import annotations

from ddptop.tui.render import units
from ddptop.tui.render.log_row import LogRow
from ddptop_runner.model import LAUNCHER

_LEVELS = {
    "": "no level: its words name neither a warning nor an error",
    "warn": "a warning, by its words",
    "error": "an error, by its words",
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
        return [("this line", "stands for lines that are not there; nobody printed it")]
    if row.label == "launcher" or (whose == LAUNCHER and not row.label):
        who = "the launcher, or a rank through it"
    elif row.label:
        ranks = row.label.rstrip("~")
        who = f"ranks {ranks}" if ranks != row.label or not ranks.isdigit() else f"rank {ranks}"
    else:
        who = "one of the job's processes" if whose is None else f"rank {whose}"
    place = "" if attempt is None else f", attempt {attempt}"
    if bounds is not None:
        size = units.size(bounds[1] - bounds[0])
        place += f", byte {row.at:,} of {size}"
    level = _LEVELS[row.level]
    if row.inside:
        level = f"part of {level}: it goes on with what began above"
    texts = [("this line", f"printed by {who}{place}"), ("how grave", level)]
    if row.label.endswith("~"):
        texts.append(("~", "ranks printed this with other numbers of ranks or times; c shows each"))
    elif "-" in row.label or "," in row.label:
        texts.append((row.label, "these ranks printed this line identically; c shows each alone"))
    return texts
