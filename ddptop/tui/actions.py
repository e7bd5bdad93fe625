"""Tables of all actions, one per screen, with their keys, names, and help texts.

Bindings, the help screen, the key map, and the command palette are derived from these tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace
from textual.binding import Binding, BindingType
from textual.keys import format_key


class Action(msgspec.Struct, frozen=True):
    """One user action."""

    id: str
    """Stable name, used in key maps."""
    action: str
    """Name of the method, without `action_`."""
    keys: str
    name: str
    help: str
    """What it does, in one sentence."""
    show: bool = True
    """Whether the key bar shows it."""
    key_display: str | None = None
    live: bool | None = None
    """Only for a live job (True) or an ended one (False); None for both."""
    changes: bool = False
    """Whether it changes a job; a read-only viewer does not offer it."""
    own: bool = False
    """Whether it requires a job that ddptop launched."""

    def is_offered(self, live: bool | None, *, foreign: bool, readonly: bool) -> bool:
        """Whether it is available for a live job, an ended one, or (None) no job."""
        if self.live not in (None, live):
            return False
        return not (self.own and foreign) and not (self.changes and readonly)

    def binding(self) -> Binding:
        """The Textual binding."""
        return Binding(
            self.keys,
            self.action,
            self.name,
            id=self.id,
            tooltip=self.help,
            show=self.show,
            key_display=self.key_display,
        )


HELP = Action(
    "app.help",
    "app.help",
    "question_mark,f1",
    "Help",
    "explain the item under the cursor, and list keys and terms",
    key_display="?",
)
LAUNCH = Action("job.launch", "launch", "n", "Launch", "open a form to launch a job", changes=True)
STOP = Action(
    "job.stop",
    "stop",
    "s",
    "Stop",
    "send SIGTERM to every rank, then SIGKILL after 30 s",
    live=True,
    changes=True,
)
KILL = Action(
    "job.kill",
    "kill",
    "K",
    "Kill",
    "send SIGKILL to all of the job's processes now",
    live=True,
    changes=True,
)
AGAIN = Action(
    "job.again",
    "again",
    "R",
    "Relaunch",
    "relaunch an ended job, unchanged or with edited arguments",
    live=False,
    changes=True,
    own=True,
)
FINDINGS = Action(
    "job.findings", "findings", "f", "Findings", "list problems, their evidence, and remedies"
)
BACK = Action(
    "view.back", "back", "escape", "Cancel", "clear the filter or cursor, or go back", show=False
)
LEAVE = Action(
    "app.leave", "leave", "q", "Back", "go back, or quit if ddptop was opened on this screen"
)
DETACH = Action(
    "app.detach", "app.detach", "d", "Detach", "quit ddptop; all jobs keep running", show=False
)
MAIN_PAGE = Action("page.main", "page('main')", "1", "Ranks", "show ranks and loss", show=False)
JOB_DEVICES_PAGE = Action(
    "page.devices",
    "page('devices')",
    "2",
    "Job devices",
    "show only the job's devices",
    show=False,
)
NEXT_RANK = Action(
    "rank.next", "rank(1)", "right_square_bracket", "Next rank", "go to the next rank", show=False
)
PREVIOUS_RANK = Action(
    "rank.previous",
    "rank(-1)",
    "left_square_bracket",
    "Previous rank",
    "go to the previous rank",
    show=False,
)
LOGS_PAGE = Action("view.logs", "logs", "l", "Logs", "show the ranks' output")
STORY_PAGE = Action("view.story", "story", "e", "Story", "show each attempt and why it failed")
DEVICES_PAGE = Action("view.devices", "devices", "v", "Devices", "show details for all devices")
REPLAY_PAGE = Action("view.replay", "replay", "p", "Replay", "show the job at any past moment")
COMPARE_PAGE = Action("view.compare", "compare", "C", "Compare", "compare loss with other jobs")

PALETTE = Action(
    "app.palette",
    "app.command_palette",
    "ctrl+p",
    "Commands",
    "search commands and themes",
    show=False,
)
EXIT = Action(
    "app.exit",
    "app.quit",
    "ctrl+q",
    "Exit",
    "quit ddptop from any screen; all jobs keep running",
    show=False,
)

EVERYWHERE: tuple[Action, ...] = (PALETTE, EXIT)
"""Available on every screen, even below a dialog."""

MOVING: tuple[Action, ...] = (
    Action("move.up", "move(-1)", "up,k", "Up", "move up", show=False),
    Action("move.down", "move(1)", "down,j", "Down", "move down", show=False),
    Action("move.page_up", "page(-1)", "pageup", "Page up", "move up one page", show=False),
    Action("move.page_down", "page(1)", "pagedown", "Page down", "move down one page", show=False),
    Action("move.half_up", "half(-1)", "ctrl+u", "Half page up", "move up half a page", show=False),
    Action(
        "move.half_down", "half(1)", "ctrl+d", "Half page down", "move down half a page", show=False
    ),
    Action("move.first", "move(-1000000)", "home,g", "First", "go to the first line", show=False),
    Action("move.last", "move(1000000)", "end,G", "Last", "go to the last line", show=False),
    Action("move.choose", "choose", "enter", "Open", "open the item under the cursor", show=False),
)
"""Actions of widgets that have a cursor or scroll."""

# --- charts ---------------------------------------------------------------------------------------

CHART_ACTIONS: tuple[Action, ...] = (
    Action(
        "chart.mode",
        "chart('mode')",
        "a",
        "Chart",
        "chart: show the median, all ranks, or one rank",
    ),
    Action(
        "chart.figure",
        "chart('figure')",
        "M",
        "Next chart",
        "chart: show the loss, the throughput, or the next metric",
        show=False,
    ),
    Action(
        "chart.log",
        "chart('log')",
        "y",
        "Log scale",
        "chart: use a linear or logarithmic scale",
        show=False,
    ),
    Action(
        "chart.axis", "chart('axis')", "b", "Axis", "chart: plot against time or step", show=False
    ),
    Action(
        "chart.smooth",
        "chart('smooth')",
        "w",
        "Smooth",
        "chart: set smoothing to 0.6, 0.9, 0.97, or off",
        show=False,
    ),
    Action(
        "chart.in",
        "chart('zoom', 1)",
        "plus,equals_sign",
        "Zoom in",
        "chart: zoom in at the cursor or the right edge",
        show=False,
    ),
    Action("chart.out", "chart('zoom', -1)", "minus", "Zoom out", "chart: zoom out", show=False),
    Action(
        "chart.whole", "chart('whole')", "0", "Whole run", "chart: show the whole run", show=False
    ),
    Action(
        "chart.left",
        "chart('cursor', -1)",
        "left",
        "Cursor left",
        "chart: move the cursor left to read values; esc hides it",
        show=False,
    ),
    Action(
        "chart.right",
        "chart('cursor', 1)",
        "right",
        "Cursor right",
        "chart: move the cursor right to read values",
        show=False,
    ),
    Action(
        "chart.pan_left",
        "chart('pan', -1)",
        "shift+left",
        "Pan left",
        "chart: pan left, or move the cursor left ten cells",
        show=False,
    ),
    Action(
        "chart.pan_right",
        "chart('pan', 1)",
        "shift+right",
        "Pan right",
        "chart: pan right, or move the cursor right ten cells",
        show=False,
    ),
    Action(
        "chart.first",
        "chart('end', -1)",
        "home",
        "Cursor to start",
        "chart: move the cursor to the left edge",
        show=False,
    ),
    Action(
        "chart.last",
        "chart('end', 1)",
        "end",
        "Cursor to end",
        "chart: move the cursor to the right edge",
        show=False,
    ),
)
"""Actions of the charts; screens.base maps each name to a method."""

# --- a table for each screen ----------------------------------------------------------------------

UNSEEN = Action(
    "view.unseen",
    "unseen",
    "u",
    "Unreadable",
    "list processes that cannot be inspected, and why",
    show=False,
)

OVERVIEW: tuple[Action, ...] = (
    Action("job.open", "open", "enter", "Open", "open the job under the cursor"),
    LAUNCH,
    STOP,
    AGAIN,
    Action("view.filter", "filter", "slash", "Filter", "show only matching jobs"),
    LOGS_PAGE,
    replace(STORY_PAGE, own=True),
    DEVICES_PAGE,
    FINDINGS,
    replace(REPLAY_PAGE, own=True),
    replace(
        COMPARE_PAGE,
        help="compare the marked jobs, or this one with another",
        own=True,
    ),
    Action("jobs.mark", "mark", "space", "Mark", "mark the job for comparison", own=True),
    Action("jobs.sort", "sort", "S", "Sort", "sort by attention, name, start time, or GPUs"),
    KILL,
    Action(
        "job.remove",
        "remove",
        "x",
        "Remove",
        "delete an ended job, its logs, and its history",
        live=False,
        changes=True,
        own=True,
    ),
    UNSEEN,
    HELP,
    Action("view.back", "back", "escape", "Cancel", "clear the filter", show=False),
    Action("app.quit", "leave", "q", "Quit", "quit ddptop; all jobs keep running"),
    Action(
        "app.detach", "app.detach", "d", "Detach", "quit ddptop; all jobs keep running", show=False
    ),
)
"""Actions of the job list."""

STACKS = Action("job.stacks", "stacks", "t", "Stacks", "show every rank's stack")
EVIDENCE = Action(
    "job.evidence",
    "evidence",
    "i",
    "Evidence",
    "show evidence saved at the last failure or hang: cause, stacks, logs, and devices",
    show=False,
    own=True,
)
JOBS = Action("view.jobs", "jobs", "o", "Jobs", "show all jobs and devices", show=False)

JOB: tuple[Action, ...] = (
    Action(
        "view.back",
        "back",
        "escape",
        "Cancel",
        "show all panels again, then go back to all jobs",
        show=False,
    ),
    Action(
        "app.leave",
        "leave",
        "q",
        "Back",
        "go back, or quit if ddptop was opened on this job; the job keeps running",
    ),
    AGAIN,
    Action("rank.open", "open_rank", "enter", "Rank", "open the selected rank"),
    LOGS_PAGE,
    replace(STORY_PAGE, own=True),
    FINDINGS,
    STACKS,
    replace(
        COMPARE_PAGE, own=True
    ),  # before the devices, which the page tabs also name on a small terminal
    DEVICES_PAGE,
    STOP,
    Action(
        "job.restart",
        "restart",
        "r",
        "Restart",
        "restart all ranks together",
        live=True,
        changes=True,
        own=True,
    ),
    replace(REPLAY_PAGE, own=True),
    Action("app.detach", "app.detach", "d", "Detach", "quit ddptop; the job keeps running"),
    EVIDENCE,
    KILL,
    Action(
        "job.save",
        "save",
        "c",
        "Save",
        "ask the script to save a checkpoint now",
        live=True,
        changes=True,
        own=True,
    ),
    Action(
        "ranks.shape", "shape", "T", "Cards/table/map", "show ranks as cards, a table, or a map"
    ),
    Action(
        "ranks.figure",
        "figure",
        "m",
        "Metric",
        "choose the metric on the rank map: state, step time, loss, step, memory, utilization, "
        "data wait, or power",
        show=False,
    ),
    Action(
        "ranks.sort",
        "sort",
        "S",
        "Sort",
        "sort the rank table by rank or by deviation from the median",
        show=False,
    ),
    Action("view.filter", "filter", "slash", "Filter", "show only matching ranks", show=False),
    MAIN_PAGE,
    JOB_DEVICES_PAGE,
    Action("page.events", "page('events')", "3", "Events", "show only the events", show=False),
    Action("page.log", "page('log')", "4", "Log", "show only the selected rank's log", show=False),
    *CHART_ACTIONS,
    NEXT_RANK,
    PREVIOUS_RANK,
    LAUNCH,
    JOBS,
    HELP,
)
"""Actions of the job screen."""

RANK: tuple[Action, ...] = (
    BACK,
    LEAVE,
    replace(NEXT_RANK, show=True),
    replace(PREVIOUS_RANK, show=True),
    LOGS_PAGE,
    DEVICES_PAGE,
    STACKS,
    FINDINGS,
    STORY_PAGE,
    DETACH,
    Action(
        "page.main", "page('main')", "1", "All", "show all panels, or only the loss", show=False
    ),
    Action("page.split", "page('split')", "2", "Step", "show where step time is spent", show=False),
    Action(
        "page.load",
        "page('load')",
        "3",
        "Load",
        "show memory, CPU, and device metrics over time",
        show=False,
    ),
    Action("page.log", "page('log')", "4", "Log", "show only the rank's log", show=False),
    *CHART_ACTIONS,
    JOBS,
    HELP,
)
"""Actions of the rank screen."""

DEVICES: tuple[Action, ...] = (
    BACK,
    Action(
        "device.open",
        "open",
        "enter",
        "Open",
        "explain a device's metrics, or open a process's job",
    ),
    Action("device.figure", "figure", "m", "Metric", "chart: show the next metric"),
    replace(CHART_ACTIONS[0], show=False),
    *CHART_ACTIONS[1:],
    Action("view.jobs", "back", "o", "Jobs", "show all jobs", show=False),
    LEAVE,
    DETACH,
    HELP,
)
"""Actions of the device screen."""

LOGS: tuple[Action, ...] = (
    BACK,
    LEAVE,
    Action(
        "log.search",
        "search",
        "slash",
        "Search",
        "search for text or a regex (ignores case if all lowercase)",
    ),
    Action("log.next", "find(1)", "n", "Next", "go to the next match", show=False),
    Action("log.previous", "find(-1)", "N", "Previous", "go to the previous match", show=False),
    Action(
        "log.level",
        "level",
        "L",
        "Level",
        "show all lines, warnings and errors, or errors only",
    ),
    Action("log.merge", "merge", "m", "All ranks", "merge all ranks, or show one"),
    PREVIOUS_RANK,
    replace(
        NEXT_RANK,
        name="Rank",
        help="go to the next rank; digits select a rank",
        show=True,
        key_display="[ ]",
    ),
    Action(
        "log.older",
        "attempt(-1)",
        "less_than_sign",
        "Attempt",
        "go to the previous attempt",
        key_display="< >",
    ),
    Action(
        "log.newer",
        "attempt(1)",
        "greater_than_sign",
        "Newer attempt",
        "go to the next attempt",
        show=False,
    ),
    Action("log.follow", "follow", "F", "Follow", "follow new lines, or stop following"),
    Action("log.wrap", "wrap", "W", "Wrap", "wrap long lines, or scroll them with ← and →"),
    Action(
        "log.alike",
        "alike",
        "c",
        "Collapse",
        "collapse identical lines, collapse lines that differ only in rank and time, or show all",
    ),
    DETACH,
    HELP,
)
"""Actions of the log screen."""

STORY: tuple[Action, ...] = (
    BACK,
    Action(
        "story.open",
        "open",
        "enter",
        "Open",
        "open an attempt's evidence, or an event's details",
    ),
    LOGS_PAGE,
    Action(
        "job.evidence",
        "evidence",
        "i",
        "Evidence",
        "show evidence saved when this attempt failed: cause, stacks, logs, and devices",
        own=True,
    ),
    REPLAY_PAGE,
    Action(
        "story.other",
        "other",
        "tab",
        "Events",
        "switch between attempts and events",
    ),
    Action("view.filter", "filter", "slash", "Filter", "show only matching events"),
    AGAIN,
    FINDINGS,
    LEAVE,
    DETACH,
    HELP,
)
"""Actions of the story screen."""

_SHOWN = {"chart.axis": "Step/time", "chart.log": "Log", "chart.smooth": "Smooth"}

COMPARE: tuple[Action, ...] = (
    BACK,
    Action("compare.open", "open", "enter", "Open", "open the job under the cursor"),
    Action(
        "compare.keep",
        "keep",
        "space",
        "Keep",
        "keep this job on the chart and pick another (up to four jobs)",
    ),
    Action("view.filter", "filter", "slash", "Filter", "show only matching jobs"),
    *(
        Action(
            one.id,
            one.action,
            one.keys,
            _SHOWN.get(one.id, one.name),
            one.help,
            show=one.id in _SHOWN,
            key_display=one.key_display,
        )
        for one in CHART_ACTIONS
        if one.id != "chart.mode"  # each job has only one curve
    ),
    LEAVE,
    DETACH,
    HELP,
)
"""Actions of the comparison screen."""

_CHART_KEYS = ("chart.mode", "chart.figure", "chart.log", "chart.axis", "chart.smooth")
"""Chart actions of the replay screen, where other keys move through time."""

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
"""Actions of the replay screen; none of them changes a job."""

ALL: dict[str, tuple[Action, ...]] = {
    "all jobs": OVERVIEW,
    "a job": JOB,
    "a rank": RANK,
    "devices": DEVICES,
    "logs": LOGS,
    "a job's story": STORY,
    "a comparison": COMPARE,
    "replay": REPLAY,
}
"""Actions by screen title, in the order of the help."""

PLACES: dict[str, str] = {
    "OverviewScreen": "all jobs",
    "JobScreen": "a job",
    "RankScreen": "a rank",
    "DevicesScreen": "devices",
    "LogsScreen": "logs",
    "StoryScreen": "a job's story",
    "CompareScreen": "a comparison",
    "ReplayScreen": "replay",
}
"""The screen title by class name."""


# --- derived from the tables ----------------------------------------------------------------------


def moving(actions: Mapping[str, str]) -> list[BindingType]:
    """MOVING's bindings for a widget whose methods have other names.

    Args:
        actions: the widget's action by id, such as `{"move.up": "scroll_up"}`; others are left
            out.
    """
    return [
        replace(action, action=actions[action.id]).binding()
        for action in MOVING
        if action.id in actions
    ]


def bindings(of: Sequence[Action]) -> list[BindingType]:
    """A screen's bindings."""
    return [action.binding() for action in of]


_KEY_NAMES = {
    "escape": "esc",
    "shift+left": "shift+←",
    "shift+right": "shift+→",
    "enter": "enter",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "space": "space",
}


def key_text(key: str) -> str:
    """A key as the user types it: `?` for Textual's `question_mark`."""
    modifiers, plus, last = key.rpartition("+")
    is_function_key = last[:1] == "f" and last[1:].isdigit()
    name = _KEY_NAMES.get(last) or (last.upper() if is_function_key else format_key(last))
    return f"{modifiers}{plus}{name}"


def table_of(screen: object) -> tuple[Action, ...]:
    """The actions of a screen; none for a screen without a table, such as a dialog."""
    return ALL.get(PLACES.get(type(screen).__name__, ""), ())
