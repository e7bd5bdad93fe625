"""The app as a person's settings want it, for a terminal as for a browser's tab."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.tui.app import DdptopApp
from ddptop.tui.messages import DevicesWanted, ScreenWanted
from ddptop.tui.prefs.memory import recall, remember
from ddptop.tui.prefs.settings import Settings
from ddptop.tui.reach import reach_of

if TYPE_CHECKING:
    from ddptop_runner.foreign.types import ForeignJob


def app_with(
    settings: Settings,
    job: str | None = None,
    *,
    watched: ForeignJob | None = None,
    readonly: bool = False,
    opening: ScreenWanted | None = None,
    letters: str | None = None,
) -> DdptopApp:
    """The app; without a job or a screen to open it begins with the one of the settings.

    Args:
        settings: as read.
        job: one of ddptop's own to open on.
        watched: a job that ddptop did not start, instead.
        readonly: refuse everything that does something to a job.
        opening: the message that opens another screen first, such as CompareWanted.
        letters: the encoding of names when only ASCII is drawn; None draws everything.
    """
    is_free = job is None and watched is None and opening is None
    if is_free and settings.interface.first == "devices":
        opening = DevicesWanted()
    return DdptopApp(
        job,
        watched=watched,
        readonly=readonly,
        opening=opening,
        tick_s=settings.interface.refresh_s,
        reach=reach_of(settings, memory=recall(), remember=remember, letters=letters),
    )
