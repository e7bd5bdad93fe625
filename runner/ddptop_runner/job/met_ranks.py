"""The ranks of a command: discovered by their probes or process tree, and watched until they exit.

Only their probes and their process tree report them, so their exits are observed from outside. A
rank's exit does not end the attempt: the launcher decides what happens to the others.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.host import procs, tree
from ddptop_runner.host.exits import ProcessWatch
from ddptop_runner.job.attempt_record import AttemptRecord, Surroundings
from ddptop_runner.job.command_look import PATIENCE_S, UNTOLD, TreeLook
from ddptop_runner.job.command_table import CommandTable
from ddptop_runner.job.event_log import EventLog
from ddptop_runner.job.rank_record import RankRecord
from ddptop_runner.model.snapshot import ProcessId
from ddptop_runner.model.spec import JobSpec

EXITS_TOLD_S = 1.5
"""How ranks ended is known by then, where no agent but the guardian or the kernel tells it."""


class MetRanks(AttemptRecord):
    """The part of a Group that meets ranks which ddptop did not start."""

    def __init__(
        self, folder: RunFolder, spec: JobSpec, log: EventLog, around: Surroundings
    ) -> None:
        super().__init__(folder, spec, log, around)
        self._tree = TreeLook(self._tree_pids)
        self._watch: ProcessWatch | None = None
        self._has_evidence = False
        """Whether it was kept as the first of the ranks that are known now ended badly."""
        self._keeping_evidence = asyncio.Lock()

    def _begin_attempt(self) -> None:
        super()._begin_attempt()
        self._has_evidence = False

    @abstractmethod
    async def _keep_evidence(self, reason: str) -> str:
        """Stacks and all else that is known of this moment; where it lies."""

    def look_at_tree(self, now_s: float, is_printing: bool = False) -> None:
        """Look, each other second, for ranks of a command that no probe tells of.

        Args:
            now_s: CLOCK_BOOTTIME.
            is_printing: whether its output tells a step or a loss.
        """
        table = self.table
        if not isinstance(table, CommandTable) or table.is_told or not self._tree.is_due(now_s):
            return
        late = now_s - self.attempt_started_s > PATIENCE_S
        sight = self._tree.look(now_s)
        if late and is_printing and (pids := self._tree_pids()):
            sight = sight.or_printing(pids[0])
        table.see(sight if late else sight.sure, with_ranks=late or not self._spec.probe)
        self._take_up_new()

    @property
    def launcher_name(self) -> str | None:
        """Who starts a command's ranks: by its words, or by its tree where that tells more."""
        told = self._spec.launcher
        seen = self.table.launcher_name if isinstance(self.table, CommandTable) else None
        return (seen if told in UNTOLD else told) or told

    def _tree_pids(self) -> list[int]:
        launcher = self.table.launcher
        if launcher is None or launcher.pid is None or not launcher.alive:
            return []
        return [launcher.pid, *tree.descendants_of(launcher.pid)]

    def _take_up_new(self) -> None:
        """Ranks of a command that were met just now: from now on their ends are seen."""
        new, self.table.new = self.table.new, []
        for record in new:
            self._has_evidence = False
            self._mind_met(record)
            self.hangs.forget(record.rank)
            self._tell_started(record)
        if new:
            self._around.publish()

    def _mind_met(self, record: RankRecord) -> None:
        if record.process is None:
            return
        self._deaths.watch(record.process.pid)
        if self._watch is None:
            self._watch = ProcessWatch(self._met_rank_ended)
        self._watch.watch(record.process)

    async def _met_ranks_told(self) -> None:
        """Wait a moment for how the ranks of a command that have ended did so."""
        deadline_s = boottime_s() + EXITS_TOLD_S
        while self.table.launcher is not None and boottime_s() < deadline_s:
            if all(procs.is_alive(record.process) for record in self.table.ranks_alive()):
                return
            await asyncio.sleep(0.02)

    def _met_rank_ended(self, process: ProcessId, returncode: int | None) -> None:
        record = self.table.rank_of_pid(process.pid)
        if record is None or record.process != process:
            return
        self._record_exited(record, returncode, boottime_s())
        well = returncode == 0 or (returncode is None and record.leaving)
        if (
            not well and self.job.ending_ranks_at_s is None
        ):  # its launcher is about to end the others
            self._around.spawn(self._keep_evidence_of_failure())

    async def _keep_evidence_of_failure(self) -> None:
        """Once for all ranks that end by the same failure; returns when it lies there."""
        async with self._keeping_evidence:
            if not self._has_evidence:
                self._has_evidence = True
                await self._keep_evidence("failure")
