"""Fills in the keys that texts mention: the defaults, unless a viewer has remapped them."""

from __future__ import annotations

import re
from collections.abc import Mapping

DEFAULTS: dict[str, str] = {
    "app.detach": "d",
    "chart.axis": "b",
    "chart.first": "home",
    "chart.in": "+",
    "chart.last": "end",
    "chart.left": "←",
    "chart.log": "y",
    "chart.mode": "a",
    "chart.out": "-",
    "chart.pan_left": "shift+←",
    "chart.pan_right": "shift+→",
    "chart.right": "→",
    "chart.smooth": "w",
    "chart.whole": "0",
    "job.again": "R",
    "job.evidence": "i",
    "job.findings": "f",
    "job.launch": "n",
    "job.open": "enter",
    "job.stacks": "t",
    "job.stop": "s",
    "jobs.mark": "space",
    "compare.keep": "space",
    "log.alike": "c",
    "log.level": "L",
    "log.merge": "m",
    "log.newer": ">",
    "log.next": "n",
    "log.older": "<",
    "log.previous": "N",
    "move.choose": "enter",
    "move.down": "j",
    "move.first": "g",
    "move.last": "G",
    "move.page_down": "PgDn",
    "move.page_up": "PgUp",
    "move.up": "k",
    "page.devices": "2",
    "page.events": "3",
    "page.load": "3",
    "page.log": "4",
    "page.main": "1",
    "page.split": "2",
    "rank.next": "]",
    "rank.open": "enter",
    "rank.previous": "[",
    "ranks.figure": "m",
    "ranks.sort": "S",
    "ranks.shape": "T",
    "story.open": "enter",
    "view.back": "esc",
    "view.compare": "C",
    "view.devices": "v",
    "view.logs": "l",
    "view.story": "e",
    "view.unseen": "u",
}
"""Default keys by action; a test compares them with the screens' key tables."""

_in_use: Mapping[str, str] = DEFAULTS


def use(keys: Mapping[str, str]) -> None:
    """Use these keys from now on; an action without an entry keeps its default."""
    global _in_use
    _in_use = {**DEFAULTS, **keys}


def key(action: str) -> str:
    """The key for an action, as a user types it."""
    return _in_use[action]


def with_keys(text: str) -> str:
    """Replace placeholders such as `{job.stop}` with the keys for those actions."""
    return re.sub(r"\{(\w+\.\w+)\}", lambda found: key(found[1]), text)
