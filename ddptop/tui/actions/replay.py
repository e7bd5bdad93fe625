"""What can be done on the screen of a replay."""

from __future__ import annotations

from msgspec.structs import replace

from ddptop.tui.actions.chart import CHART_ACTIONS
from ddptop.tui.actions.common import (
    BACK,
    DETACH,
    HELP,
    JOB_DEVICES_PAGE,
    LEAVE,
    MAIN_PAGE,
    STORY_PAGE,
    Action,
)

_CHART_KEYS = ("chart.mode", "chart.figure", "chart.log", "chart.axis", "chart.smooth")
"""The others move in time here."""

REPLAY: tuple[Action, ...] = (
    BACK,
    Action("replay.play", "play", "space", "Play/pause", "play or pause"),
    Action(
        "replay.forward",
        "step(1)",
        "right",
        "Forward 1 s",
        "go forward one second, or to the next sample",
    ),
    Action(
        "replay.next_event",
        "event(1)",
        "right_square_bracket",
        "Next event",
        "go to the next attempt, failure, hang, alert, or checkpoint, or to the end",
    ),
    Action(
        "replay.previous_event",
        "event(-1)",
        "left_square_bracket",
        "Previous event",
        "go to the previous event",
        show=False,
    ),
    Action(
        "replay.next_trouble",
        "trouble(1)",
        "right_curly_bracket",
        "Next failure",
        "go to the next failure or hang",
    ),
    Action(
        "replay.previous_trouble",
        "trouble(-1)",
        "left_curly_bracket",
        "Previous failure",
        "go to the previous failure or hang",
        show=False,
    ),
    Action(
        "replay.faster", "speed(1)", "plus,equals_sign", "Faster", "speed up: 1x, 10x, 60x, 600x"
    ),
    Action(
        "replay.slower", "speed(-1)", "minus", "Slower", "slow down: 600x, 60x, 10x, 1x", show=False
    ),
    Action(
        "replay.back",
        "step(-1)",
        "left",
        "Back 1 s",
        "go back one second, or to the previous sample",
        show=False,
    ),
    Action(
        "replay.minute_back",
        "leap(-1)",
        "shift+left",
        "Back 1 min",
        "go back one minute, or ten samples if that is longer",
        show=False,
    ),
    Action(
        "replay.minute_on",
        "leap(1)",
        "shift+right",
        "Forward 1 min",
        "go forward one minute, or ten samples if that is longer",
        show=False,
    ),
    Action("replay.first", "edge(-1)", "home", "Start", "go to the start", show=False),
    Action("replay.last", "edge(1)", "end", "End", "go to the end", show=False),
    Action(
        "replay.rank_up", "rank(-1)", "up,k", "Previous rank", "go to the previous rank", show=False
    ),
    Action("replay.rank_down", "rank(1)", "down,j", "Next rank", "go to the next rank", show=False),
    MAIN_PAGE,
    JOB_DEVICES_PAGE,
    Action(
        "page.events",
        "page('events')",
        "3",
        "Events",
        "show only events up to this time",
        show=False,
    ),
    Action(
        "page.log",
        "page('log')",
        "4",
        "Log",
        "show only the selected rank's log up to this time",
        show=False,
    ),
    replace(STORY_PAGE, show=False),
    *(replace(one, show=False) for one in CHART_ACTIONS if one.id in _CHART_KEYS),
    LEAVE,
    DETACH,
    HELP,
)
"""Of the screen of a replay. Nothing in it does anything to a job."""
