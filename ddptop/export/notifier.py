"""The notifier of one job: a process of its own, which outlives everything else in the job.

The guardian starts it, and starts it again if it dies. It follows the job's events, never writes to
the job's files but its own `notify-state.json`, and exits once the job is over and every receiver
has its messages, or after a day.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ddptop.export.incidents import Incidents, Notice
from ddptop.export.outbox import KEPT_S, Queue, is_quiet
from ddptop.export.send import COMMAND_TIMEOUT_S, NEVER, SENT, Parcel
from ddptop.export.settings import Settings, masked, read_settings, read_urls
from ddptop.job.record import Job, own_job
from ddptop.sources.hooks import FILE_BYTES, NOTIFIER_FILE
from ddptop_runner.base import bounded, programs
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.exit_status import status_in_words
from ddptop_runner.base.files import lock, write_atomic
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.base.start import PRIVATE, own_command
from ddptop_runner.job.registry import read_job
from ddptop_runner.model.snapshot import Event
from ddptop_runner.store.history_reader import HistoryReader
from ddptop_runner.store.log_clean import sanitized_line

if TYPE_CHECKING:
    from ddptop.sources.history import JobHistory

EVERY_S = 5.0
HOOK_TIMEOUT_S = 60.0
SEND_TIMEOUT_S = COMMAND_TIMEOUT_S + 10.0
CURVE_S = 6 * 3600.0
MOST_HOOKS = 50
"""The latest runs of hooks that are kept."""
OUTPUT_CHARS = 500
"""Of the output of a hook."""
REPORT_CHARS = 32_000
"""Of a report in Markdown."""

Send = Callable[[Parcel], int]


class State(msgspec.Struct):
    """What the next notifier of the job continues with."""

    incidents: Incidents = msgspec.field(default_factory=Incidents)
    queues: dict[str, Queue] = {}
    """By a hash of the receiver's URL, so that no secret is stored twice."""
    hooks: list[Event] = []
    """The latest ones, which the story shows."""


def send_apart(parcel: Parcel) -> int:
    """Send in a process of its own, which is killed if it takes too long."""
    argv = own_command("ddptop.export.send")
    try:
        done = programs.run(argv, SEND_TIMEOUT_S, data=msgspec.json.encode(parcel))
    except (OSError, subprocess.TimeoutExpired):
        return 1
    return done.returncode


