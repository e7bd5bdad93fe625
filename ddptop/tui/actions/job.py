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
    KILL,
    LAUNCH,
    LOGS_PAGE,
    NEXT_RANK,
    PREVIOUS_RANK,
    REPLAY_PAGE,
    STOP,
    STORY_PAGE,
    Action,
)

STACKS = Action("job.stacks", "stacks", "t", "Stacks", "where each rank stands in its code")
JOBS = Action("view.jobs", "jobs", "o", "Jobs", "all jobs and devices", show=False)

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
    AGAIN,
    Action("rank.open", "open_rank", "enter", "Rank", "the chosen rank alone"),
    LOGS_PAGE,
    replace(STORY_PAGE, own=True),
    FINDINGS,
    STACKS,
    replace(
        COMPARE_PAGE, own=True
    ),  # before the devices, which the row of pages names where room is short
    DEVICES_PAGE,
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
    replace(REPLAY_PAGE, own=True),
    Action("app.detach", "app.detach", "d", "Detach", "leave ddptop; the job goes on"),
    Action(
        "job.evidence",
        "evidence",
        "i",
        "Evidence",
        "what was kept at the last failure or hang: cause, stacks, logs, devices",
        show=False,
        own=True,
    ),
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
    Action("ranks.shape", "shape", "T", "Cards/table/map", "ranks as cards, a table or a map"),
    Action(
        "ranks.figure",
        "figure",
        "m",
        "Figure",
        "map of ranks: what colours its cells: state, step time, loss, step, memory, util, data "
        "wait, power",
        show=False,
    ),
    Action(
        "ranks.sort",
        "sort",
        "S",
        "Sort",
        "table of ranks: by number, or the ones farthest from the median first",
        show=False,
    ),
    Action("view.filter", "filter", "slash", "Filter", "only ranks that match this", show=False),
    Action("page.main", "page('main')", "1", "Ranks", "ranks and loss", show=False),
    Action("page.devices", "page('devices')", "2", "Its devices", "its devices alone", show=False),
    Action("page.events", "page('events')", "3", "Events", "what happened, alone", show=False),
    Action("page.log", "page('log')", "4", "Log", "the chosen rank's log alone", show=False),
    *CHART_ACTIONS,
    NEXT_RANK,
    PREVIOUS_RANK,
    LAUNCH,
    JOBS,
    HELP,
)
"""Of the screen with one job."""
