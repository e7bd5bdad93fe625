"""The Textual app: wires screens, collector, commands and theme together, and knows no widget."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from msgspec.structs import replace
from textual import events, on
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.filter import LineFilter
from textual.geometry import Size

from ddptop.logs.messages import CollectorFailed, LogRead
from ddptop.sources.collector import Collector
from ddptop.sources.machine import read_machine
from ddptop.sources.query import Answer, Answered, Devices, Look, Query
from ddptop.tui import messages, operations
from ddptop.tui.actions import EVERYWHERE, HELP, PALETTE, bindings
from ddptop.tui.prefs.keymap import KeyMap
from ddptop.tui.prefs.memory import recall, remember
from ddptop.tui.prefs.settings import Settings
from ddptop.tui.prefs.theme import OWN, STRONG
from ddptop.tui.process import HangUp, give_back, go_on_with_garbage
from ddptop.tui.reach import Filters, Reach, greeting, kept, reach_of
from ddptop.tui.screens.base import MonitorScreen
from ddptop.tui.textual_gaps import QuietApp, forget_drawn
from ddptop.view.keys import key, use
from ddptop.view.shown import Machine
from ddptop_runner.base.clock import utc_now

if TYPE_CHECKING:
    from textual.command import Provider
    from textual.theme import Theme

    from ddptop_runner.foreign.types import ForeignJob


TICK_S = 1.0


@runtime_checkable
class ShowsDevices(Protocol):
    """A form above the screens that lists devices."""

    def show_devices(self, devices: Devices) -> None:
        """List them as they are now."""


@runtime_checkable
class LooksAgain(Protocol):
    """A text above the screens that is made anew from each look."""

    def look_again(self, look: Look) -> None:
        """Make it."""


def _actions() -> type[Provider]:
    from ddptop.tui.palette import ActionProvider

    return ActionProvider


def _jobs() -> type[Provider]:
    from ddptop.tui.palette import JobProvider

    return JobProvider


def _charts() -> type[Provider]:
    from ddptop.tui.palette import ChartProvider

    return ChartProvider


def _themes() -> type[Provider]:
    from ddptop.tui.palette import ThemeCommands

    return ThemeCommands


class DdptopApp(QuietApp):
    """Watches jobs. Leaving it never touches one."""

    TITLE = "ddptop"
    CSS_PATH = Path(__file__).with_name("ddptop.tcss")
    COMMANDS = {_actions, _jobs, _charts, _themes}
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(
            [replace(action, action=action.action.removeprefix("app.")) for action in EVERYWHERE]
        ),
        Binding("ctrl+z", "refuse_suspending", show=False, id="app.suspend"),
    ]

    def __init__(
        self,
        job: str | None = None,
        *,
        now: Callable[[], dt.datetime] = utc_now,
        machine: Callable[[], Machine] = read_machine,
        tick_s: float | None = TICK_S,
        watched: ForeignJob | None = None,
        readonly: bool = False,
        opening: messages.ScreenWanted | None = None,
        reach: Reach | None = None,
    ) -> None:
        """Open on `job`, on a foreign job, or on all jobs.

        Args:
            job: the name of one of ddptop's own jobs.
            now: the clock that everything on the screen is measured by.
            machine: reads CPU and memory of this host.
            tick_s: seconds between two looks; None looks only when asked.
            watched: the foreign job to open on.
            readonly: whether everything that does something to a job is refused.
            opening: what opens another screen first, such as CompareWanted.
            reach: keys, colours and glyphs as a person set them.
        """
        super().__init__()
        self.reach = reach or Reach()
        """The user's interface settings."""
        self.keys: KeyMap = self.reach.keys
        """The keys in use."""
        self._outgoing = Filters(self.reach)
        self._take_settings()
        self._readonly = readonly
        self._first = opening
        if (name := job if watched is None else watched.name) is not None:
            self._first = messages.JobPicked(name, watched is not None)
        self._tick_s = tick_s
        self._hang_up = HangUp()
        self.collector = Collector(self.post_message, now, machine, watched, adopts=not readonly)
        self.latest: Answer | None = None
        """The latest answer, whichever screen asked."""

    # --- life ----------------------------------------------------------------------------------

    def on_mount(self) -> None:
        """Show the first screen and start to look."""
        if self._first is None:
            self.push_screen(self._all_jobs())
        else:
            self.open(self._first)
        loop = asyncio.get_running_loop()
        self.collector.query = self._query()
        self.collector.start(loop)
        if self._tick_s is not None:
            self.set_interval(self._tick_s, self.collector.ask)
        self._greet()
        if _is_terminal():  # without one at the start there is none to lose
            self.set_interval(1.0, self._mind_terminal)
            self._hang_up.watch(loop, self._leave_with_terminal)
        with contextlib.suppress(NotImplementedError, RuntimeError):  # not in the main thread
            loop.add_signal_handler(signal.SIGTERM, self.exit)

    async def on_unmount(self) -> None:
        """Stop looking; samplers end with the interface."""
        self.collector.stop()
        await self.collector.devices.close()

    def _mind_terminal(self) -> None:
        self._leave_with_terminal()
        self._follow_size()

    def _leave_with_terminal(self) -> None:
        if not _is_terminal():
            if not self.is_headless:
                self._hang_up.leave()
            self.exit(return_code=1)

    def _follow_size(self) -> None:
        """Take the terminal's size where Textual holds an older one.

        A SIGWINCH that arrives in the middle of Textual's handling of another is handled first, and
        the older size is then told last.
        """
        size = Size(*shutil.get_terminal_size((0, 0)))
        if size and size != self.size and not self.supports_smooth_scrolling:  # told in band else
            self.post_message(events.Resize(size, size))

    # --- what a person set ---------------------------------------------------------------------

    def _take_settings(self) -> None:
        use(self.keys.named())
        self.animation_level = "none"
        for theme in (*OWN, *self.reach.themes):
            self.register_theme(theme)
        self.theme = self.reach.theme
        self.set_class(STRONG in self.current_theme.variables, "-strong-contrast")
        if chosen := self.keys.for_textual():
            self.set_keymap(chosen)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Nothing steers the terminal, and everything is in the colors and glyphs it has."""
        return self._outgoing.around(super().get_line_filters(), no_color=self.no_color)

    def _greet(self) -> None:
        """Report errors in the settings and, on the first start, show where help is."""
        self.theme_changed_signal.subscribe(self, self._theme_chosen)
        if (told := greeting(self.reach)) is not None:
            text, title = told
            self.notify(text, title=title, severity="warning", timeout=12, markup=False)
        if self.reach.remember is not None and not self.reach.memory.greeted:
            help_key, palette_key = self.keys.short(HELP), self.keys.short(PALETTE)
            self.notify(f"{help_key} help · {palette_key} commands", markup=False, timeout=12)
            self.reach = kept(self.reach, greeted=True)

    def _theme_chosen(self, theme: Theme) -> None:
        """A theme chosen in the palette is there at the next start."""
        self.set_class(STRONG in theme.variables, "-strong-contrast")
        if theme.name != self.reach.theme:
            asked = self.reach.interface.theme
            self.reach = kept(replace(self.reach, theme=theme.name), theme=theme.name, asked=asked)

    def action_refuse_suspending(self) -> None:
        """A suspended program would leave the terminal raw."""
        self.notify(
            f"ddptop cannot be suspended; press {key('app.detach')} to quit (jobs keep running)"
        )

    def refuses(self, what: str) -> bool:
        """Whether this viewer is read-only; if so, notify the user."""
        if self._readonly:
            self.clear_notifications()  # one says it all
            self.notify(f"read-only: {what} is disabled", severity="warning", markup=False)
        return self._readonly

    # --- what is done to jobs ------------------------------------------------------------------

    def on_operation_wanted(self, message: messages.OperationWanted) -> None:
        """Ask first where it does harm, then act."""
        operations.wanted(self, message)

    def on_command_done(self, message: messages.CommandDone) -> None:
        """Report the result and refresh."""
        operations.done(self, message)

    def on_stacks_wanted(self, message: messages.StacksWanted) -> None:
        """Show where the ranks stand."""
        operations.show_stacks(self, message.view)

    def on_evidence_wanted(self, message: messages.EvidenceWanted) -> None:
        """Show the evidence saved at the last failure or hang."""
        operations.show_evidence(self, message.view, message.attempt)

    # --- data ----------------------------------------------------------------------------------

    @property
    def monitor(self) -> MonitorScreen[Any] | None:
        """The uppermost screen that asks the collector."""
        for screen in reversed(self.screen_stack):
            if isinstance(screen, MonitorScreen):
                return screen
        return None

    def on_answered(self, message: Answered) -> None:
        """Hand each answer to the screen that asked, if it is seen; none is while the app ends."""
        if not self.screen_stack:
            return
        self.latest = answer = message.answer
        self.collector.query = self._query()
        monitor = self.monitor
        if monitor is not None and monitor.viewer == answer.query.viewer:
            monitor.answer = answer
        self.call_after_refresh(go_on_with_garbage)
        if isinstance(self.screen, ShowsDevices) and answer.query.devices:
            self.screen.show_devices(answer.look.devices)
        if isinstance(self.screen, LooksAgain):
            self.screen.look_again(answer.look)

    def on_query_changed(self) -> None:
        """Ask what is needed now, if there still is a screen that needs something."""
        if not self.screen_stack:
            return
        self.collector.query = self._query()
        self.collector.ask()

    def _query(self) -> Query:
        if (monitor := self.monitor) is None:
            return Query()
        query = replace(monitor.needs(), viewer=monitor.viewer)
        return replace(query, devices=True) if isinstance(self.screen, ShowsDevices) else query

    def on_log_read(self, message: LogRead) -> None:
        """Lines go to the screen that shows them, whatever lies above it."""
        if (monitor := self.monitor) is not None:
            monitor.on_log_read(message)

    def on_collector_failed(self, message: CollectorFailed) -> None:
        """A defect of ours: leave with its words, jobs go on."""
        self.exit(
            return_code=1,
            message=f"ddptop: the interface crashed ({message.error!r}); jobs are not affected",
        )

    # --- screens -------------------------------------------------------------------------------

    @on(messages.ScreenWanted)
    def _screen_wanted(self, message: messages.ScreenWanted) -> None:
        self.open(message)

    def open(self, message: messages.ScreenWanted) -> None:
        """Open a screen, or go back to where the same is shown already.

        Screens lead to each other in circles, and each keeps its memory while others lie above it.
        """
        screen = message.make(readonly=self._readonly)
        screen.is_first = message is self._first and message.quits
        for below in self.screen_stack:
            if type(below) is type(screen) and below.subject == screen.subject:
                while self.screen is not below:
                    self.pop_screen()
                return
        self.push_screen(screen)

    def _all_jobs(self) -> MonitorScreen[Any]:
        from ddptop.tui.screens.overview import OverviewScreen

        return OverviewScreen(readonly=self._readonly)

    def pop_screen(self) -> AwaitComplete:
        """To the screen below; below the one that ddptop was opened on all jobs are shown."""
        self._forget_closed()
        if len(self.screen_stack) > 2:
            return super().pop_screen()
        return self.switch_screen(self._all_jobs())

    def _forget_closed(self) -> None:
        """Forget what the screen's widgets drew."""
        self._forget_drawn()
        self.set_timer(1.0, self._forget_drawn)  # once the screen is gone

    def _forget_drawn(self) -> None:
        forget_drawn()
        give_back()

    def on_sections_wanted(self, message: messages.SectionsWanted) -> None:
        """Show a text in sections."""
        from ddptop.tui.screens.sections import SectionsScreen

        self.push_screen(
            SectionsScreen(message.title, message.hint, message.sections, message.look_again)
        )

    def on_launch_wanted(self, message: messages.LaunchWanted) -> None:
        """Open the form, then show the launched job."""
        if self.refuses("launching jobs"):
            return
        from ddptop.tui import operations
        from ddptop.tui.screens.launch import LaunchScreen
        from ddptop_runner.base.errors import DdptopError

        again = None
        if message.again is not None:
            try:
                again = operations.to_relaunch(message.again)
            except DdptopError as refused:
                operations.tell(self, "", refused)
                return
        self.push_screen(LaunchScreen(again), self._launched)
        self.on_query_changed()

    def _launched(self, job: str | None) -> None:
        if job is not None:
            self.open(messages.JobPicked(job))

    def on_key(self, event: events.Key) -> None:
        """What was typed before a field could take the keys, yet behind its key, belongs to it."""
        field, typed = self.focused, event.character
        if field is not None and typed and field.check_consume_key(event.key, typed):
            event.prevent_default()
            field.post_message(events.Key(event.key, typed))
        elif typed and isinstance(self.screen, MonitorScreen):
            self.screen.typed(typed)

    def action_help(self) -> None:
        """What is under the cursor, keys and words."""
        from ddptop.tui.screens.help import HelpScreen

        self.push_screen(HelpScreen.of(self.screen, self.keys))

    def action_command_palette(self) -> None:
        """All commands, by name."""
        from ddptop.tui.palette import Palette

        if not isinstance(self.screen, Palette):
            self.push_screen(Palette())

    def action_detach(self) -> None:
        """Leave; jobs go on."""
        self.exit()


def _is_terminal() -> bool:
    try:
        return os.isatty(0)
    except OSError:
        return False


def app_with(
    settings: Settings,
    job: str | None = None,
    *,
    watched: ForeignJob | None = None,
    readonly: bool = False,
    opening: messages.ScreenWanted | None = None,
    letters: str | None = None,
) -> DdptopApp:
    """The app as a person's settings want it, for a terminal as for a browser's tab.

    Without a job or a screen to open it begins with the one of the settings.

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
        opening = messages.DevicesWanted()
    return DdptopApp(
        job,
        watched=watched,
        readonly=readonly,
        opening=opening,
        tick_s=settings.interface.refresh_s,
        reach=reach_of(settings, memory=recall(), remember=remember, letters=letters),
    )
