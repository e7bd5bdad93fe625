"""Builds snapshots from the history: for any moment, and for jobs with a damaged snapshot.

Figures come from the finest tier that goes back far enough: the last sample in a bucket, which all
ranks and devices share. States, failures, and checkpoints come from the events up to then. Anything
not recorded is None: a process's threads, clocks, a rank's position.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ddptop_runner.base.clock import utc_from_unix, utc_now
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.paths import LAUNCHER, RunFolder
from ddptop_runner.base.start import own_words
from ddptop_runner.host import procs
from ddptop_runner.job.event_log import Memory
from ddptop_runner.job.state import JobState, hosts_of_ranks
from ddptop_runner.job.transition import fold
from ddptop_runner.job.view import Samples, view
from ddptop_runner.judge.balance import rank_devices
from ddptop_runner.judge.hangs.verdict import pause_state
from ddptop_runner.model.events import JobEvent, of_row
from ddptop_runner.model.snapshot import (
    SILENT,
    Alert,
    Event,
    GpuSample,
    NodeSnapshot,
    Pause,
    ProcessId,
    RankSample,
)
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.model.words import LIVE_STATES, Base, RankState
from ddptop_runner.reading.progress.combine import of_moment
from ddptop_runner.store import logs
from ddptop_runner.store.history_reader import Figures, HistoryReader, LastStep, Rows
from ddptop_runner.store.history_schema import DEVICES_OF_A_HOST, device_number

PRINTED_BYTES = 64 * 1024
"""How much of a log, up to a moment, is read for the progress printed by then."""
PRINTING_RANKS = 4
"""Number of ranks whose logs are searched for it."""


class Moment(Base, frozen=True, kw_only=True):
    """A job at a past moment."""

    at: float
    """Unix time: the requested moment, clamped to the history."""
    width_s: int | None
    """The resolution: the length of the bucket in which the figures were sampled; None if nothing
    was recorded then."""
    snapshot: NodeSnapshot
    events: list[Event] = []
    """The events up to the end of that bucket, in order."""


class MomentReader:
    """Reads moments of one job. Used by one thread; events are read incrementally."""

    def __init__(self, folder: RunFolder, spec: JobSpec) -> None:
        self._folder = folder
        self._spec = spec
        self._events: list[Event] = []
        self._typed: list[JobEvent] = []

    @property
    def _reader(self) -> HistoryReader:
        """A reader of the history where it is now: a job's end may move it from a local disk."""
        return HistoryReader(self._folder.history_db)

    def span(self) -> tuple[float, float] | None:
        """Unix times of the first and last record; None without any."""
        span = self._reader.span()
        self._read_events()
        marks = [one.ts.timestamp() for one in self._events]
        if span is not None:
            marks += [span[0], span[1]]
        return (min(marks), max(marks)) if marks else None

    def events(self) -> Sequence[Event]:
        """All events, in order."""
        self._read_events()
        return [row for row in self._events if row.type != SILENT]

    def read(self, at: float, last: NodeSnapshot | None = None) -> Moment:
        """The job at a moment.

        Args:
            at: unix seconds.
            last: the job's last snapshot, for constants: names, sizes, places.

        Raises:
            DamagedFileError: the file is not a history.
            DdptopError: it stays locked.
        """
        self._read_events()
        figures = self._reader.figures_at(int(at))
        width_s = figures.width_s
        until = int(at) - int(at) % (width_s or 1) + (width_s or 1)
        end = utc_from_unix(until)
        before = [pair for pair in zip(self._events, self._typed, strict=True) if pair[0].ts < end]
        seen = fold((row.ts, event) for row, event in before)
        moment = utc_from_unix(min(at, until))
        samples = samples_of(self._spec, seen, figures, moment, last)
        snapshot = view(self._spec, seen, samples, moment)
        attempts = (row["attempt"] for row in figures.ranks.values())
        snapshot = msgspec.structs.replace(
            snapshot,
            attempt=next(attempts, None) if seen.attempt is None else seen.attempt,
            progress=of_moment(snapshot.run_step, last),
        )
        snapshot = self._as_printed(snapshot)
        return Moment(
            at=at,
            width_s=width_s,
            snapshot=snapshot,
            events=[row for row, _ in before if row.type != SILENT],
        )

    def _as_printed(self, snapshot: NodeSnapshot) -> NodeSnapshot:
        """The snapshot with what its first rank that prints any had printed by then.

        This includes the progress, unless that follows from the total of the run.
        """
        if snapshot.attempt is None or snapshot.state not in LIVE_STATES:
            return snapshot
        hints = None
        for rank in snapshot.ranks[: 1 if self._spec.is_command else PRINTING_RANKS]:
            if not rank.log_bytes:
                continue
            # not needed for other screens
            from ddptop_runner.reading.progress.from_text import TextProgress, of_command
            from ddptop_runner.reading.text.parser import LossParser

            hints = hints or of_command(self._spec.command())
            writer = LAUNCHER if self._spec.is_command else rank.rank
            file = self._folder.log_file(snapshot.attempt, writer)
            read = logs.tail_bytes(file, PRINTED_BYTES, rank.log_bytes)
            is_whole = len(read) == rank.log_bytes
            resumes = hints.resumes or snapshot.attempt > 0
            text = TextProgress(hints._replace(resumes=resumes), is_whole)
            parser = LossParser()
            for one in parser.feed(read if is_whole else read.partition(b"\n")[2]):
                text.add(one, None)
            progress = text.progress(snapshot.ts)
            if progress is None and not text.scalars:
                continue
            ranks = [
                msgspec.structs.replace(one, metrics=text.scalars) if one is rank else one
                for one in snapshot.ranks
            ]
            return msgspec.structs.replace(
                snapshot, ranks=ranks, progress=snapshot.progress or progress
            )
        return snapshot

    def recorded(self, points: int) -> list[tuple[int, int]]:
        """Spans with samples; see `HistoryReader.recorded`."""
        return self._reader.recorded(points)

    def _read_events(self) -> None:
        after = self._events[-1].seq if self._events else 0
        if new := self._reader.events(after, silent=True):
            self._events += new
            self._typed += map(of_row, new)


