"""What can be done on the screen of a replay."""

from __future__ import annotations

from msgspec.structs import replace

from ddptop.tui.actions.chart import CHART_ACTIONS
from ddptop.tui.actions.common import BACK, DETACH, HELP, LEAVE, STORY_PAGE, Action

_CHART_KEYS = ("chart.mode", "chart.log", "chart.axis", "chart.smooth")
"""The others move in time here."""

REPLAY: tuple[Action, ...] = (
    BACK,
    Action("replay.play", "play", "space", "Play/pause", "go on by itself, or stand still"),
    Action(
        "replay.forward",
        "step(1)",
        "right",
        "Second on",
        "on by a second, or by as much as is known of that time",
    ),
    Action(
        "replay.next_event",
        "event(1)",
        "right_square_bracket",
        "Next event",
        "to the next mark: an attempt, a failure, a hang, an alert, a checkpoint, the end",
    ),
    Action(
        "replay.previous_event",
        "event(-1)",
        "left_square_bracket",
        "Previous event",
        "to the mark before",
        show=False,
    ),
    Action(
        "replay.next_trouble",
        "trouble(1)",
        "right_curly_bracket",
        "Next failure",
        "to the next failure or hang",
    ),
    Action(
        "replay.previous_trouble",
        "trouble(-1)",
        "left_curly_bracket",
        "Previous failure",
        "to the failure or hang before",
        show=False,
    ),
    Action("replay.faster", "speed(1)", "plus,equals_sign", "Faster", "1, 10, 60, 600 times"),
    Action("replay.slower", "speed(-1)", "minus", "Slower", "600, 60, 10, 1 times", show=False),
    Action(
        "replay.back",
        "step(-1)",
        "left",
        "Second back",
        "back by a second, or by as much as is known of that time",
        show=False,
    ),
    Action(
        "replay.minute_back",
        "leap(-1)",
        "shift+left",
        "Minute back",
        "back by a minute, or by ten steps where those are longer",
        show=False,
    ),
    Action(
        "replay.minute_on",
        "leap(1)",
        "shift+right",
        "Minute on",
        "on by a minute, or by ten steps where those are longer",
        show=False,
    ),
    Action("replay.first", "edge(-1)", "home", "Start", "to the first moment", show=False),
    Action("replay.last", "edge(1)", "end", "End", "to the last moment", show=False),
    Action("replay.rank_up", "rank(-1)", "up,k", "Rank before", "the rank before", show=False),
    Action("replay.rank_down", "rank(1)", "down,j", "Next rank", "the next rank", show=False),
    Action("page.main", "page('main')", "1", "Ranks", "ranks and loss", show=False),
    Action("page.devices", "page('devices')", "2", "Its devices", "its devices alone", show=False),
    Action("page.events", "page('events')", "3", "Events", "what had happened, alone", show=False),
    Action("page.log", "page('log')", "4", "Log", "the chosen rank's log of then", show=False),
    replace(STORY_PAGE, show=False),
    *(replace(one, show=False) for one in CHART_ACTIONS if one.id in _CHART_KEYS),
    LEAVE,
    DETACH,
    HELP,
)
"""Of the screen of a replay. Nothing in it does anything to a job."""
