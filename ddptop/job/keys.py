"""Every key of the interface, as data.

Bindings, key bar, help, command palette, and `ddptop keys` follow from this table. A new key is one
row here, and a method `action_NAME` of its screen if it does something new.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace


class Key(msgspec.Struct, frozen=True):
    """One action and its keys."""

    id: str
    """Name in `[keys]` of config.toml."""
    defaults: str
    """Its keys as a user types them, separated by spaces."""
    name: str
    help: str
    """What it does, in one sentence."""
    do: str = ""
    """Name of the method, without `action_`; by default the last part of the ID."""
    bar: bool = True
    """Whether the key bar shows it."""
    label: str = ""
    """What the key bar shows instead of the default keys."""
    live: bool | None = None
    """Only for a live job (True) or an ended one (False); None for both."""
    changes: bool = False
    """Whether it changes a job; a read-only viewer does not offer it."""
    own: bool = False
    """Whether it requires a job that ddptop launched."""

    @property
    def action(self) -> str:
        """Name of the method, without `action_`."""
        return self.do or self.id.rpartition(".")[2]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys in use."""
        chosen = _chosen.get(self.id)
        return tuple(self.defaults.split()) if chosen is None else chosen

    @property
    def text(self) -> str:
        """All keys in use; empty if there are none."""
        return "  ".join(self.keys)

    @property
    def short(self) -> str:
        """The keys as the key bar shows them."""
        return self.label if self.label and self.id not in _chosen else self.text

    def is_offered(self, live: bool | None, *, foreign: bool, readonly: bool) -> bool:
        """Whether it is available for a live job, an ended one, or (None) no job."""
        if self.live not in (None, live):
            return False
        return not (self.own and foreign) and not (self.changes and readonly)


def _chart(name: str, keys: str, title: str, about: str, method: str, *amount: int) -> Key:
    call = ", ".join(map(repr, (method, *amount)))
    return Key(f"chart.{name}", keys, title, f"chart: {about}", f"chart({call})", bar=False)


def _page(name: str, keys: str, title: str, about: str) -> Key:
    return Key(f"page.{name}", keys, title, about, f"page('{name}')", bar=False)


def _move(name: str, keys: str, title: str, about: str, do: str) -> Key:
    return Key(f"move.{name}", keys, title, about, do, bar=False)


# fmt: off
HELP = Key("app.help", "? F1", "Help",
           "explain the item under the cursor, and list keys and terms", "app.help", label="?")
PALETTE = Key("app.palette", "ctrl+p", "Commands", "search commands and themes",
              "app.command_palette", bar=False)
EXIT = Key("app.exit", "ctrl+q", "Exit", "quit ddptop from any screen; all jobs keep running",
           "app.quit", bar=False)
EVERYWHERE = (PALETTE, EXIT)
"""Available on every screen, even below a dialog."""

BACK = Key("view.back", "esc", "Cancel", "clear the filter or cursor, or go back", bar=False)
LEAVE = Key("app.leave", "q", "Back", "go back, or quit if ddptop was opened on this screen")
QUIT = Key("app.quit", "q", "Quit", "quit ddptop; all jobs keep running", "leave")
DETACH = Key("app.detach", "d", "Detach", "quit ddptop; all jobs keep running", "app.detach",
             bar=False)

LAUNCH = Key("job.launch", "n", "Launch", "open a form to launch a job", changes=True)
STOP = Key("job.stop", "s", "Stop", "send SIGTERM to every rank, then SIGKILL after 30 s",
           "operate('stop')", live=True, changes=True)
KILL = Key("job.kill", "K", "Kill", "send SIGKILL to all of the job's processes now",
           "operate('kill')", live=True, changes=True)
AGAIN = Key("job.again", "R", "Relaunch",
            "relaunch an ended job, unchanged or with edited arguments",
            live=False, changes=True, own=True)
FINDINGS = Key("job.findings", "f", "Findings", "list problems, their evidence, and remedies")
STACKS = Key("job.stacks", "t", "Stacks", "show every rank's stack")
PROFILE = Key("job.profile", "P", "Profile",
              "profile a few steps of the slowest and the median rank, or of this rank",
              bar=False, live=True, own=True)
EVIDENCE = Key("job.evidence", "i", "Evidence",
               "show evidence saved at a failure or hang: cause, stacks, logs, and devices",
               bar=False, own=True)
