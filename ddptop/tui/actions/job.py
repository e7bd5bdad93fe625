"""What can be done on the screen of one job."""

from __future__ import annotations

from msgspec.structs import replace

from ddptop.tui.actions.chart import CHART_ACTIONS
from ddptop.tui.actions.common import (
    AGAIN,
    COMPARE_PAGE,
    DEVICES_PAGE,
    FINDINGS,
    HELP,
    JOB_DEVICES_PAGE,
    KILL,
    LAUNCH,
    LOGS_PAGE,
    MAIN_PAGE,
    NEXT_RANK,
    PREVIOUS_RANK,
    REPLAY_PAGE,
    STOP,
    STORY_PAGE,
    Action,
)

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
"""Of the screen with one job."""
