"""What can be done on the screen with all jobs."""

from __future__ import annotations

from ddptop.tui.actions.common import AGAIN, FINDINGS, HELP, KILL, LAUNCH, STOP, Action

OVERVIEW: tuple[Action, ...] = (
    Action("job.open", "open", "enter", "Open", "show the job under the cursor"),
    LAUNCH,
    STOP,
    KILL,
    AGAIN,
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
    FINDINGS,
    Action(
        "view.unseen",
        "unseen",
        "u",
        "Unseen",
        "processes that may not be looked into, and why",
        show=False,
    ),
    HELP,
    Action("view.back", "back", "escape", "Back", "from the devices to all jobs", show=False),
    Action("app.quit", "leave", "q", "Quit", "leave ddptop; every job goes on"),
    Action(
        "app.detach", "app.detach", "d", "Detach", "leave ddptop; every job goes on", show=False
    ),
)
"""Of the screen with all jobs."""
