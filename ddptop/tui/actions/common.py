"""What an action is, and those that several screens have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace
from textual.binding import Binding, BindingType
from textual.keys import format_key


class Action(msgspec.Struct, frozen=True):
    """One user action."""

    id: str
    """Stable name, for keymaps."""
    action: str
    """Name of the method, without `action_`."""
    keys: str
    name: str
    help: str
    """One sentence: what happens."""
    show: bool = True
    """Whether the footer names it."""
    key_display: str | None = None
    live: bool | None = None
    """Only for a live job (True) or an ended one (False); None for both."""
    changes: bool = False
    """Whether it does something to a job: a read-only viewer has none of these."""
    own: bool = False
    """Whether it is only for a job that ddptop started."""

    def is_offered(self, live: bool | None, *, foreign: bool, readonly: bool) -> bool:
        """Whether it can be done now, to a live, ended or no job."""
        if self.live not in (None, live):
            return False
        return not (self.own and foreign) and not (self.changes and readonly)

    def binding(self) -> Binding:
        """As Textual wants it."""
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
    "relaunch an ended job as a new attempt",
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
"""On every screen, whatever lies on top."""

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
"""Of whatever has a cursor or scrolls."""


def moving(actions: Mapping[str, str]) -> list[BindingType]:
    """The bindings of MOVING for a widget whose methods have other names.

    Args:
        actions: the widget's action by id, such as `{"move.up": "scroll_up"}`; others are left out.
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
    """Textual's name of a key as it is typed: `question_mark` is `?`."""
    modifiers, plus, last = key.rpartition("+")
    is_function_key = last[:1] == "f" and last[1:].isdigit()
    name = _KEY_NAMES.get(last) or (last.upper() if is_function_key else format_key(last))
    return f"{modifiers}{plus}{name}"


def keys_text(action: Action) -> str:
    """The keys of an action as they are typed."""
    return "  ".join(key_text(key) for key in action.keys.split(","))
