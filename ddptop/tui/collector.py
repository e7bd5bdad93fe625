"""One thread that looks at everything on the screen, when it is asked to.

It asks the sources, builds one frozen Snapshot and delivers it as a message. It never touches a
widget; a slow disk makes the figures old, and never the keys slow.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
from collections.abc import Callable
from pathlib import Path

from textual.message import Message

from ddptop.tui.messages import CollectorFailed, SnapshotReady
from ddptop.tui.render.series import ChartData
from ddptop.tui.snapshot import Devices, JobDetail, Machine, Snapshot, Wish
from ddptop.tui.sources import (
    DeviceSource,
    HistorySource,
    JobSource,
    LogSource,
    read_machine,
)
from ddptop_runner.clock import utc_now
from ddptop_runner.errors import DdptopError
from ddptop_runner.imbalance import deviation
from ddptop_runner.logs import last_lines
from ddptop_runner.model import Event
from ddptop_runner.registry import JobView

JOIN_S = 2.0
CAUSE_LINES = 12


class Collector:
    """Looks when asked; what is asked for meanwhile is one more look, not many."""

    def __init__(
        self,
        deliver: Callable[[Message], object],
        now: Callable[[], dt.datetime] = utc_now,
        machine: Callable[[], Machine] = read_machine,
    ) -> None:
        """Args: where messages go, the clock, and the reader of the machine's own figures."""
        self.wish = Wish()
        """What to look at; replaced as a whole by the screens."""
        self._deliver = deliver
        self._now = now
        self._machine = machine
        self._jobs = JobSource()
        self._history = HistorySource()
        self._log = LogSource()
        self.devices = DeviceSource()
        self._cause: tuple[Path, tuple[str, ...]] | None = None
        self._asked = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread; it looks once at once. Samplers of devices run in `loop`."""
        self.devices.loop = loop
        self._asked.set()
        self._thread.start()

    def ask(self) -> None:
        """Look again as soon as possible."""
        self._asked.set()

    def stop(self) -> None:
        """End the thread, waiting two seconds at most: a hung disk must not hold the person."""
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
                self._look_and_deliver(self.wish)
        except Exception as error:  # a defect here must end the program, not freeze its figures
            self._deliver(CollectorFailed(error))
        finally:
            self._log.close()

    def _look_and_deliver(self, wish: Wish) -> None:
        snapshot = self.look(wish)
        self._deliver(SnapshotReady(snapshot))
        if snapshot.detail is not None and wish.log_rank is not None:
            read = self._log.read(snapshot.detail.view, wish.log_rank, wish.viewer)
            if read is not None:
                self._deliver(read)
        else:
            self._log.close()

    def look(self, wish: Wish) -> Snapshot:
        """One look at what the wish names."""
        views = self._jobs.read()
        now = self._now()
        chosen = next((view for view in views if view.job == wish.job), None)
        return Snapshot(
            taken_at=now,
            wish=wish,
            machine=self._machine(),
            jobs=tuple(views),
            devices=self._look_at_devices(views, wish),
            detail=None if chosen is None else self._detail(chosen, wish, now),
        )

    def _look_at_devices(self, views: list[JobView], wish: Wish) -> Devices:
        if wish.devices:
            return self.devices.read(views)
        self.devices.pause()
        return Devices()

    def _detail(self, view: JobView, wish: Wish, now: dt.datetime) -> JobDetail:
        ranks = view.snapshot.ranks if view.snapshot is not None else []
        trouble = None
        chart = ChartData()
        events: tuple[Event, ...] = ()
        try:
            chart = self._history.chart(view, wish, now.timestamp())
            events = self._history.events(view)
        except DdptopError as error:
            trouble = str(error)
        return JobDetail(
            view=view,
            chart=chart,
            events=events,
            loss_deviation=_deviations({r.rank: r.loss for r in ranks}),
            time_deviation=_deviations({r.rank: r.step_time_s for r in ranks}),
            cause_tail=self._cause_tail(view),
            trouble=trouble,
        )

    def _cause_tail(self, view: JobView) -> tuple[str, ...]:
        """Last lines of the rank that failed first; read once per failure."""
        snapshot = view.snapshot
        if snapshot is None or snapshot.cause is None or snapshot.cause.rank is None:
            return ()
        path = view.folder.log_file(snapshot.attempt or 0, snapshot.cause.rank)
        if self._cause is None or self._cause[0] != path:
            self._cause = (path, tuple(last_lines(path, CAUSE_LINES)))
        return self._cause[1]


def _deviations(values: dict[int, float | None]) -> dict[int, float | None]:
    """How far each rank is from the median of all."""
    return {rank: deviation(value, values.values()) for rank, value in values.items()}