QUEUE = Key("view.queue", "Q", "Queue", "show which jobs wait, for what, and until when", bar=False)
QUEUE_AGAIN = Key("queue.again", "U", "Queue again",
                  "queue an ended job again, until its GPUs are free", "operate('queue')",
                  bar=False, live=False, changes=True, own=True)
FIRST = Key("queue.first", "<", "First in queue", "put the job before all of yours that wait",
            "operate('first')", bar=False, live=True, changes=True, own=True)
LAST = Key("queue.last", ">", "Last in queue", "put the job after all of yours that wait",
           "operate('last')", bar=False, live=True, changes=True, own=True)
UNSEEN = Key("view.unseen", "u", "Unreadable",
             "list processes that cannot be inspected, and why", bar=False)

LOGS = Key("view.logs", "l", "Logs", "show the ranks' output")
STORY = Key("view.story", "e", "Story", "show each attempt and why it failed", own=True)
DEVICES = Key("view.devices", "v", "Devices", "show details for all devices")
REPLAY = Key("view.replay", "p", "Replay", "show the job at any past moment", own=True)
COMPARE = Key("view.compare", "C", "Compare", "compare loss with other jobs", own=True)
JOBS = Key("view.jobs", "o", "Jobs", "show all jobs and devices", bar=False)
FILTER = Key("view.filter", "/", "Filter", "show only what matches")

MAIN_PAGE = _page("main", "1", "Ranks", "show ranks and loss")
DEVICES_PAGE = _page("devices", "2", "Job devices", "show only the job's devices")
EVENTS_PAGE = _page("events", "3", "Events", "show only the events")
LOG_PAGE = _page("log", "4", "Log", "show only the selected rank's log")
NEXT_RANK = Key("rank.next", "]", "Next rank", "go to the next rank", "rank(1)")
PREVIOUS_RANK = Key("rank.previous", "[", "Previous rank", "go to the previous rank", "rank(-1)")

MOVING = (
    _move("up", "↑ k", "Up", "move up", "move(-1)"),
    _move("down", "↓ j", "Down", "move down", "move(1)"),
    _move("page_up", "PgUp", "Page up", "move up one page", "page(-1)"),
    _move("page_down", "PgDn", "Page down", "move down one page", "page(1)"),
    _move("half_up", "ctrl+u", "Half page up", "move up half a page", "half(-1)"),
    _move("half_down", "ctrl+d", "Half page down", "move down half a page", "half(1)"),
    _move("first", "home g", "First", "go to the first line", "move(-1000000)"),
    _move("last", "end G", "Last", "go to the last line", "move(1000000)"),
    _move("choose", "enter", "Open", "open the item under the cursor", "choose"),
)
"""Actions of widgets that have a cursor or scroll."""
ACROSS = (
    _move("left", "←", "Left", "move left, or scroll long lines", "across(-1)"),
    _move("right", "→", "Right", "move right, or scroll long lines", "across(1)"),
)
"""Actions of widgets that also move sideways."""

CHART_MODE = replace(_chart("mode", "a", "Chart", "show the median, all ranks, or one rank",
                            "next_mode"), bar=True)
CHART_FIGURE = _chart("figure", "M", "Next chart",
                      "show the loss, the throughput, or the next metric", "next_figure")
CHART_LOG = _chart("log", "y", "Log scale", "use a linear or logarithmic scale", "next_scale")
CHART_AXIS = _chart("axis", "b", "Axis", "plot against time or step", "next_axis")
CHART_SMOOTH = _chart("smooth", "w", "Smooth", "set smoothing to 0.6, 0.9, 0.97, or off",
                      "next_smoothing")
CHART_VIEW = (
    _chart("in", "+ =", "Zoom in", "zoom in at the cursor or the right edge", "zoom", 1),
    _chart("out", "-", "Zoom out", "zoom out", "zoom", -1),
    _chart("whole", "0", "Whole run", "show the whole run", "show_whole"),
    _chart("left", "←", "Cursor left", "move the cursor left to read values; esc hides it",
           "move_cursor", -1),
    _chart("right", "→", "Cursor right", "move the cursor right to read values",
           "move_cursor", 1),
    _chart("pan_left", "shift+←", "Pan left", "pan left, or move the cursor left ten cells",
           "pan", -1),
    _chart("pan_right", "shift+→", "Pan right", "pan right, or move the cursor right ten cells",
           "pan", 1),
    _chart("first", "home", "Cursor to start", "move the cursor to the left edge",
           "cursor_to_end", -1),
    _chart("last", "end", "Cursor to end", "move the cursor to the right edge",
           "cursor_to_end", 1),
)
CHART_LOOK = (CHART_FIGURE, CHART_LOG, CHART_AXIS, CHART_SMOOTH)
CHART = (CHART_MODE, *CHART_LOOK, *CHART_VIEW)
"""Actions of the charts, with their methods of `ChartWidget`."""

