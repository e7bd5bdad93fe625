"""What can be done on the screen of one job."""

from __future__ import annotations

from ddptop.tui.actions.chart import CHART_ACTIONS
from ddptop.tui.actions.common import AGAIN, FINDINGS, HELP, KILL, LAUNCH, STOP, Action

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
    AGAIN,
    STOP,
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
    FINDINGS,
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
    CHART_ACTIONS[0],
    KILL,
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
    *CHART_ACTIONS[1:],
    Action("rank.next", "rank(1)", "right_square_bracket", "Next rank", "next rank", show=False),
    Action(
        "rank.previous",
        "rank(-1)",
        "left_square_bracket",
        "Previous rank",
        "rank before",
        show=False,
    ),
    LAUNCH,
    Action("view.jobs", "jobs", "o", "Jobs", "all jobs and devices", show=False),
    HELP,
)
"""Of the screen with one job."""