def rebuild(folder: RunFolder, spec: JobSpec, damage: str) -> NodeSnapshot:
    """A substitute for a damaged snapshot, from the job's log and processes.

    Args:
        folder: the job's run folder.
        spec: the job.
        damage: what is wrong with the file; becomes an alert.
    """
    rows: Sequence[Event] = ()
    try:
        rows = HistoryReader(folder.history_db).events(silent=True)
    except DdptopError:
        damage = f"{damage}; the history cannot be read either"
    now = utc_now()
    state = fold((row.ts, of_row(row)) for row in rows)
    snapshot = view(spec, state, samples_of(spec, state, Figures(), now, None), now)
    alert = Alert(id="damaged-file", severity="warning", message=damage, since=now)
    attempts = [one for one in (*logs.attempts(folder), state.attempt) if one is not None]
    processes = _processes(folder, spec.job_id)
    return msgspec.structs.replace(
        snapshot,
        ts=rows[-1].ts if rows else spec.created_at,
        attempt=max(attempts, default=None),
        guardian=processes.get("guardian"),
        supervisor=processes.get("supervisor"),
        alerts=[alert, *snapshot.alerts],
        memory=Memory(state=state, last_seq=rows[-1].seq if rows else 0).plain(),
    )


def _processes(folder: RunFolder, job_id: str) -> dict[str, ProcessId]:
    """The living guardian and supervisor, found by their command lines."""
    found = {}
    for pid in procs.pids_of_job(job_id):
        words = own_words(procs.argv(pid))
        if words[1:2] == [str(folder.path)]:
            found[words[0]] = procs.identify(pid)
    return found


def samples_of(
    spec: JobSpec, state: JobState, figures: Figures, at: dt.datetime, last: NodeSnapshot | None
) -> Samples:
    """The samples of a moment.

    Args:
        spec: the job.
        state: the job's state then, from its events.
        figures: what the history recorded.
        at: the moment.
        last: the job's last snapshot.
    """
    gpus = _gpus(spec, figures.gpus, last)
    alerts = state.alerts_at(at)
    if last is not None and last.attempt == state.attempt and last.ts >= at:
        raised = {alert.message for alert in alerts}
        alerts += [one for one in last.alerts if one.since <= at and one.message not in raised]
    pause, found = _pause(state, figures.last_step, at), state.suspected
    since = state.suspected_at
    if pause is not None and pause.state == "stalled" and found is not None and since is not None:
        alert = Alert(id="stalled", severity="warning", message=found.found, since=since)
        alerts.append(msgspec.structs.replace(alert, ranks=found.ranks))
    return Samples(
        started_at=spec.created_at if last is None else min(last.started_at, at),
        ranks=_with_devices(_ranks(spec, state, figures, last), gpus),
        gpus=gpus,
        attempts_began={} if last is None else last.attempts_began,
        total_steps=None if last is None else last.total_steps,
        pause=pause,
        source=None if last is None or not gpus else last.source,
        driver=None if last is None else last.driver,
        alerts=alerts,
    )


def _pause(state: JobState, last: LastStep | None, at: dt.datetime) -> Pause | None:
    """The pause at that moment, determined as for a live job."""
    if last is None or state.phase not in ("running", "hung"):
        return None
    since, suspected = utc_from_unix(last.since), state.suspected
    pause = pause_state(
        (at - since).total_seconds(),
        last.usual_s,
        stalled=state.suspected_at is not None and state.suspected_at > since,
        hung=state.phase == "hung",
    )
    if pause is None:
        return None
    why = None if suspected is None or pause == "no_step" else suspected.reason
    return Pause(state=pause, since=since, reason=why)


def _ranks(
    spec: JobSpec, state: JobState, figures: Figures, last: NodeSnapshot | None
) -> list[RankSample]:
    has_places = last is not None and (not last.set_aside or last.attempt == state.attempt)
    known = {rank.rank: rank for rank in last.ranks} if last is not None and has_places else {}
    if spec.placement is not None:
        known = _moved(spec, state, known)
    numbers = sorted({*state.ranks, *figures.ranks})
    return [_rank(spec, number, state, figures, known.get(number)) for number in numbers]