class Notifier:
    """Follows one job.

    Args:
        folder: the job's run folder; it is renamed if its name is used again.
        settings: what config.toml says.
        send: sends a message; returns a status of `send`.
    """

    def __init__(self, folder: Path, settings: Settings, send: Send = send_apart) -> None:
        self._folder = RunFolder(folder)
        self._settings = settings
        self._send = send
        self._state = self._read_state()
        self.ended_at_s: float | None = None
        """Unix time since which the job is not alive."""

    def look(self, folder: Path, now_s: float) -> bool:
        """Fold in new events and send what is due; returns whether there is nothing left to do.

        Raises:
            DdptopError: the job cannot be read now.
        """
        self._folder = RunFolder(folder)
        job = own_job(read_job(self._folder))
        incidents, now = self._state.incidents, dt.datetime.fromtimestamp(now_s, dt.timezone.utc)
        reader = HistoryReader(self._folder.history_db)
        rows = reader.events(after_seq=incidents.last_seq, silent=True)
        notices = [*incidents.fold(rows), *incidents.due(now)]
        if job.state == "lost" and not job.in_slurm_queue:
            notices += incidents.gone(now)
        wanted = [one for one in notices if one.kind not in self._settings.notify.off]
        receivers = self._receivers()
        for url in receivers:
            for notice in wanted:
                self._queue(url).add(notice)
        for notice in notices:
            self._run_hook(notice)
        if rows or notices:
            self._keep()
        sent = [self._deliver(url, now_s) for url in receivers]
        if any(sent):
            self._keep()
        self.ended_at_s = None if job.is_live else self.ended_at_s or now_s
        is_ended = not job.is_live and incidents.is_ended
        return is_ended and not any(self._queue(url).waiting for url in receivers)

    @property
    def _state_file(self) -> Path:
        return self._folder.path / NOTIFIER_FILE

    def _receivers(self) -> list[str]:
        return read_urls(self._folder.notify_file)

    def _queue(self, url: str) -> Queue:
        key = hashlib.sha256(url.encode()).hexdigest()[:16]
        return self._state.queues.setdefault(key, Queue())

    def _deliver(self, url: str, now_s: float) -> bool:
        """Send what is due to one receiver; returns whether its queue has changed."""
        queue, table = self._queue(url), self._settings.notify
        local = dt.datetime.fromtimestamp(now_s).time()
        quiet = is_quiet(table.quiet(), local)
        notices = queue.to_send(now_s, table.most_per_hour, is_quiet=quiet)
        if not notices:
            return False
        status = self._send(self._parcel(url, notices, queue.dropped))
        if status == SENT:
            queue.sent(notices, now_s)
            queue.dropped = 0
        elif status == NEVER:
            queue.sent(notices, now_s)
            _log(f"a message to {masked(url)} was refused")
        else:
            queue.failed(now_s)
            if queue.failures == 1:
                _log(f"a message to {masked(url)} cannot be sent now; retrying for a day")
        return True

    def _parcel(self, url: str, notices: list[Notice], dropped: int = 0) -> Parcel:
        job = own_job(read_job(self._folder))
        from ddptop.export import message  # these load Textual, which only messages need
        from ddptop.sources.history import JobHistory
        from ddptop.sources.past import read_story

        history = JobHistory(self._folder.history_db)
        attempts = read_story(job, history).attempts
        losses: list[float | None] = []
        with contextlib.suppress(DdptopError):
            until = notices[-1].at.timestamp()
            series = history.reader.losses(until - CURVE_S, until, message.CURVE_POINTS)
            losses = [] if series is None else list(series.mean)
        text, page = (
            self._report(job, history) if any(one.is_end for one in notices) else (None, "")
        )
        return Parcel(
            url=url,
            title=message.title(job, notices),
            body=message.body(job, notices, attempts, losses, dropped=dropped),
            data=message.data(job, notices, text),
            page=page,
        )

    def _report(self, job: Job, history: JobHistory) -> tuple[str | None, str]:
        """The report in Markdown and in HTML."""
        from ddptop.export import report, report_page

        try:
            found, costs = report.read_report(job, history), self._settings.report
            text = report_page.markdown(found, costs)[:REPORT_CHARS]
            return text, report_page.page(found, costs)
        except Exception as error:  # the message matters more
            _log(f"no report: {error!r}")
            return None, ""

    def _run_hook(self, notice: Notice) -> None:
        command = self._settings.hooks.get(f"on_{notice.kind}")
        if command is None or notice.is_over:
            return
        data = msgspec.json.encode(self._parcel("", [notice]).data)
        try:  # the end of stderr is kept
            done = programs.run(["sh", "-c", f"exec >&2\n{command}"], HOOK_TIMEOUT_S, data=data)
            status, output = status_in_words(done.returncode), done.stderr
        except OSError as error:
            status, output = f"could not be run ({error.strerror})", ""
        except subprocess.TimeoutExpired:
            status, output = f"was killed after {HOOK_TIMEOUT_S:.0f} s", ""
        output = sanitized_line(output)[-OUTPUT_CHARS:]
        text = f"hook on_{notice.kind} {status}{': ' * bool(output)}{output}"
        now = utc_now()
        ran = Event(ts=now, type="hook", attempt=notice.attempt, message=text)
        self._state.hooks = [*self._state.hooks, ran][-MOST_HOOKS:]

    def _read_state(self) -> State:
        try:
            return msgspec.json.decode(bounded.read_bytes(self._state_file, FILE_BYTES), type=State)
        except (OSError, msgspec.MsgspecError, RecursionError):
            return State()

    def _keep(self) -> None:
        with contextlib.suppress(OSError):  # a full disk must not keep messages from leaving
            write_atomic(self._state_file, msgspec.json.encode(self._state))


def _log(text: str) -> None:
    sys.stderr.write(f"ddptop: {text}\n")
    sys.stderr.flush()


def main(run_dir: str) -> int:
    """Follow the job of that run folder until there is nothing left to send."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.umask(PRIVATE)
    os.chdir(run_dir)
    lock(Path("notifier.lock"), math.inf)  # of a guardian that died, one may still be at work
    notifier = Notifier(Path.cwd(), _settings())
    while True:
        try:
            here = Path.cwd()
        except FileNotFoundError:
            return 0  # the job was deleted
        try:
            if notifier.look(here, time.time()):
                return 0
        except DdptopError as error:
            _log(str(error))
        ended_at_s = notifier.ended_at_s
        if ended_at_s is not None and time.time() - ended_at_s > KEPT_S:
            return 0
        time.sleep(EVERY_S)


def _settings() -> Settings:
    try:
        return read_settings()
    except DdptopError as error:  # launch has warned of it
        _log(str(error))
        return Settings()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
