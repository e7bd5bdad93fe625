"""The thread that reads everything the screen on top shows.

It answers that screen's Query on request and delivers the frozen Answer as a message. It never
touches a widget: a slow disk delays the figures, never the keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace
from textual.message import Message

from ddptop.job.record import Job, own_job, own_view
from ddptop.job.series import Machine
from ddptop.logs.messages import CollectorFailed
from ddptop.sources.devices import DeviceHistorySource, DeviceSource
from ddptop.sources.overview import SlurmSource, read_machine
from ddptop.sources.query import Answer, Answered, Look, Query, Sources
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.job.registry import JobSource, rank_of_pid

if TYPE_CHECKING:
    from ddptop_runner.foreign.types import ForeignJob, Unreadable

JOIN_S = 2.0
TRY_AGAIN_S = 30.0
"""How long to wait before trying to adopt a job again."""
DRAWN_S = 1.0
"""How long to wait at most until the first answer is drawn."""


class Collector:
    """Answers the screen on top on request; merges requests that arrive while it reads."""

    def __init__(
        self,
        deliver: Callable[[Message], object],
        now: Callable[[], dt.datetime] = utc_now,
        machine: Callable[[], Machine] = read_machine,
        watched: ForeignJob | None = None,
        *,
        adopts: bool = False,
    ) -> None:
        """Create a collector; `start` starts its thread.

        Args:
            deliver: where messages go; called in the collector's thread.
            now: the clock.
            machine: reads the machine's figures.
            watched: the foreign job that the user selected, if any.
            adopts: whether to adopt jobs whose guardian was killed.
        """
        self._adopts = adopts
        self._adoption_tried_at: dict[str, float] = {}
        self.query = Query()
        """The query of the screen on top; the app replaces it as a whole."""
        self._deliver = deliver
        self._now = now
        self._machine = machine
        self._jobs = JobSource()
        self._sources = Sources()
        self._shows_own_first = watched is None
        self.devices = DeviceSource()
        self._asked = threading.Event()
        self._drawn = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread, which collects immediately. Device samplers run in `loop`."""
        self.devices.loop = loop
        self._asked.set()
        self._thread.start()

    def ask(self) -> None:
        """Answer the query again as soon as possible."""
        self._asked.set()

    def drawn(self) -> None:
        """Go on with what takes longer: the first answer is on the screen."""
        self._drawn.set()

    def stopping(self, job: str, words: str | None) -> None:
        """Record which signals this viewer is sending to a foreign job; None: it is done."""
        if words is None:
            self._sources.foreign.stopping.pop(job, None)
        else:
            self._sources.foreign.stopping[job] = words

    def ended(self, job: str, signal: str) -> None:
        """Record that a signal sent from this viewer ended a foreign job."""
        self._sources.foreign.ended_by[job] = signal

    def stop(self) -> None:
        """Stop the thread; give up waiting after two seconds in case a disk hangs."""
        self._stopping = True
        self._asked.set()
        self._drawn.set()
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
                if not self._stopping:
                    self._answer_and_deliver(self.query)
        except Exception as error:  # a defect here must end the program, not freeze its figures
            self._deliver(CollectorFailed(error))
        finally:
            if (foreign := self._sources.asked_foreign) is not None:
                foreign.close()

    def _show_own_first(self, query: Query) -> None:
        """Deliver ddptop's own jobs before anything that takes longer to load or find.

        Waits until they are drawn: one thread at a time runs Python.
        """
        self._shows_own_first = False
        if query.foreign and query.followed is None:
            answer = self.answer(replace(query, foreign=False))
            if answer.look.jobs:
                self._deliver(Answered(answer))
                self._drawn.wait(DRAWN_S)

    def _answer_and_deliver(self, query: Query) -> None:
        answer = self.answer(query)
        self._deliver(Answered(answer))
        if self._adopts:
            self._adopt(answer.look.jobs)
        view, followed = answer.view, query.followed
        if view is not None and view.is_foreign and followed is not None:
            if (read := self._sources.foreign.log(view, followed.rank, query.viewer)) is not None:
                self._deliver(read)
        elif (foreign := self._sources.asked_foreign) is not None:
            foreign.forget_log()

    def _adopt(self, jobs: Iterable[Job]) -> None:
        """Adopt jobs that need a guardian; after a failure, wait before the next try."""
        for job in jobs:
            tried_s = self._adoption_tried_at.get(job.name, -TRY_AGAIN_S)
            if not job.needs_guardian or time.monotonic() - tried_s < TRY_AGAIN_S:
                continue
            self._adoption_tried_at[job.name] = time.monotonic()
            from ddptop_runner.node import adoption

            with contextlib.suppress(DdptopError, OSError):
                adoption.adopt(own_view(job), os.environ)

    def answer(self, query: Query) -> Answer:
        """Read the host and its jobs, then let the query read the rest from its sources."""
        views = self._sources[SlurmSource].as_queued(self._jobs.read())
        own = [own_job(view) for view in views]
        now = self._now()
        devices = self.devices.read(own) if query.devices else self.devices.pause()
        self._sources[DeviceHistorySource].take(devices.gpus, now.timestamp())
        jobs, owners = own, rank_of_pid(views)
        unreadable: tuple[Unreadable, ...] = ()
        if query.foreign:
            followed = None if query.followed is None else query.followed.job
            foreign, unreadable, theirs = self._sources.foreign.read(devices.gpus, now, followed)
            jobs, owners = [*own, *foreign], owners | theirs
        jobs.sort(key=live_first)
        look = Look(
            taken_at=now,
            machine=self._machine(),
            jobs=tuple(jobs),
            unreadable=unreadable,
            damaged=tuple((error.job, str(error)) for error in self._jobs.damaged),
            devices=devices,
            owners=owners,
        )
        return query.answer(look, self._sources)


def live_first(job: Job) -> tuple[bool, float]:
    """The order of a look's jobs: live ones, then ended ones; the newest of each first."""
    return not job.is_live, -(job.ended_at or job.created_at).timestamp()
