"""What a person can do to the job of a screen."""

from __future__ import annotations

from ddptop.tui import operations
from ddptop.tui.messages import EvidenceWanted, LaunchWanted, OperationWanted, StacksWanted
from ddptop.tui.screens.base import MonitorScreen
from ddptop.tui.snapshot import JobDetail


class JobCommands(MonitorScreen):
    """The commands; the app asks, refuses and carries out."""

    @property
    def detail(self) -> JobDetail | None:
        """The latest look at the job."""
        raise NotImplementedError

    def _want(self, make: operations.Maker, needs_live: bool) -> None:
        if (detail := self.detail) is not None:
            self.post_message(OperationWanted(detail.view, make, needs_live))

    def action_stop(self) -> None:
        """Stop the job, once confirmed."""
        self._want(operations.stop, True)

    def action_kill(self) -> None:
        """Kill the job, once confirmed."""
        self._want(operations.kill, True)

    def action_restart(self) -> None:
        """Restart all ranks, once confirmed."""
        self._want(operations.restart_group, True)

    def action_save(self) -> None:
        """Ask for a checkpoint: it ends nothing, so nothing is to be confirmed."""
        self._want(operations.save, True)

    def action_again(self) -> None:
        """Start the ended job again, once confirmed."""
        self._want(operations.again, False)

    def action_stacks(self) -> None:
        """Ask where the ranks stand."""
        if (detail := self.detail) is not None:
            self.post_message(StacksWanted(detail.view))

    def action_evidence(self) -> None:
        """Read what was kept at the last failure or hang."""
        if (detail := self.detail) is not None:
            self.post_message(EvidenceWanted(detail.view))

    def action_findings(self) -> None:
        """Everything that is wrong, in full."""
        if (detail := self.detail) is not None and self.snapshot is not None:
            self.show_findings(detail.view, self.snapshot)

    def action_launch(self) -> None:
        """Open the form."""
        self.post_message(LaunchWanted())
