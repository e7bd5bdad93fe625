"""Headers and panels as lines: values in, lines of a given width out."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence

from ddptop.tui.render import units, words
from ddptop.tui.render.bars import bar
from ddptop.tui.render.launched import common_parts
from ddptop.tui.render.progress import progress_line, progress_of, step_text
from ddptop.tui.render.text import (
    Line,
    clip,
    field,
    fill,
    fit,
    join,
    line,
    spread,
    width,
    wrap,
)
from ddptop.tui.snapshot import Machine
from ddptop_runner import registry
from ddptop_runner.model import Alert, Cause, NodeSnapshot, RankSample
from ddptop_runner.registry import AnyJob, JobView

HOT_C = 85.0
"""From here on a temperature is drawn as a warning."""

ALERT_ROWS = 3
"""An alert is wrapped over so many lines at most."""

FULL_SHARE = 0.95
"""From here on a memory bar is drawn as a warning."""


def elapsed_s(view: AnyJob, now: dt.datetime) -> float | None:
    """How long the job has run, or ran."""
    return None if view.snapshot is None else registry.elapsed_s(view, view.snapshot, now)


def median_loss(snapshot: NodeSnapshot) -> tuple[float | None, str | None]:
    """The median of the ranks' losses, or the state of one that is not finite."""
    for rank in snapshot.ranks:
        if rank.loss_state in ("nan", "inf"):
            return None, rank.loss_state
    known = sorted(rank.loss for rank in snapshot.ranks if rank.loss is not None)
    if not known:
        return None, None
    middle = len(known) // 2
    return (known[middle] if len(known) % 2 else (known[middle - 1] + known[middle]) / 2), "ok"


def steps_per_s(ranks: Sequence[RankSample]) -> float | None:
    """The slowest rank's pace: the others wait for it."""
    known = [rank.steps_per_s for rank in ranks if rank.steps_per_s is not None]
    return min(known) if known else None


def restarts_text(snapshot: NodeSnapshot) -> str:
    """`1 used, 2 left`."""
    return f"{snapshot.restarts_used} used, {snapshot.restarts_left} left"


def title_line(
    name: str, right: Line, cells: int, about: str = "", *, readonly: bool = False
) -> Line:
    """The top row: program, job and what is to be said about it, and where one is."""
    left = line((" ddptop", "title"), ("  ", ""))
    if readonly:
        left = (*left, ("read-only", "warn"), ("  ", ""))
    left = (*left, (name, "strong"))
    if about:
        left = (*left, (f"   {about}", "dim"))
    return fit(spread(left, (*right, (" ", "")), cells), cells)


def header_lines(view: AnyJob, now: dt.datetime, cells: int) -> list[Line]:
    """Three rows: state and pace, a bar of the progress, attempt and guard."""
    snapshot, state = view.snapshot, words.job_state(view.state)
    if snapshot is None:
        text = "no snapshot yet: its processes are coming up"
        if not view.is_live:
            log = f"; see {view.folder.supervisor_log}" if isinstance(view, JobView) else ""
            text = f"it never came up{log}"
        return [fit(line(" ", state, "   ", (text, "dim")), cells), (), ()]
    if view.state == "queued":
        return _queued_lines(view, snapshot, now, cells)
    live = view.is_live
    gap = "   " if cells >= 100 else "  "
    progress = progress_of(view)
    first = [line(" ", state), field("step", step_text(snapshot, progress))]
    if live:
        first.append(field("pace", units.rate(steps_per_s(snapshot.ranks))))
        first.append(field("ETA", units.duration(progress.eta_s if progress else None)))
    first.append(join([loss_field(snapshot), from_log(snapshot)], " "))
    elapsed = field("elapsed", units.duration(elapsed_s(view, now)))
    second: list[Line] = []
    if width(join([*first, elapsed], gap)) < cells:
        first.append(elapsed)
    else:
        second.append(elapsed)
    bar_line = restart_line(snapshot, now) if view.state == "restarting" else ()
    return [
        fit(fill(first, cells, gap), cells),
        fit(bar_line, cells) if bar_line else progress_line(progress, live, cells),
        fit(fill(_indented([*second, *_facts(view, snapshot, now)]), cells, gap), cells),
    ]


def restart_line(snapshot: NodeSnapshot, now: dt.datetime) -> Line:
    """When the next attempt begins, and why then; empty where that is not known."""
    wait_s = 0.0
    if snapshot.restart_at is not None:
        wait_s = (snapshot.restart_at - now).total_seconds()
    attempt = "the next attempt" if snapshot.attempt is None else f"attempt {snapshot.attempt + 1}"
    when = f"in {units.brief_duration(wait_s)}" if wait_s >= 1 else "now"
    why = (f"  {snapshot.policy}", "dim") if snapshot.policy else ("", "")
    return line(" ", (f"↻ {attempt} starts {when}", "warn"), why)


