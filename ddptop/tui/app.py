"""The Textual app: wires screens, collector, commands and theme together, and knows no widget."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from textual import events, work
from textual.message import Message

from ddptop.tui import messages
from ddptop.tui.collector import Collector
from ddptop.tui.garbage import go_on_with_garbage
from ddptop.tui.hangup import HangUp
from ddptop.tui.palette import COMMANDS
from ddptop.tui.reach import Reach, ReachApp
from ddptop.tui.screens.base import MonitorScreen
from ddptop.tui.snapshot import Devices, Machine, Snapshot, Wish
from ddptop.tui.sources import read_machine
from ddptop_runner.clock import utc_now
from ddptop_runner.errors import DdptopError
from ddptop_runner.foreign.view import ForeignView
from ddptop_runner.registry import JobView

if TYPE_CHECKING:
    from ddptop.tui.operations import Operation
    from ddptop.tui.screens.sections import SectionsScreen
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

    def look_again(self, snapshot: Snapshot) -> None:
        """Make it."""


class DdptopApp(ReachApp):
    """Watches jobs. Leaving it never touches one."""

    TITLE = "ddptop"
    CSS_PATH = Path(__file__).with_name("ddptop.tcss")
    COMMANDS = COMMANDS

    def __init__(
        self,
        job: str | None = None,
        *,
        now: Callable[[], dt.datetime] = utc_now,
        machine: Callable[[], Machine] = read_machine,
        tick_s: float | None = TICK_S,
        watched: ForeignJob | None = None,
        readonly: bool = False,
        opening: Message | None = None,
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
            opening: the message that opens the first screen, such as CompareWanted; leaving that
                screen leaves ddptop.
            reach: keys, colours and glyphs as a person set them.
        """
        super().__init__(reach)
        self._opening = opening
        self._first_job = job if watched is None else watched.name
        self._first_is_foreign = watched is not None
        self._readonly = readonly
        self._tick_s = tick_s
        self._hang_up = HangUp()
        self.collector = Collector(self.post_message, now, machine, watched, takes_up=not readonly)
        """Looks at everything, in a thread."""
        self.latest: Snapshot | None = None
        """The latest look."""

    # --- life ----------------------------------------------------------------------------------

    def on_mount(self) -> None:
        """Show the first screens and start to look."""
        from ddptop.tui.screens.overview import OverviewScreen

        self.push_screen(OverviewScreen(readonly=self._readonly))
        if self._first_job is not None:
            self._open(self._first_job, self._first_is_foreign, is_first=True)
        if self._opening is not None:
            self.post_message(self._opening)
        self.greet()
        self.collector.wish = self._wish()
        loop = asyncio.get_running_loop()
        self.collector.start(loop)
        if self._tick_s is not None:
            self.set_interval(self._tick_s, self.collector.ask)
        if _is_terminal():  # without one at the start there is none to lose
            self.set_interval(1.0, self._leave_with_terminal)
            self._hang_up.watch(loop, self._leave_with_terminal)
        with contextlib.suppress(NotImplementedError, RuntimeError):  # not in the main thread
            loop.add_signal_handler(signal.SIGTERM, self.exit)

    async def on_unmount(self) -> None:
        """Stop looking; samplers end with the interface."""
        self.collector.stop()
        await self.collector.devices.close()

    def _leave_with_terminal(self) -> None:
        if not _is_terminal():
            if not self.is_headless:
                self._hang_up.leave()
            self.exit(return_code=1)

    # --- data ----------------------------------------------------------------------------------

    @property
    def monitor(self) -> MonitorScreen | None:
        """The uppermost screen that shows snapshots."""
        for screen in reversed(self.screen_stack):
            if isinstance(screen, MonitorScreen):
                return screen
        return None

    def on_snapshot_ready(self, message: messages.SnapshotReady) -> None:
        """Hand each look to the screen that is seen."""
        self.latest = message.snapshot
        self.collector.wish = self._wish()
        if (monitor := self.monitor) is not None:
            monitor.snapshot = message.snapshot
        self.call_after_refresh(go_on_with_garbage)
        if isinstance(self.screen, ShowsDevices) and message.snapshot.wish.devices:
            self.screen.show_devices(message.snapshot.devices)
        if isinstance(self.screen, LooksAgain):
            self.screen.look_again(message.snapshot)

    def on_wish_changed(self) -> None:
        """Look for what is wanted now."""
        self.collector.wish = self._wish()
        self.collector.ask()

    def _wish(self) -> Wish:
        wish = Wish() if (monitor := self.monitor) is None else monitor.wish()
        return replace(wish, devices=True) if isinstance(self.screen, ShowsDevices) else wish

    def on_log_read(self, message: messages.LogRead) -> None:
        """Lines go to the screen that shows them, whatever lies above it."""
        if (monitor := self.monitor) is not None:
            monitor.on_log_read(message)

    def on_collector_failed(self, message: messages.CollectorFailed) -> None:
        """A defect of ours: leave with its words, jobs go on."""
        self.exit(
            return_code=1,
            message=f"ddptop: the interface failed ({message.error!r}); jobs are not touched",
        )

    # --- screens -------------------------------------------------------------------------------

    def on_job_picked(self, message: messages.JobPicked) -> None:
        """Show a job."""
        self._open(message.job, message.foreign)

    def _open(self, job: str, foreign: bool, *, is_first: bool = False) -> None:
        from ddptop.tui.screens.job import JobScreen

        self.push_screen(JobScreen(job, is_first, foreign=foreign, readonly=self._readonly))

    def on_rank_picked(self, message: messages.RankPicked) -> None:
        """Show a rank."""
        from ddptop.tui.screens.rank import RankScreen

        self.push_screen(
            RankScreen(message.job, message.rank, foreign=message.foreign, readonly=self._readonly)
        )

    def on_devices_wanted(self, message: messages.DevicesWanted) -> None:
        """Show the devices."""
        from ddptop.tui.screens.devices import DevicesScreen

        self.push_screen(DevicesScreen(message.uuid, readonly=self._readonly))

    def on_logs_wanted(self, message: messages.LogsWanted) -> None:
        """Show a job's logs."""
        from ddptop.tui.screens.logs import LogsScreen

        self.push_screen(
            LogsScreen(
                message.job,
                message.rank,
                attempt=message.attempt,
                foreign=message.foreign,
                readonly=self._readonly,
            )
        )

    def on_story_wanted(self, message: messages.StoryWanted) -> None:
        """Show what happened to a job."""
        from ddptop.tui.screens.story import StoryScreen

        self._show(StoryScreen(message.job, readonly=self._readonly), message)

    def on_compare_wanted(self, message: messages.CompareWanted) -> None:
        """Show jobs beside each other."""
        from ddptop.tui.screens.compare import CompareScreen

        self._show(CompareScreen(message.jobs, readonly=self._readonly), message)

    def on_replay_wanted(self, message: messages.ReplayWanted) -> None:
        """Show a job as it was."""
        from ddptop.tui.screens.replay import ReplayScreen

        self._show(ReplayScreen(message.job, message.at, readonly=self._readonly), message)

    def _show(self, screen: MonitorScreen, wanted: Message) -> None:
        screen.is_first = wanted is self._opening
        self.push_screen(screen)

    def _refuse(self, what: str) -> bool:
        """Whether this viewer may not do that; it then says so."""
        if self._readonly:
            self.clear_notifications()  # one says it all
            self.notify(f"read-only: {what} is refused here", severity="warning", markup=False)
        return self._readonly

    def on_sections_wanted(self, message: messages.SectionsWanted) -> None:
        """Show a text in sections."""
        from ddptop.tui.screens.sections import SectionsScreen

        self.push_screen(
            SectionsScreen(message.title, message.hint, message.sections, message.look_again)
        )

    def on_launch_wanted(self) -> None:
        """Open the form; what was launched is shown."""
        if self._refuse("launching a job"):
            return
        from ddptop.tui.screens.launch import LaunchScreen

        self.push_screen(LaunchScreen(), self._launched)
        self.on_wish_changed()

    def _launched(self, job: str | None) -> None:
        if job is not None:
            self.on_job_picked(messages.JobPicked(job))

    def on_key(self, event: events.Key) -> None:
        """What was typed before a field could take the keys, yet behind its key, belongs to it."""
        field, typed = self.focused, event.character
        if field is not None and typed and field.check_consume_key(event.key, typed):
            event.prevent_default()
            field.post_message(events.Key(event.key, typed))

    def action_help(self) -> None:
        """What is under the cursor, keys and words."""
        from ddptop.tui.screens.help import HelpScreen

        self.push_screen(HelpScreen.of(self.screen, self.keys))

    def action_detach(self) -> None:
        """Leave; jobs go on."""
        self.exit()

    # --- commands ------------------------------------------------------------------------------

    def on_operation_wanted(self, message: messages.OperationWanted) -> None:
        """Ask first where it does harm, then act."""
        view = message.view
        if self._refuse("doing anything to a job"):
            return
        if view.is_live != message.needs_live:
            again = "" if isinstance(view, ForeignView) else "; R starts it again"
            text = "still lives: stop it first" if view.is_live else f"has ended{again}"
            self.notify(f"{view.job} {text}", severity="warning", markup=False)
            return
        try:
            operation = message.make(view)
        except DdptopError as refused:
            self._tell("", refused)
            return
        if not operation.question:
            self.notify(operation.effect, markup=False)
            self._carry_out(view.job, operation)
            return

        def answered(yes: bool | None) -> None:
            if yes:
                if operation.plan is not None:
                    from ddptop.tui.render.foreign import stopping_words

                    self.collector.stopping(view.job, stopping_words(operation.plan, utc_now()))
                    self.collector.ask()
                self._carry_out(view.job, operation)

        from ddptop.tui.screens.confirm import ConfirmScreen

        self.push_screen(
            ConfirmScreen(operation.question, operation.effect, operation.verb), answered
        )

    @work(thread=True, group="commands")
    def _carry_out(self, job: str, operation: Operation) -> None:
        from ddptop_runner.foreign.signals import SignalOutcome

        error, said, ended = None, operation.done, None
        try:
            outcome = operation.run()
            if isinstance(outcome, SignalOutcome):
                said = outcome.sentence
                ended = (job, outcome.ended_by) if outcome.ended_by else None
            elif outcome:
                said = outcome
        except DdptopError as refused:
            error = refused
        except OSError as failed:
            error = DdptopError(str(failed))
        self.post_message(messages.CommandDone(said, error, ended, job))

    def on_command_done(self, message: messages.CommandDone) -> None:
        """Say how it went, and look again."""
        if message.ended is not None:
            self.collector.ended(*message.ended)
        if message.job is not None:
            self.collector.stopping(message.job, None)
        self._tell(message.text, message.error)
        self.collector.ask()

    def _tell(self, text: str, error: DdptopError | None) -> None:
        if error is None:
            self.notify(text, markup=False)
        else:
            hint = f"\n{error.hint}" if error.hint else ""
            self.notify(f"{error.message}{hint}", severity="error", timeout=10, markup=False)

    def on_stacks_wanted(self, message: messages.StacksWanted) -> None:
        """Show where the ranks stand, once they have answered."""
        view = message.view
        own = not isinstance(view, ForeignView)
        if own and view.is_live and self._refuse("asking its ranks by a signal for their stacks"):
            return
        from ddptop.tui import operations
        from ddptop.tui.screens.sections import SectionsScreen

        screen = SectionsScreen(f"stacks of {view.job}", operations.stacks_source(view))
        self._read_into(screen, lambda: operations.read_stacks(view))

    def on_evidence_wanted(self, message: messages.EvidenceWanted) -> None:
        """Show what was kept at the last failure or hang."""
        if isinstance(view := message.view, JobView):
            from ddptop.tui import evidence_pages
            from ddptop.tui.screens.sections import SectionsScreen

            screen = SectionsScreen(
                f"evidence of {view.job}", "taken before any signal was sent; esc closes"
            )
            self._read_into(screen, lambda: evidence_pages.read(view, message.attempt))

    def _read_into(self, screen: SectionsScreen, read: Callable[[], list[tuple[str, str]]]) -> None:
        self.push_screen(screen)
        self._fill(screen, read)

    @work(thread=True, group="stacks")
    def _fill(self, screen: SectionsScreen, read: Callable[[], list[tuple[str, str]]]) -> None:
        try:
            sections = read()
        except DdptopError as error:
            self.call_from_thread(screen.fail, error.message, error.hint)
        else:
            self.call_from_thread(screen.show, sections)


def _is_terminal() -> bool:
    try:
        return os.isatty(0)
    except OSError:
        return False
