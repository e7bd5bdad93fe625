"""The Textual app: connects screens, collector, commands, and themes."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import datetime as dt
import gc
import os
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec.structs import replace
from textual import events, on
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.filter import LineFilter
from textual.geometry import Size

from ddptop.job.keys import EVERYWHERE, key, use
from ddptop.job.series import Machine
from ddptop.logs.messages import CollectorFailed, LogRead
from ddptop.sources.collector import Collector
from ddptop.sources.overview import read_machine
from ddptop.sources.query import Answer, Answered, Query
from ddptop.tui import messages, operations
from ddptop.tui.ascii import filters
from ddptop.tui.bell import Bell
from ddptop.tui.keymap import bindings, for_textual
from ddptop.tui.screens.base import MonitorScreen
from ddptop.tui.settings import Memory, Settings, recall, remember
from ddptop.tui.textual_gaps import QuietApp, forget_drawn
from ddptop.tui.themes import OWN, STRONG
from ddptop_runner.base.clock import utc_now

if TYPE_CHECKING:
    from textual.command import Provider
    from textual.theme import Theme

    from ddptop.job.record import Job
    from ddptop_runner.foreign.types import ForeignJob


TICK_S = 1.0
CHECK_TERMINAL_S = 1.0
"""How often to check whether the terminal is still there, and its size."""
LEAVE_S = 2.0
"""How long Textual may take to exit once the terminal is gone."""


def _commands() -> type[Provider]:
    from ddptop.tui.palette import Commands

    return Commands


class DdptopApp(QuietApp):
    """Watches jobs. Quitting does not affect them."""

    TITLE = "ddptop"
    CSS_PATH = Path(__file__).with_name("ddptop.tcss")
    COMMANDS = {_commands}
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(EVERYWHERE, {one.id: one.action.removeprefix("app.") for one in EVERYWHERE}),
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
        settings: Settings | None = None,
        letters: str | None = None,
    ) -> None:
        """Open on `job`, on a foreign job, or on all jobs.

        Args:
            job: the name of one of ddptop's own jobs.
            now: the clock for everything on the screen.
            machine: reads CPU and memory of this host.
            tick_s: seconds between polls; None polls only on request.
            watched: the foreign job to open on.
            readonly: whether to refuse all actions that change a job.
            opening: a message that opens another screen first, such as a comparison.
            settings: the user's keys, colors, and choices.
            letters: if set, only ASCII is drawn, and letters that this encoding can write.
        """
        super().__init__()
        self._settings = settings or Settings()
        self._memory = recall()
        self._bell = Bell(self._settings.notify)
        self._letters = letters
        self._take_settings()
        self._readonly = readonly
        self._first = opening
        if (name := job if watched is None else watched.name) is not None:
            self._first = messages.ScreenWanted("job", name, foreign=watched is not None)
        self._tick_s = tick_s
        self.collector = Collector(self.post_message, now, machine, watched, adopts=not readonly)
        self.latest: Answer | None = None
        """The latest answer, whichever screen asked."""

    # --- startup and exit ------------------------------------------------------------------------

    def on_mount(self) -> None:
        """Show the first screen and start polling."""
        if self._first is None:
            self.push_screen(messages.OVERVIEW.make(readonly=self._readonly))
        else:
            self.open(self._first)
        loop = asyncio.get_running_loop()
        self.collector.query = self._query()
        self.collector.start(loop)
        if self._tick_s is not None:
            self.set_interval(self._tick_s, self.collector.ask)
        self._report_settings()
        if _is_terminal():  # a terminal that never existed cannot hang up
            self.set_interval(CHECK_TERMINAL_S, self._check_terminal)
        with contextlib.suppress(NotImplementedError, RuntimeError):  # not in the main thread
            loop.add_signal_handler(signal.SIGTERM, self.exit)

    async def on_unmount(self) -> None:
        """Stop polling and all samplers."""
        self.collector.stop()
        await self.collector.devices.close()

    def _check_terminal(self) -> None:
        """Leave with the terminal, or correct Textual's size of it if it is outdated.

        If a SIGWINCH arrives while Textual handles another one, Textual handles the newer first and
        keeps the older size.
        """
        if not _is_terminal():
            if not self.is_headless:  # Textual may not finish its own shutdown
                timer = threading.Timer(LEAVE_S, os._exit, (1,))
                timer.daemon = True
                timer.start()
            self.exit(return_code=1)
        size = Size(*shutil.get_terminal_size((0, 0)))
        if (
            size and size != self.size and not self.supports_smooth_scrolling
        ):  # else reported in band
            self.post_message(events.Resize(size, size))

    # --- settings --------------------------------------------------------------------------------

    def _take_settings(self) -> None:
        use(self._settings.keys)
        self.animation_level = "none"
        for theme in OWN:
            self.register_theme(theme)
        self.theme = self._settings.theme(self._memory)
        self.set_class(STRONG in self.current_theme.variables, "-strong-contrast")
        self.set_keymap(for_textual(self._settings.keys))

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Remove control characters, and use only colors and glyphs that the terminal has."""
        return filters(super().get_line_filters(), self._letters, no_color=self.no_color)

    def _report_settings(self) -> None:
        """Report errors in the settings, and remember themes from now on."""
        self.theme_changed_signal.subscribe(self, self._theme_chosen)
        if self._settings.problems:
            first, *others = self._settings.problems
            more = f"\nand {len(others)} more; run ddptop keys to list them" if others else ""
            text = f"{first}{more}"
            self.notify(text, title="settings", severity="warning", timeout=12, markup=False)

    def _theme_chosen(self, theme: Theme) -> None:
        """Remember a theme chosen in the palette for the next start."""
        self.set_class(STRONG in theme.variables, "-strong-contrast")
        if theme.name != self._settings.theme(self._memory):
            self._memory = Memory(theme=theme.name)
            remember(self._memory)

    def action_refuse_suspending(self) -> None:
        """Refuse to suspend where that would leave the terminal in raw mode."""
        self.notify(
            f"ddptop cannot be suspended; press {key('app.detach')} to quit (jobs keep running)"
        )

    def refuses(self, what: str) -> bool:
        """Whether this viewer is read-only; if so, notify the user."""
        if self._readonly:
            self.clear_notifications()  # one notification is enough
            self.notify(f"read-only: {what} is disabled", severity="warning", markup=False)
        return self._readonly

    # --- data ------------------------------------------------------------------------------------

    @property
    def monitor(self) -> MonitorScreen[Any] | None:
        """The uppermost screen that queries the collector."""
        for screen in reversed(self.screen_stack):
            if isinstance(screen, MonitorScreen):
                return screen
        return None

    def on_answered(self, message: Answered) -> None:
        """Pass the answer to the screen that asked, if it is visible and the app is not exiting."""
        if not self.screen_stack:
            return
        answer, is_first = message.answer, self.latest is None
        self.latest = answer
        for escapes in self._bell.rings(answer.look.own):
            self.to_terminal(escapes)
        self.collector.query = self._query()
        monitor = self.monitor
        if monitor is not None and monitor.viewer == answer.query.viewer:
            monitor.answer = answer
        if is_first:
            self.call_after_refresh(self._drawn)
        if answer.query.devices and (show := getattr(self.screen, "show_devices", None)):
            show(answer.look.devices)

    def _drawn(self) -> None:
        """Do what had to wait for the first frame."""
        if not gc.isenabled():
            gc.freeze()  # never scan the objects that exist now
            gc.enable()
        self.collector.drawn()

    def on_query_changed(self) -> None:
        """Send the collector the current query, if a screen has one."""
        if not self.screen_stack:
            return
        self.collector.query = self._query()
        self.collector.ask()

    def _query(self) -> Query:
        if (monitor := self.monitor) is None:
            return Query()
        query = replace(monitor.needs(), viewer=monitor.viewer)
        return replace(query, devices=query.devices or hasattr(self.screen, "show_devices"))

    def on_log_read(self, message: LogRead) -> None:
        """Pass log lines to the screen that shows them, even below a dialog."""
        if (monitor := self.monitor) is not None:
            monitor.on_log_read(message)

    def on_collector_failed(self, message: CollectorFailed) -> None:
        """Exit with the error, which is a bug in ddptop; jobs keep running."""
        self.exit(
            return_code=1,
            message=f"ddptop: the interface crashed ({message.error!r}); jobs are not affected",
        )

    # --- screens ---------------------------------------------------------------------------------

    @on(messages.ScreenWanted)
    def _screen_wanted(self, message: messages.ScreenWanted) -> None:
        self.open(message)

    def open(self, message: messages.ScreenWanted) -> None:
        """Open a screen, or go back to the screen below that shows the same.

        Screens link to each other in circles, and each one below the top still uses memory.
        """
        screen = message.make(readonly=self._readonly)
        screen.is_first = message is self._first and message.screen in messages.QUITTING
        for below in self.screen_stack:
            if type(below) is type(screen) and below.subject == screen.subject:
                while self.screen is not below:
                    self.pop_screen()
                return
        self.push_screen(screen)

    def pop_screen(self) -> AwaitComplete:
        """Go back one screen; below the one that ddptop was opened on is the job list."""
        self._forget_closed()
        if len(self.screen_stack) > 2:
            return super().pop_screen()
        return self.switch_screen(messages.OVERVIEW.make(readonly=self._readonly))

    def _forget_closed(self) -> None:
        """Schedule clearing what the closed screen's widgets drew."""
        self._forget_drawn()
        self.set_timer(1.0, self._forget_drawn)  # once the screen is gone

    def _forget_drawn(self) -> None:
        forget_drawn()
        give_back()

    def open_launch_form(self, ended: Job | None = None) -> None:
        """Open the launch form, with the values of an ended job if given, then the launched job."""
        if self.refuses("launching jobs"):
            return
        from ddptop.tui.screens.launch import LaunchScreen
        from ddptop_runner.base.errors import DdptopError

        try:
            again = None if ended is None else operations.to_relaunch(ended)
        except DdptopError as refused:
            operations.notify(self, "", refused)
            return
        self.push_screen(LaunchScreen(again), self._launched)
        self.on_query_changed()

    def _launched(self, job: str | None) -> None:
        if job is not None:
            self.open(messages.ScreenWanted("job", job))

    def on_key(self, event: events.Key) -> None:
        """Pass characters to a text field that is open but does not have the focus yet."""
        field, typed = self.focused, event.character
        if field is not None and typed and field.check_consume_key(event.key, typed):
            event.prevent_default()
            field.post_message(events.Key(event.key, typed))
        elif typed and isinstance(self.screen, MonitorScreen):
            self.screen.typed(typed)

    def action_help(self) -> None:
        """Show help for the item under the cursor, the keys, and the terms."""
        from ddptop.tui.screens.help import HelpScreen

        self.push_screen(HelpScreen.of(self.screen))

    def action_command_palette(self) -> None:
        """Open the command palette."""
        from ddptop.tui.palette import Palette

        if not isinstance(self.screen, Palette):
            self.push_screen(Palette())

    def action_detach(self) -> None:
        """Quit; jobs keep running."""
        self.exit()


def _is_terminal() -> bool:
    try:
        return os.isatty(0)
    except OSError:
        return False


def give_back() -> None:
    """Return free memory to the system: glibc keeps some per thread, 4 MiB after a day.

    Takes half a millisecond. Does nothing with C libraries that lack malloc_trim.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