def checkpoint_field(snapshot: NodeSnapshot, now: dt.datetime) -> Line:
    """`checkpoint step 120, 4 s ago`; empty where none was seen."""
    saved = snapshot.checkpoint
    if saved is None:
        return ()
    step = saved.step if saved.global_step is None else saved.global_step
    ago = f"{units.brief_duration(max(0.0, (now - saved.at).total_seconds()))} ago"
    return field("checkpoint", ago if step is None else f"step {units.count(step)}, {ago}", "")


def _queued_lines(view: AnyJob, snapshot: NodeSnapshot, now: dt.datetime, cells: int) -> list[Line]:
    """Of a job without a step to tell of: since when it waits; for what, an alert says."""
    since = next((a.since for a in snapshot.alerts if a.id == "queued"), snapshot.started_at)
    waited = field("waited", units.duration((now - since).total_seconds()))
    facts = _indented(_facts(view, snapshot, now))
    return [
        fit(join([line(" ", words.job_state("queued")), waited], "   "), cells),
        line(" ", ("not started: it waits until its GPUs are free", "dim")),
        fit(fill(facts, cells, "   " if cells >= 100 else "  "), cells),
    ]


def _indented(parts: list[Line]) -> list[Line]:
    return [line(" ", *parts[0]), *parts[1:]] if parts else []


def loss_field(snapshot: NodeSnapshot) -> Line:
    """The median of the ranks' losses, with its label."""
    value, state = median_loss(snapshot)
    text = units.loss(value, state) + common_parts(snapshot.ranks)
    return field("loss", text, "bad" if state in ("nan", "inf") else "strong")


def from_log(snapshot: NodeSnapshot) -> Line:
    """Says it of losses that were read from output or files; empty where a probe told one."""
    sources = {rank.loss_source for rank in snapshot.ranks if rank.loss_state is not None}
    return line(("from its log", "dim")) if sources == {"log"} else ()


def _facts(view: AnyJob, snapshot: NodeSnapshot, now: dt.datetime) -> list[Line]:
    """What stays the same for long: stale figures, guard, attempt, restarts, host."""
    parts: list[Line] = []
    stale = words.age_words(view.snapshot_age_s or 0.0) if view.is_live else None
    if stale:
        parts.append(line((f"▲ {stale}", "warn")))
    guard = words.guard_words(view.guarded, view.is_live)
    warned = bool(guard) and guard[0][1] == "warn"
    if warned:
        parts.append(guard)
    if view.on_other_host:
        parts.append(line((f"on host {snapshot.host}", "warn")))
    if not view.is_live and view.ended_at is not None:
        ended = view.ended_at.astimezone()
        parts.append(field("ended", f"{ended:%b %d %H:%M:%S}", ""))
    if snapshot.set_aside:
        parts.append(line((f"▲ GPU {units.ranks(snapshot.set_aside)} set aside", "warn")))
    if snapshot.attempt is not None:
        parts.append(field("attempt", str(snapshot.attempt), ""))
    parts.append(field("restarts", restarts_text(snapshot), ""))
    parts.append(checkpoint_field(snapshot, now))
    if snapshot.world_size is not None or snapshot.launcher is not None:
        parts.append(field("world size", units.count(snapshot.world_size), ""))
    if not warned:
        parts.append(guard)
    return parts


def alert_lines(alerts: Sequence[Alert], now: dt.datetime, cells: int, most: int) -> list[Line]:
    """The worst alerts, and how many more there are, in at most `most` lines.

    The worst one has the first claim on lines, for its remedy stands at its end.
    """
    order = {"error": 0, "warning": 1, "info": 2}
    ranked = sorted(alerts, key=lambda alert: (order.get(alert.severity, 1), alert.since))
    lines: list[Line] = []
    for place, alert in enumerate(ranked):
        rest = len(ranked) - place - 1
        room = most - len(lines)
        if room < 1 or (room == 1 and rest and place):
            lines.append(fit(line((f"   and {rest + 1} more: press f", "dim")), cells))
            break
        later = 0 if not rest else 1 if place == 0 else min(rest, room - 1)
        lines += _alert(alert, now, cells, max(1, min(ALERT_ROWS, room - later)))
    return lines[:most]


def _alert(alert: Alert, now: dt.datetime, cells: int, rows: int) -> list[Line]:
    symbol, style = words.severity(alert.severity)
    since = f"since {units.brief_duration((now - alert.since).total_seconds())}"
    if alert.severity == "info":
        since = ""
    first, *more = wrap(alert.message, cells - 6 - len(since), rows)
    head = spread(line(" ", (f"{symbol} {first}", style)), line((f"{since} ", "dim")), cells)
    return [fit(head, cells), *(fit(line("   ", (text, style)), cells) for text in more)]


