"""One thread that looks at everything on the screen, when it is asked to.

It has the Query of the screen on top answered, and delivers the frozen Answer as a message. It
never touches a widget; a slow disk makes the figures old, and never the keys slow.
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
from typing import TYPE_CHECKING

from msgspec.structs import replace
from textual.message import Message

from ddptop.logs.messages import CollectorFailed
from ddptop.sources.chart import stamp
from ddptop.sources.device_history import DeviceHistorySource
from ddptop.sources.devices import DeviceSource
from ddptop.sources.machine import read_machine
from ddptop.sources.overview import SlurmSource
from ddptop.sources.query import Answer, Answered, Devices, Look, Query, Sources
from ddptop.view.listed import sorted_jobs
from ddptop.view.shown import Machine
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import DamagedFileError, DdptopError
from ddptop_runner.base.paths import RunFolder, runs_dir
from ddptop_runner.foreign.types import ForeignView
from ddptop_runner.job.registry import (
    AnyJob,
    JobView,
    rank_of_pid,
    read_job,
    require_own_name,
)

if TYPE_CHECKING:
    from ddptop_runner.foreign.types import ForeignJob

JOIN_S = 2.0
TRY_AGAIN_S = 30.0
"""How long to wait before trying to adopt a job again."""
COST_LOOKS = 10
"""The viewer's own CPU usage is averaged over this many refreshes."""


class Collector:
    """Answers the screen on top on request; requests while it reads are merged into one."""

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
        self.query = Query()
        """What the screen on top asks; the app replaces it as a whole."""
        self._deliver = deliver
        self._now = now
        self._machine = machine
        self._jobs = JobSource()
        self._sources = Sources(watched)
        self._shows_own_first = watched is None
        self._spent: deque[tuple[float, float]] = deque(maxlen=COST_LOOKS)
        self.devices = DeviceSource()
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
            self._sources.foreign.stopping.pop(job, None)
        else:
            self._sources.foreign.stopping[job] = words

    def ended(self, job: str, signal: str) -> None:
        """Record that a foreign job ended by a signal sent from this viewer."""
        self._sources.foreign.ended_by[job] = signal

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
                    self._show_own_first(self.query)
                self._answer_and_deliver(self.query)
        except Exception as error:  # a defect here must end the program, not freeze its figures
            self._deliver(CollectorFailed(error))
        finally:
            if (foreign := self._sources.asked_foreign) is not None:
                foreign.close()

    def _show_own_first(self, query: Query) -> None:
        """Deliver ddptop's own jobs before all that takes longer to load and to find."""
        self._shows_own_first = False
        if query.followed is None:
            answer = self.answer(replace(query, foreign=False))
            if answer.look.jobs:
                self._deliver(Answered(answer))

    def _answer_and_deliver(self, query: Query) -> None:
        answer = self.answer(query)
        self._deliver(Answered(answer))
        if self._takes_up:
            self._take_up(answer.look.jobs)
        view, followed = answer.view, query.followed
        if isinstance(view, ForeignView) and followed is not None:
            if (read := self._sources.foreign.log(view, followed.rank, query.viewer)) is not None:
                self._deliver(read)
        elif (foreign := self._sources.asked_foreign) is not None:
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

    def answer(self, query: Query) -> Answer:
        """Look at the host and its jobs, and have the sources of the query read the rest."""
        own = self._sources[SlurmSource].as_queued(self._jobs.read())
        now = self._now()
        devices = self._look_at_devices(own, query)
        self._sources[DeviceHistorySource].take(devices.gpus, now.timestamp())
        found = None
        if query.foreign:
            followed = None if query.followed is None else query.followed.job
            found = self._sources.foreign.read(devices.gpus, now, followed)
        views = sorted_jobs([*own, *(found.views if found is not None else ())])
        look = Look(
            taken_at=now,
            machine=self._machine(),
            jobs=tuple(views),
            unreadable=() if found is None else found.unreadable,
            damaged=tuple((error.job, str(error)) for error in self._jobs.damaged),
            devices=devices,
            owners=rank_of_pid(views),
            cpu_percent=self._cost(),
        )
        return query.answer(look, self._sources)

    def _cost(self) -> float | None:
        """CPU usage of this process over the last refreshes, in percent of one core."""
        self._spent.append((time.monotonic(), time.process_time()))
        (since_s, before_s), (now_s, cpu_s) = self._spent[0], self._spent[-1]
        return None if now_s - since_s < 1.0 else 100 * (cpu_s - before_s) / (now_s - since_s)

    def _look_at_devices(self, views: list[JobView], query: Query) -> Devices:
        if query.devices:
            return self.devices.read(views)
        self.devices.pause()
        return Devices()


class JobSource:
    """All jobs; one that has ended is not read again until its files change."""

    def __init__(self) -> None:
        self._ended: dict[Path, tuple[tuple[int | None, int | None], JobView]] = {}
        self.damaged: list[DamagedFileError] = []
        """Why run folders could not be read at the last look."""

    def read(self) -> list[JobView]:
        """Every readable job, with its state already checked."""
        self.damaged = []
        try:
            paths = list(runs_dir().iterdir())
        except OSError:
            return []
        return [view for path in paths if (view := self._read_one(path)) is not None]

    def _read_one(self, path: Path) -> JobView | None:
        folder = RunFolder(path)
        if (known := self._ended.get(path)) is not None:
            if known[0] == self._key(folder, known[1]):
                return known[1]
            del self._ended[path]
        if stamp(folder.spec_file) is None:  # there is none, or it is somebody else's
            return None
        try:
            view = require_own_name(read_job(folder))
        except DamagedFileError as error:
            if stamp(folder.spec_file) is not None:  # it was not removed this moment
                error.job = folder.job
                self.damaged.append(error)
            return None
        key = self._key(folder, view)
        # what looks at files and processes is asked here, once: the properties remember it
        _ = view.user
        if not view.is_live and view.guarded is not True:
            self._ended[path] = (key, view)
        return view

    @staticmethod
    def _key(folder: RunFolder, view: JobView) -> tuple[int | None, int | None]:
        return stamp(folder.spec_file), stamp(folder.node_file(view.spec.host))
