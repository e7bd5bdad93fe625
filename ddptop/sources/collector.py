"""One thread that looks at everything on the screen, when it is asked to.

It asks the sources, builds one frozen Snapshot and delivers it as a message. It never touches a
widget; a slow disk makes the figures old, and never the keys slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from textual.message import Message

from ddptop.logs.messages import CollectorFailed
from ddptop.sources.device_history import DeviceHistorySource
from ddptop.sources.everything import DeviceSource, HistorySource, JobSource
from ddptop.sources.late_sources import LateSources
from ddptop.sources.machine import read_machine
from ddptop.sources.messages import SnapshotReady
from ddptop.sources.slurm import SlurmSource
from ddptop.sources.snapshot import Devices, JobDetail, Snapshot, Wish
from ddptop.sources.trend import TrendSource
from ddptop.view.listed import sorted_jobs
from ddptop.view.series import ChartData
from ddptop.view.shown import Machine, Recent
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.paths import LAUNCHER
from ddptop_runner.foreign.types import ForeignView
from ddptop_runner.job.registry import AnyJob, JobView, rank_of_pid
from ddptop_runner.judge.balance.imbalance import deviations
from ddptop_runner.model.snapshot import Event

if TYPE_CHECKING:
    from ddptop_runner.foreign.types import ForeignJob

JOIN_S = 2.0
CAUSE_LINES = 12
TRY_AGAIN_S = 30.0
"""How long to wait before trying to adopt a job again."""
COST_LOOKS = 10
"""The viewer's own CPU usage is averaged over this many refreshes."""