def cause_lines(
    state: str, cause: Cause, last_lines: Sequence[str], cells: int, rows: int
) -> list[Line]:
    """Why the job ended, and the last words of the rank that failed first."""
    who = f"rank {cause.rank} failed first" if cause.rank is not None else cause.kind
    how = f" ({cause.signal})" if cause.signal else ""
    if not how and cause.exit_code is not None:
        how = f" (exit {cause.exit_code})"
    head = line(words.job_state(state), ("  ", ""), (who + how, "strong"))
    lines = [head]
    summary_rows = max(1, rows - 2) if rows <= 6 else rows // 2
    lines += [line((text, "")) for text in wrap(cause.summary, cells - 2, summary_rows)]
    room = rows - len(lines) - (1 if cause.evidence else 0)
    tail = [text for text in last_lines if _CARETS.sub("", text)][-room:] if room > 1 else []
    lines += [line(("│ ", "faint"), (clip(text, cells - 4), "dim")) for text in tail]
    if cause.evidence and len(lines) < rows:
        room = max(8, cells - 20)
        lines.append(
            line(("evidence ", "dim"), (clip(cause.evidence, room), "dim"), ("   press i", "dim"))
        )
    return [fit((("▌", "bad"), (" ", ""), *one), cells) for one in lines[:rows]]


def setback_lines(attempt: int | None, cause: Cause, cells: int, rows: int) -> list[Line]:
    """Why an attempt of a job that goes on has failed, in at most `rows` rows."""
    who = "the last attempt" if attempt is None else f"attempt {attempt}"
    hint = "   press i" if cause.evidence else ""
    *texts, last = wrap(f"{who} failed: {cause.summary}", cells - 4 - len(hint), rows)
    lines = [line((text, "")) for text in texts]
    lines.append(line((last, ""), (hint, "dim")))
    return [fit((("▌", "warn"), (" ", ""), *one), cells) for one in lines]


_CARETS = re.compile(r"^(\[rank\d+\]:)?[\s^~]*$")
"""An empty line, or one of a traceback that only points at the line above."""


def pointing_only(text: str) -> bool:
    """Whether a line of a log is empty, or only points at the line above."""
    return _CARETS.fullmatch(text) is not None


def short_name(name: str | None) -> str:
    """`NVIDIA H100 80GB HBM3` as `H100 80GB HBM3`."""
    return (name or "").removeprefix("NVIDIA ").removeprefix("GeForce ")


def cpu_rank_lines(ranks: Sequence[RankSample], cells: int) -> list[Line]:
    """Without devices: CPU and resident memory of each rank, under column names.

    The bars compare ranks: full is the busiest one, or one whole core.
    """
    if all(rank.cpu_percent is None and rank.rss_bytes is None for rank in ranks):
        return [line(" "), line((" no figures: no rank is running", "dim"))]
    digits = max((len(str(rank.rank)) for rank in ranks), default=1)
    most = max([100.0, *(rank.cpu_percent for rank in ranks if rank.cpu_percent is not None)])
    bars = max(0, min(40, cells - 6 - digits - 26))
    head = f"{'':{7 + digits}}{'CPU of one core':<{bars + 8}} {'RSS':>9}"
    lines = [fit(line((head, "dim")), cells)]
    for rank in ranks:
        share = None if rank.cpu_percent is None else rank.cpu_percent / most
        figures = f" {units.percent(rank.cpu_percent):>7} {units.size(rank.rss_bytes):>9}"
        spans = ((f" rank {rank.rank:>{digits}} ", "strong"), *bar(share, bars), (figures, ""))
        lines.append(fit(spans, cells))
    return lines


def machine_lines(machine: Machine, cells: int) -> list[Line]:
    """CPU and memory of the machine."""
    bars = max(0, min(40, cells - 40))
    cpu = None if machine.cpu_percent is None else machine.cpu_percent / 100
    cores = "" if machine.cores is None else f" of {units.plural(machine.cores, 'core')}"
    total = machine.memory_total_bytes
    memory = machine.memory_used_bytes / total if machine.memory_used_bytes and total else None
    used = units.size_of(machine.memory_used_bytes, total)
    rows = (("CPU", cpu, units.percent(machine.cpu_percent) + cores), ("memory", memory, used))
    return [
        fit(line((f" {label:<7}", "strong"), *bar(share, bars), (f"  {text}", "")), cells)
        for label, share, text in rows
    ]