SCREENS: dict[str, tuple[Key, ...]] = {
    "all jobs": (
        Key("job.open", "enter", "Open", "open the job under the cursor"),
        LAUNCH, STOP, AGAIN, FILTER, LOGS, STORY, DEVICES, FINDINGS, REPLAY, COMPARE,
        Key("jobs.mark", "space", "Mark", "mark the job for comparison", own=True),
        Key("jobs.sort", "S", "Sort", "sort by attention, name, or start time"),
        KILL,
        Key("job.remove", "x", "Remove", "delete an ended job, its logs, and its history",
            "operate('remove')", live=False, changes=True, own=True),
        QUEUE, QUEUE_AGAIN, FIRST, LAST, UNSEEN, HELP, BACK, QUIT, DETACH,
    ),
    "a job": (
        BACK, LEAVE, AGAIN,
        Key("rank.open", "enter", "Rank", "open the selected rank", "open_rank"),
        # comparing is before the devices, which the page tabs also name on a small terminal
        LOGS, STORY, FINDINGS, STACKS, COMPARE, DEVICES, STOP,
        Key("job.restart", "r", "Restart", "restart all ranks together", "operate('restart')",
            live=True, changes=True, own=True),
        REPLAY, replace(DETACH, bar=True), PROFILE, EVIDENCE, KILL,
        Key("job.save", "c", "Save", "ask the script to save a checkpoint now", "operate('save')",
            live=True, changes=True, own=True),
        Key("ranks.shape", "T", "Cards/table/map", "show ranks as cards, a table, or a map"),
        Key("ranks.figure", "m", "Metric", "choose the metric on the rank map", bar=False),
        Key("ranks.sort", "S", "Sort",
            "sort the rank table by rank or by deviation from the median", bar=False),
        replace(FILTER, bar=False),
        MAIN_PAGE, DEVICES_PAGE, EVENTS_PAGE, LOG_PAGE, *CHART,
        replace(NEXT_RANK, bar=False), replace(PREVIOUS_RANK, bar=False), LAUNCH, JOBS, HELP,
    ),
    "a rank": (
        BACK, LEAVE, NEXT_RANK, PREVIOUS_RANK, LOGS, DEVICES, STACKS, FINDINGS, STORY, DETACH,
        PROFILE,
        _page("main", "1", "All", "show all panels, or only the loss"),
        _page("split", "2", "Step", "show where step time is spent"),
        _page("load", "3", "Load", "show memory, CPU, and device metrics over time"),
        LOG_PAGE, *CHART, JOBS, HELP,
    ),
    "devices": (
        BACK,
        Key("device.open", "enter", "Open",
            "explain a device's metrics, or open a process's job"),
        replace(CHART_MODE, name="Metric", help="chart: show the next metric"),
        *CHART_LOOK, *CHART_VIEW, JOBS, LEAVE, DETACH, HELP,
    ),
    "logs": (
        BACK, LEAVE,
        Key("log.search", "/", "Search",
            "search for text or a regex (ignores case if all lowercase)"),
        Key("log.next", "n", "Next", "go to the next match", "find(1)", bar=False),
        Key("log.previous", "N", "Previous", "go to the previous match", "find(-1)", bar=False),
        Key("log.level", "L", "Level", "show all lines, warnings and errors, or errors only"),
        Key("log.merge", "m", "All ranks", "merge all ranks, or show one"),
        replace(PREVIOUS_RANK, bar=False),
        replace(NEXT_RANK, name="Rank", help="go to the next rank; digits select a rank",
                label="[ ]"),
        Key("log.older", "<", "Attempt", "go to the previous attempt", "attempt(-1)",
            label="< >"),
        Key("log.newer", ">", "Newer attempt", "go to the next attempt", "attempt(1)", bar=False),
        Key("log.follow", "F", "Follow", "follow new lines, or stop following"),
        Key("log.wrap", "W", "Wrap", "wrap long lines, or scroll them with ← and →"),
        Key("log.alike", "c", "Collapse",
            "collapse identical lines only, or also lines that differ only in rank and time"),
        DETACH, HELP,
    ),
    "a job's story": (
        BACK,
        Key("story.open", "enter", "Open",
            "open an attempt's evidence, or an event's details"),
        LOGS, replace(EVIDENCE, bar=True), REPLAY,
        FILTER, AGAIN, FINDINGS, LEAVE, DETACH, HELP,
    ),
    "a comparison": (
        BACK,
        Key("compare.open", "enter", "Open", "open the job under the cursor"),
        Key("compare.keep", "space", "Keep",
            "keep this job on the chart and pick another (up to eight jobs)"),
        FILTER, CHART_FIGURE,
        replace(CHART_LOG, name="Log", bar=True), replace(CHART_AXIS, name="Step/time", bar=True),
        replace(CHART_SMOOTH, bar=True),
        *CHART_VIEW, LEAVE, DETACH, HELP,
    ),
    "replay": (
        BACK,
        Key("replay.play", "space", "Play/pause", "play or pause"),
        Key("replay.forward", "→", "Forward 1 s",
            "go forward one second, or to the next sample", "step(1)"),
        Key("replay.next_event", "]", "Next event",
            "go to the next attempt, failure, hang, alert, or checkpoint, or to the end",
            "event(1)"),
        Key("replay.previous_event", "[", "Previous event", "go to the previous event",
            "event(-1)", bar=False),
        Key("replay.faster", "+ =", "Faster", "speed up: 1x, 10x, 60x, 600x", "speed(1)"),
        Key("replay.slower", "-", "Slower", "slow down: 600x, 60x, 10x, 1x", "speed(-1)",
            bar=False),
        Key("replay.back", "←", "Back 1 s", "go back one second, or to the previous sample",
            "step(-1)", bar=False),
        Key("replay.minute_back", "shift+←", "Back 1 min",
            "go back one minute, or ten samples if that is longer", "leap(-1)", bar=False),
        Key("replay.minute_on", "shift+→", "Forward 1 min",
            "go forward one minute, or ten samples if that is longer", "leap(1)", bar=False),
        Key("replay.first", "home", "Start", "go to the start", "edge(-1)", bar=False),
        Key("replay.last", "end", "End", "go to the end", "edge(1)", bar=False),
        Key("replay.rank_up", "↑ k", "Previous rank", "go to the previous rank", "rank(-1)",
            bar=False),
        Key("replay.rank_down", "↓ j", "Next rank", "go to the next rank", "rank(1)", bar=False),
        MAIN_PAGE, DEVICES_PAGE, EVENTS_PAGE, LOG_PAGE, replace(STORY, bar=False),
        replace(CHART_MODE, bar=False), *CHART_LOOK, LEAVE, DETACH, HELP,
    ),
}
"""The actions of each screen, by its title in the help; the key bar shows them in this order."""
# fmt: on

ON_EVERY_SCREEN = (*MOVING, *ACROSS, *EVERYWHERE)
ANYWHERE = "every screen"
TABLES = {**SCREENS, ANYWHERE: ON_EVERY_SCREEN}

BY_ID: dict[str, Key] = {
    action.id: action for table in reversed(TABLES.values()) for action in table
}
"""Every action; one that several screens have is the first screen's."""

_chosen: Mapping[str, tuple[str, ...]] = {}


def use(chosen: Mapping[str, tuple[str, ...]]) -> None:
    """Use the user's keys from now on; actions without an entry keep their defaults."""
    global _chosen
    _chosen = chosen


def key(action: str) -> str:
    """The key that texts name for an action: its shortest, or a path in the palette."""
    found = BY_ID[action]
    if found.keys:
        return min(found.keys, key=lambda text: (len(text), not text.isalnum()))
    return f"{PALETTE.text} {found.name}".strip()


def with_keys(text: str) -> str:
    """Replace placeholders such as `{job.stop}` with the keys for those actions."""
    return re.sub(r"\{(\w+\.\w+)\}", lambda found: key(found[1]), text)