class Collector:
    """Collects a snapshot on request; requests during a collection are merged into one."""

    def __init__(
        self,
        deliver: Callable[[Message], object],
        now: Callable[[], dt.datetime] = utc_now,
        machine: Callable[[], Machine] = read_machine,
        watched: ForeignJob | None = None,
        *,
        takes_up: bool = False,
    ) -> None:
        """Args: where messages go, the clock, the machine's figures, and what was pointed at.

        With `takes_up` a job whose guardian was killed gets a new one.
        """
        self._takes_up = takes_up
        self._tried: dict[str, float] = {}
        self.wish = Wish()
        """What to collect; the screens replace it as a whole."""
        self._deliver = deliver
        self._now = now
        self._machine = machine
        self._jobs = JobSource()
        self._history = HistorySource()
        self._late = LateSources(watched)
        self._shows_own_first = watched is None
        self._spent: deque[tuple[float, float]] = deque(maxlen=COST_LOOKS)
        self.devices = DeviceSource()
        self._device_history = DeviceHistorySource()
        self._trends = TrendSource()
        self._slurm = SlurmSource()
        self._cause: tuple[Path, tuple[str, ...]] | None = None
        self._asked = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread, which collects immediately. Device samplers run in `loop`."""
        self.devices.loop = loop
        self._asked.set()
        self._thread.start()

    def ask(self) -> None:
        """Look again as soon as possible."""
        self._asked.set()

    def stopping(self, job: str, words: str | None) -> None:
        """Learn which signals a foreign job is being sent from here; None: no more."""
        if words is None:
            self._late.foreign.stopping.pop(job, None)
        else:
            self._late.foreign.stopping[job] = words

    def ended(self, job: str, signal: str) -> None:
        """Record that a foreign job ended by a signal sent from this viewer."""
        self._late.foreign.ended_by[job] = signal

    def stop(self) -> None:
        """Stop the thread, waiting at most two seconds in case a disk hangs."""
        self._stopping = True
        self._asked.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        try:
            while True:
                self._asked.wait()
                self._asked.clear()
                if self._stopping:
                    break
                if self._shows_own_first:
                    self._show_own_first(self.wish)
                self._look_and_deliver(self.wish)
        except Exception as error:  # a defect here must end the program, not freeze its figures
            self._deliver(CollectorFailed(error))
        finally:
            if (foreign := self._late.asked_foreign) is not None:
                foreign.close()

    def _show_own_first(self, wish: Wish) -> None:
        """Deliver ddptop's own jobs before all that takes longer to load and to find."""
        self._shows_own_first = False
        snapshot = self.look(replace(wish, foreign=False))
        if snapshot.jobs and (wish.job is None or snapshot.detail is not None):
            self._deliver(SnapshotReady(snapshot))

    def _look_and_deliver(self, wish: Wish) -> None:
        snapshot = self.look(wish)
        self._deliver(SnapshotReady(snapshot))
        if self._takes_up:
            self._take_up(snapshot.jobs)
        view = None if snapshot.detail is None else snapshot.detail.view
        if isinstance(view, ForeignView) and wish.follow:
            if (read := self._late.foreign.log(view, wish.log_rank, wish.viewer)) is not None:
                self._deliver(read)
        elif (foreign := self._late.asked_foreign) is not None:
            foreign.forget_log()

    def _take_up(self, views: Iterable[AnyJob]) -> None:
        """Give jobs a new guardian that need one; where that fails, not again for a while."""
        for view in views:
            if not isinstance(view, JobView) or not view.needs_guardian:
                continue
            if time.monotonic() - self._tried.get(view.job, -TRY_AGAIN_S) < TRY_AGAIN_S:
                continue
            self._tried[view.job] = time.monotonic()
            from ddptop_runner.node import adoption

            with contextlib.suppress(DdptopError, OSError):
                adoption.adopt(view, os.environ)

    def look(self, wish: Wish) -> Snapshot:
        """Collect one snapshot of what the wish names."""
        own = self._slurm.as_queued(self._jobs.read())
        now = self._now()
        devices = self._look_at_devices(own, wish)
        found = None
        if wish.foreign:
            followed = wish.job if wish.follow else None
            found = self._late.foreign.read(devices.gpus, now, followed)
        views = sorted_jobs([*own, *(found.views if found is not None else ())])
        chosen = next((view for view in views if view.job == wish.job), None)
        detail = None if chosen is None else self._detail(chosen, wish, now)
        return Snapshot(
            taken_at=now,
            wish=wish,
            machine=self._machine(),
            jobs=tuple(views),
            unreadable=() if found is None else found.unreadable,
            damaged=tuple((error.job, str(error)) for error in self._jobs.damaged),
            devices=devices,
            owners=rank_of_pid(views),
            cpu_percent=self._cost(),
            detail=detail,
            **self._more(own, wish, now.timestamp(), devices, detail),
        )

    def _more(
        self,
        own: list[JobView],
        wish: Wish,
        now_s: float,
        devices: Devices,
        detail: JobDetail | None,
    ) -> dict[str, Any]:
        """What only some screens show."""
        more: dict[str, Any] = {}
        by_name = {view.job: view for view in own}
        view = by_name.get(wish.job or "")
        self._device_history.take(devices.gpus, now_s, wish.device)
        if wish.device_history_s is not None:
            more["device_history"] = self._device_history.read(own, wish, now_s)
        if wish.trends:
            more["trends"] = self._trends.read(own, now_s)
        if wish.slurm:
            more["slurm"] = self._slurm.read(own)
        if wish.compare:
            chosen = [by_name[name] for name in wish.compare if name in by_name]
            more["compared"] = self._late.compared.read(chosen, wish.compare_part)
        if view is None:
            return more
        if wish.rank is not None:
            with contextlib.suppress(DdptopError):  # the detail says the same of its history
                more["rank"] = self._late.ranks.read(view, wish, now_s)
        if wish.story:
            more["story"] = self._late.stories.read(view, wish.story_attempt)
        if wish.replay and detail is not None:
            more["replay"] = self._late.replays.read(view, wish.replay_at, detail.chart)
        return more

    def _cost(self) -> float | None:
        """CPU usage of this process over the last refreshes, in percent of one core."""
        self._spent.append((time.monotonic(), time.process_time()))
        (since_s, before_s), (now_s, cpu_s) = self._spent[0], self._spent[-1]
        return None if now_s - since_s < 1.0 else 100 * (cpu_s - before_s) / (now_s - since_s)

    def _look_at_devices(self, views: list[JobView], wish: Wish) -> Devices:
        if wish.devices:
            return self.devices.read(views)
        self.devices.pause()
        return Devices()

    def _detail(self, view: AnyJob, wish: Wish, now: dt.datetime) -> JobDetail:
        snapshot, trouble = view.snapshot, None
        chart = ChartData()
        events: tuple[Event, ...] = ()
        recent = Recent()
        if isinstance(view, ForeignView):
            recent = self._late.foreign.recent(view, now.timestamp())
            chart = self._late.foreign.chart(view, wish, now.timestamp())
            events = self._late.foreign.events(view)
        elif isinstance(view, JobView):
            try:
                chart = self._history.chart(view, wish, now.timestamp())
                events = self._history.events(view)
                recent = self._late.recent.read(view, now.timestamp())
            except DdptopError as error:
                trouble = str(error)
        return JobDetail(
            view=view,
            chart=chart,
            events=events,
            deviations={}
            if snapshot is None
            else deviations(snapshot.ranks, snapshot.gpus, snapshot.alerts if view.is_live else ()),
            cause_tail=self._cause_tail(view) if isinstance(view, JobView) else (),
            recent=recent,
            trouble=trouble,
        )

    def _cause_tail(self, view: JobView) -> tuple[str, ...]:
        """Last log lines of the rank that failed first, or of a command; read once per failure."""
        snapshot = view.snapshot
        if snapshot is None or snapshot.cause is None:
            return ()
        rank, attempt = snapshot.cause.rank, snapshot.attempt or 0
        if rank is None and not view.spec.is_command:
            return ()
        path = view.folder.log_file(attempt, LAUNCHER if rank is None else rank)
        if self._cause is None or self._cause[0] != path:
            from ddptop_runner.store.logs import last_words

            _, lines = last_words(view.folder, attempt, rank, CAUSE_LINES)
            self._cause = (path, tuple(lines))
        return self._cause[1]