def _moved(
    spec: JobSpec, state: JobState, known: Mapping[int, RankSample]
) -> dict[int, RankSample]:
    """The ranks with their nodes; each attempt distributes them over its nodes again."""
    assert spec.placement is not None
    devices = {node.host: node.devices for node in spec.placement.nodes}
    found, counts = dict(known), Counter[str]()
    for number, host in hosts_of_ranks(state, spec).items():
        local, counts[host] = counts[host], counts[host] + 1
        there = known.get(number)
        if there is None or there.host != host:
            own = devices.get(host) or []
            found[number] = RankSample(
                rank=number,
                local_rank=local,
                host=host,
                gpu=own[local].index if local < len(own) else None,
            )
    return found


def _rank(
    spec: JobSpec, number: int, state: JobState, figures: Figures, last: RankSample | None
) -> RankSample:
    row: Mapping[str, Any] = figures.ranks.get(number, {})
    if state.attempt is not None and row.get("attempt") != state.attempt:
        row = {}
    loss, bad = row.get("loss_last"), bool(row.get("loss_nonfinite"))
    step = row.get("step")
    is_known = number in state.ranks or bool(row)
    is_running = bool(step) or state.phase not in ("queued", "starting")
    working: RankState = "running" if is_running else "starting"
    return RankSample(
        rank=number,
        local_rank=number if last is None else last.local_rank,
        host=spec.host if last is None else last.host,
        gpu=None if last is None else last.gpu,
        gpus=[] if last is None else last.gpus,
        cuda_device=None if last is None else last.cuda_device,
        state=working if is_known else "unknown",
        step=step,
        step_source=None if step is None or last is None else last.step_source,
        loss=loss,
        loss_step=step if loss is not None else None,
        loss_state="ok" if loss is not None else ("nan" if bad else None),
        loss_source=None if loss is None or last is None else last.loss_source,
        loss_min=row.get("loss_min"),
        loss_max=row.get("loss_max"),
        step_time_s=row.get("step_time_s_last"),
        steps_per_s=_rate(row, figures.earlier.get(number)),
        data_wait_s=row.get("data_wait_s_last"),
        sync_s=row.get("sync_s"),
        compute_s=row.get("compute_s"),
        cpu_percent=row.get("cpu_percent_last"),
        rss_bytes=row.get("rss_bytes_last"),
        log_bytes=row.get("log_bytes"),
        frameworks=[] if last is None else last.frameworks,
        rank_source=None if last is None else last.rank_source,
    )


def _rate(row: Mapping[str, Any], earlier: Mapping[str, Any] | None) -> float | None:
    """Steps per second between two rows of one attempt."""
    if not row or not earlier or row["attempt"] != earlier["attempt"]:
        return None
    steps = (earlier["step"], row["step"])
    if None in steps or row["t"] <= earlier["t"]:
        return None
    return float(max(0, steps[1] - steps[0]) / (row["t"] - earlier["t"]))


_FIXED = (
    *("index", "uuid", "host", "name", "pci_bus_id", "parent_uuid", "mig_instances"),
    *("mem_total_bytes", "mem_reserved_bytes", "temperature_slowdown_c", "power_limit_w"),
    "sm_clock_max_mhz",
)
"""A device's constant properties."""


def _gpus(spec: JobSpec, rows: Rows, last: NodeSnapshot | None) -> list[GpuSample]:
    hosts = spec.hosts
    gpus = [] if last is None else last.gpus
    known = {device_number(hosts, gpu.host, gpu.index): gpu for gpu in gpus}
    found = []
    for number in sorted({*known, *rows}):
        row = rows.get(number, {})
        fixed = known.get(number)
        values = {name: getattr(fixed, name) for name in _FIXED if fixed is not None}
        if fixed is None:
            place, values["index"] = divmod(number, DEVICES_OF_A_HOST)
            values["host"] = hosts[place] if place < len(hosts) else None
        found.append(
            GpuSample(
                **values,
                util_percent=row.get("util_percent_last"),
                mem_used_bytes=row.get("mem_used_bytes_last"),
                temperature_c=row.get("temperature_c_last"),
                power_w=row.get("power_w_last"),
            )
        )
    return found


def _with_devices(ranks: Sequence[RankSample], gpus: Sequence[GpuSample]) -> list[RankSample]:
    """The ranks with their device's figures, unless another rank is on the same device."""
    own = rank_devices.own_devices(ranks, gpus)
    shared = Counter((rank.host, rank.gpu) for rank in ranks)
    return [
        msgspec.structs.replace(
            rank,
            gpu_util_percent=gpu.util_percent,
            gpu_mem_used_bytes=gpu.mem_used_bytes,
            gpu_power_w=gpu.power_w,
        )
        if (gpu := own.get(rank.rank)) is not None and shared[rank.host, rank.gpu] == 1
        else rank
        for rank in ranks
    ]
