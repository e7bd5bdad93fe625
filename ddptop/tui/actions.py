"""Every action of the interface: its key, its name and what it does, in one table.

Bindings, the help screen and the command palette are made from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.binding import Binding, BindingType


@dataclass(frozen=True)
class Action:
    """One thing that a person can do."""

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


_HELP = Action("app.help", "app.help", "question_mark", "Help", "keys and words", key_display="?")
_LAUNCH = Action(
    "job.launch", "launch", "n", "Launch", "fill in a form and launch a job", changes=True
)
_STOP = Action(
    "job.stop",
    "stop",
    "s",
    "Stop",
    "SIGTERM to every rank, SIGKILL to what is left after 30 s",
    live=True,
    changes=True,
)
_KILL = Action(
    "job.kill",
    "kill",
    "K",
    "Kill",
    "SIGKILL to every process of the job, now",
    live=True,
    changes=True,
)
_AGAIN = Action(
    "job.again",
    "again",
    "R",
    "Launch again",
    "start an ended job again, as a new attempt in its folder",
    live=False,
    changes=True,
    own=True,
)
_FINDINGS = Action(
    "job.findings", "findings", "f", "Findings", "what is wrong, with evidence and what to do"
)

OVERVIEW: tuple[Action, ...] = (
    Action("job.open", "open", "enter", "Open", "show the job under the cursor"),
    _LAUNCH,
    _STOP,
    _KILL,
    _AGAIN,
    Action(
        "job.remove",
        "remove",
        "x",
        "Remove",
        "delete an ended job's logs and history",
        live=False,
        changes=True,
        own=True,
    ),
    Action("view.devices", "page('devices')", "v", "Devices", "devices alone, with all figures"),
    _FINDINGS,
    Action(
        "view.unseen",
        "unseen",
        "u",
        "Unseen",
        "processes that may not be looked into, and why",
        show=False,
    ),
    _HELP,
    Action("view.back", "back", "escape", "Back", "from the devices to all jobs", show=False),
    Action("app.quit", "leave", "q", "Quit", "leave ddptop; every job goes on"),
    Action(
        "app.detach", "app.detach", "d", "Detach", "leave ddptop; every job goes on", show=False
    ),
)
"""Of the screen with all jobs."""

JOB: tuple[Action, ...] = (
    Action("view.back", "back", "escape", "Back", "to the whole job, then to all jobs"),
    Action(
        "app.leave",
        "leave",
        "q",
        "Quit",
        "back; from the job that ddptop was opened on, leave it. The job goes on",
        show=False,
    ),
    Action("app.detach", "app.detach", "d", "Detach", "leave ddptop; the job goes on"),
    _AGAIN,
    _STOP,
    Action(
        "job.restart",
        "restart",
        "r",
        "Restart",
        "group restart: all ranks end and start again together",
        live=True,
        changes=True,
        own=True,
    ),
    _FINDINGS,
    Action("job.stacks", "stacks", "t", "Stacks", "where each rank stands in its code"),
    Action(
        "job.evidence",
        "evidence",
        "i",
        "Evidence",
        "what was kept at the last failure or hang: cause, stacks, logs, devices",
        show=False,
        own=True,
    ),
    Action(
        "view.log",
        "page('log')",
        "l",
        "Log",
        "the log of the chosen rank alone; on a command's launcher, all of it",
    ),
    Action("view.events", "page('events')", "e", "Events", "what happened, alone"),
    Action("view.devices", "page('devices')", "v", "Devices", "devices alone, with all figures"),
    Action("chart.mode", "chart_mode", "a", "Chart", "chart: median, all ranks, one rank"),
    _KILL,
    Action(
        "job.save",
        "save",
        "c",
        "Save",
        "ask the script for a checkpoint now; nothing is ended by it",
        live=True,
        changes=True,
        own=True,
    ),
    Action("chart.log", "chart_log", "y", "Log axis", "chart: logarithmic axis", show=False),
    Action("chart.in", "zoom(-1)", "plus,equals_sign", "Zoom in", "chart: less time", show=False),
    Action("chart.out", "zoom(1)", "minus", "Zoom out", "chart: more time", show=False),
    Action("rank.next", "rank(1)", "right_square_bracket", "Next rank", "next rank", show=False),
    Action(
        "rank.previous",
        "rank(-1)",
        "left_square_bracket",
        "Previous rank",
        "rank before",
        show=False,
    ),
    _LAUNCH,
    Action("view.jobs", "jobs", "o", "Jobs", "all jobs and devices", show=False),
    _HELP,
)
"""Of the screen with one job."""


def bindings(of: tuple[Action, ...]) -> list[BindingType]:
    """A screen's bindings."""
    return [action.binding() for action in of]


_KEY_NAMES = {
    "question_mark": "?",
    "plus": "+",
    "equals_sign": "=",
    "minus": "-",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "escape": "esc",
    "enter": "enter",
}


def keys_text(action: Action) -> str:
    """The keys of an action as a person types them."""
    return "  ".join(_KEY_NAMES.get(key, key) for key in action.keys.split(","))


def palette_actions(
    screen_bindings: Sequence[BindingType], *, readonly: bool = False
) -> list[Action]:
    """The actions behind a screen's bindings, for the command palette."""
    ids = {binding.id for binding in screen_bindings if isinstance(binding, Binding)}
    known = {action.id: action for action in (*OVERVIEW, *JOB)}
    return [
        action
        for action_id, action in known.items()
        if action_id in ids and not (readonly and action.changes)
    ]
