"""What a person asks ddptop to do to a job: refused, asked back, or carried out in a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from textual import work

from ddptop.sources.collector import Collector
from ddptop.tui import messages, operations
from ddptop.tui.reach import Reach, ReachApp
from ddptop.view.keys import key
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.foreign.types import ForeignView
from ddptop_runner.job.registry import JobView

if TYPE_CHECKING:
    from ddptop.tui.screens.sections import SectionsScreen


class ActingApp(ReachApp):
    """The app, without its screens."""

    collector: Collector
    """Looks at everything, in a thread."""

    def __init__(self, reach: Reach | None = None, *, readonly: bool = False) -> None:
        """`readonly` refuses everything that does something to a job."""
        super().__init__(reach)
        self._readonly = readonly

    def _refuse(self, what: str) -> bool:
        """Whether this viewer is read-only; if so, notify the user."""
        if self._readonly:
            self.clear_notifications()  # one says it all
            self.notify(f"read-only: {what} is disabled", severity="warning", markup=False)
        return self._readonly

    def on_operation_wanted(self, message: messages.OperationWanted) -> None:
        """Ask first where it does harm, then act."""
        view = message.view
        if self._refuse("changing jobs"):
            return
        if view.is_live != message.needs_live:
            again = (
                ""
                if isinstance(view, ForeignView)
                else f"; press {key('job.again')} to relaunch it"
            )
            text = "is still running; stop it first" if view.is_live else f"has ended{again}"
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
                    from ddptop.draw.foreign import stopping_words

                    self.collector.stopping(view.job, stopping_words(operation.plan, utc_now()))
                    self.collector.ask()
                self._carry_out(view.job, operation)

        from ddptop.tui.screens.confirm import ConfirmScreen

        self.push_screen(
            ConfirmScreen(operation.question, operation.effect, operation.verb), answered
        )

    @work(thread=True, group="commands")
    def _carry_out(self, job: str, operation: operations.Operation) -> None:
        from ddptop_runner.foreign.actions import SignalOutcome

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
        """Report the result and refresh."""
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
        if own and view.is_live and self._refuse("signaling ranks to read their stacks"):
            return
        from ddptop.tui.screens.sections import SectionsScreen

        screen = SectionsScreen(f"stacks for {view.job}", operations.stacks_source(view))
        self._read_into(screen, lambda: operations.read_stacks(view))

    def on_evidence_wanted(self, message: messages.EvidenceWanted) -> None:
        """Show the evidence saved at the last failure or hang."""
        if isinstance(view := message.view, JobView):
            from ddptop.sources import evidence_pages
            from ddptop.tui.screens.sections import SectionsScreen

            screen = SectionsScreen(
                f"evidence for {view.job}", "saved before any signal was sent; esc closes"
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
        except OSError as error:
            self.call_from_thread(screen.fail, f"cannot be read: {error}", None)
        else:
            self.call_from_thread(screen.show, sections)
