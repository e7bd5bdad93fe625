"""Writes a report as one page, in Markdown or as HTML that loads nothing. Pure.

Both render the same sections. Names, commands, and causes quote what a job printed, so each text
is one bounded line without control characters, and is escaped.
"""

from __future__ import annotations

import bisect
import datetime as dt
import html
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from ddptop.draw.story import headline, how_it_ended, origin
from ddptop.export.report import Doing, GpuPart, Report
from ddptop.export.settings import ReportTable
from ddptop.job.compare import LossCurve
from ddptop.job.progress import eta, median_loss, progress_of, step_text
from ddptop.job.series import Points
from ddptop.job.status import job_state, loss_remark, short_cause
from ddptop_runner.base import units
from ddptop_runner.base.units import NOT_AVAILABLE
from ddptop_runner.model import run_step
from ddptop_runner.model.words import is_validation_loss
from ddptop_runner.store.log_clean import sanitize

MOST_CHARS = 300
"""Of one text."""
MOST_ROWS = 30
"""Of a table; earlier ones are left out."""


_TIMES: dict[Doing, str] = {
    "training": "training",
    "lost": "training that was lost",
    "starting": "starting, up to the first step",
    "pause": "pauses: evaluation, checkpoints, hangs",
    "between": "between attempts, or in a queue",
}
_GPU_HOURS: dict[GpuPart, str] = {
    "computing": "computing",
    "data": "waiting for data",
    "ranks": "waiting for other ranks",
    "idle": "otherwise idle",
    "stepless": "no steps: starting and pauses",
    "unknown": "not recorded",
}


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the page."""

    title: str
    facts: Sequence[tuple[str, str]] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    shares: Sequence[float] = ()
    """Of the whole, for each row."""


def title_of(report: Report) -> str:
    """`bert: ✗ failed`."""
    return f"{report.job.name}: {job_state(report.job.state)[0]}"


def summary_of(report: Report) -> str:
    """The whole job in one sentence."""
    return headline(report.attempts, report.job.state, loss_remark(report.job))


def sections(report: Report, costs: ReportTable) -> list[Section]:
    """All parts, those without content left out."""
    return [
        Section(title="Run", facts=_run(report)),
        Section(title="Progress", facts=_progress(report)),
        _attempts(report),
        _shared("Time", "time", _TIMES, report.times_s, units.duration),
        _devices(report, costs),
        *_findings(report),
    ]


def _run(report: Report) -> list[tuple[str, str]]:
    job = report.job
    hosts = ", ".join(one.host for one in job.snapshot.nodes) or job.host
    return [
        ("command", job.command),
        *origin(job.spec),
        ("host", hosts),
        ("ranks", f"{units.count(job.world_size)} on {report.run.devices}"),
        ("started", _when(job.created_at)),
        *([] if job.ended_at is None else [("ended", _when(job.ended_at))]),
        ("duration", units.duration(job.elapsed_s(job.read_at))),
    ]


def _progress(report: Report) -> list[tuple[str, str]]:
    job = report.job
    progress, run = progress_of(job), run_step.of_snapshot(job.snapshot)
    scalars = report.run.scalars
    saved = NOT_AVAILABLE
    if (last := report.checkpoint) is not None:
        at_step = "" if last.global_step is None else f" at step {last.global_step:,}"
        saved = f"{report.checkpoints:,}, last {last.name}{at_step}, {_when(last.at)}"
    return [
        ("steps", step_text(run, progress, job.is_live)),
        *([("time left", eta(progress))] if job.is_live else []),
        ("time per step", units.step_time(report.run.curve.step_time_s())),
        ("loss", _loss(report.run.curve, median_loss(job.snapshot)[1])),
        *((name, _loss(curve)) for name, curve in scalars.items() if is_validation_loss(name)),
        ("checkpoints", saved),
    ]


def _loss(curve: LossCurve, state: str | None = None) -> str:
    if (best := curve.best()) is None:
        return units.loss(None, state)
    where = "" if best.step is None else f" at step {best.step:,}"
    return f"best {units.loss(best.loss)}{where}, last {units.loss(curve.last, state)}"


def _attempts(report: Report) -> Section:
    now, state = report.job.read_at, report.job.state
    rows = []
    for one in reversed(report.attempts[:MOST_ROWS]):
        why = "" if one.cause is None else short_cause(one.cause)
        rows.append(
            (
                str(one.number),
                _when(one.started_at),
                units.duration(one.ran_s(now)),
                units.count(one.steps),
                how_it_ended(one, state)[0],
                why,
                units.count(report.steps_lost.get(one.number, None if why else 0)),
            )
        )
    left_out = len(report.attempts) - len(rows)
    title = f"Attempts ({left_out} earlier ones left out)" if left_out else "Attempts"
    columns = ("attempt", "started", "ran", "steps", "result", "cause", "steps lost")
    return Section(title=title, columns=columns, rows=rows)


def _devices(report: Report, costs: ReportTable) -> Section:
    if not report.gpu_hours:
        return Section(title="GPU hours", facts=[("used", NOT_AVAILABLE)])
    table = _shared("GPU hours", "hours", _GPU_HOURS, report.gpu_hours, _hours)
    held = sum(value or 0.0 for value in report.gpu_hours.values())
    return msgspec.structs.replace(table, facts=[("used", _hours(held)), *_energy(report, costs)])


def _energy(report: Report, costs: ReportTable) -> list[tuple[str, str]]:
    if (kwh := report.energy_kwh) is None:
        return [("energy", NOT_AVAILABLE)]
    known = report.energy_known
    of = "" if known > 0.99 else f", known for {known:.0%} of the GPU hours"
    found = [("energy", f"{kwh:,.3g} kWh{of}")]
    if (price := costs.price_per_kwh) is not None:
        cost = f"{kwh * price:,.2f} {costs.currency} at {price:g} {costs.currency}"
        found.append(("cost", f"{cost} per kWh"))
    return found


def _findings(report: Report) -> list[Section]:
    rows = [
        (
            one.message,
            _when(one.since),
            f"{units.duration(one.lasted_s)}{' and lasts' * (one.open_since is not None)}",
            str(one.times),
        )
        for one in report.findings[-MOST_ROWS:]
    ]
    columns = ("finding", "since", "lasted", "times")
    return [Section(title="Findings", columns=columns, rows=rows)] if rows else []


PartT = TypeVar("PartT", bound=str)


def _shared(
    title: str,
    unit: str,
    names: Mapping[PartT, str],
    parts: Mapping[PartT, float | None],
    form: Callable[[float | None], str],
) -> Section:
    """A table of parts of a whole."""
    whole = sum(value or 0.0 for value in parts.values()) or 1.0
    shares = [(parts.get(part) or 0.0) / whole for part in names]
    rows = [
        (name, form(parts.get(part)), f"{share:.1%}")
        for (part, name), share in zip(names.items(), shares, strict=True)
    ]
    return Section(title=title, columns=("", unit, "share"), rows=rows, shares=shares)


def _hours(value: float | None) -> str:
    return (
        NOT_AVAILABLE if value is None else f"{value:,.2f} h" if value < 10 else f"{value:,.0f} h"
    )


def _when(at: dt.datetime | None) -> str:
    return NOT_AVAILABLE if at is None else f"{at.astimezone():%Y-%m-%d %H:%M}"


def _one_line(text: str) -> str:
    line = " ".join(sanitize(text).split())
    return line if len(line) <= MOST_CHARS else f"{line[: MOST_CHARS - 1]}…"


# --- Markdown -------------------------------------------------------------------------------------

_MARKUP = re.compile(r"[\\`*\[\]<>|~]|(?<![^\W_])_|_(?![^\W_])")
"""What may format text; an underscore within a word does not."""


def markdown(report: Report, costs: ReportTable) -> str:
    """The page in GitHub's Markdown."""

    def text(value: str) -> str:
        return _MARKUP.sub(r"\\\g<0>", _one_line(value))

    lines = [f"# {text(title_of(report))}", "", f"{text(summary_of(report))}."]
    for one in sections(report, costs):
        lines += ["", f"## {text(one.title)}", ""]
        lines += [f"- {text(label)}: {text(value)}" for label, value in one.facts]
        if one.rows:
            table = [one.columns, ["---"] * len(one.columns), *one.rows]
            rows = [[cell if cell == "---" else text(cell) for cell in row] for row in table]
            lines += [""] * bool(one.facts) + [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


# --- HTML -----------------------------------------------------------------------------------------

SHORT = 18
"""Characters of a cell that is not wrapped."""
WIDE, HIGH = 1000, 200
"""Units of a chart's drawing, which is stretched to the page."""


def page(report: Report, costs: ReportTable) -> str:
    """The page in HTML: no scripts, and nothing that is loaded."""
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    parts = [_section(one) for one in sections(report, costs)]
    parts.insert(2, _charts(report))
    made = f"Written by ddptop on {_when(report.job.read_at)}."
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title_of(report))}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{_text(title_of(report))}</h1>\n<p>{_text(summary_of(report))}.</p></header>"
        f"\n{''.join(parts)}<footer>{_text(made)}</footer>\n</body>\n</html>\n"
    )


def _text(value: str) -> str:
    return html.escape(_one_line(value))


def _section(one: Section) -> str:
    facts = "".join(
        f"<div><dt>{_text(label)}</dt><dd>{_text(value)}</dd></div>" for label, value in one.facts
    )
    rows = "".join(f"<th>{_text(name)}</th>" for name in one.columns)
    for place, row in enumerate(one.rows):
        rows += "</tr>\n<tr>"
        for name, cell in zip(one.columns, row, strict=True):
            short = " class=short" * (len(cell) < SHORT)
            rows += f'<td{short} data-name="{_text(name)}">{_text(cell)}</td>'
        if one.shares:
            rows += f'<td class=bar><i style="width:{100 * one.shares[place]:.1f}%"></i></td>'
    kind = "shares" if one.shares else "list"
    table = f"<div class=scroll><table class={kind}><tr>{rows}</tr></table></div>"
    parts = f"<dl>{facts}</dl>" * bool(facts) + table * bool(one.rows)
    return f"<section><h2>{_text(one.title)}</h2>{parts}</section>\n"


def _charts(report: Report) -> str:
    curve = report.run.curve.points
    losses = msgspec.structs.replace(curve, t=[report.run.start_s + t for t in curve.t])
    wanted: list[tuple[str, Points, Callable[[float], str], Sequence[float]]] = [
        ("loss", losses, units.loss, ()),
        ("time per step", report.step_times, units.step_time, (0.0,)),
        ("GPU utilization", report.utilization, units.percent, (0.0, 100.0)),
    ]
    known = [one for one in wanted if len(one[1].t) > 1]
    if not known:
        return ""
    since = min(one[1].t[0] for one in known)
    until = max(one[1].t[-1] for one in known)
    starts = [one.started_at.timestamp() for one in report.attempts if one.started_at is not None]
    marks = sorted(at for at in starts[:-1] if since < at < until)
    drawn = "".join(_chart(*one, since, max(until, since + 1), marks) for one in known)
    note = " Dashed lines are restarts." if marks else ""
    return f"<section><h2>Course</h2>{drawn}<p class=note>Local time.{note}</p></section>\n"


def _chart(
    name: str,
    points: Points,
    form: Callable[[float], str],
    shown: Sequence[float],
    since: float,
    until: float,
    marks: Sequence[float],
) -> str:
    """A chart; its axis also includes the values `shown`."""
    values = [*shown, *(value for value in points.mean if value is not None)] or [0.0]
    low, high = min(values), max(values)

    def x(t: float) -> str:
        return f"{WIDE * (t - since) / (until - since):.1f}"

    def y(value: float) -> str:
        share = (value - low) / (high - low) if high > low else 0.5
        return f"{HIGH * (1 - share):.1f}"

    path, before = "", None
    for t, value in zip(points.t, points.mean, strict=True):
        attempt = None if value is None else bisect.bisect_right(marks, t)
        if value is not None:
            path += f"{'L' if attempt == before else 'M'}{x(t)} {y(value)}"
        before = attempt
    lines = "".join(f'<path class="mark" d="M{x(at)} 0V{HIGH}"/>' for at in marks)
    return (
        f"<figure><figcaption>{_text(name)}</figcaption><div class=plot>"
        f"<div class=y><span>{form(high)}</span><span>{form(low) if low else 0}</span></div>"
        f'<svg viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio="none" role="img" '
        f'aria-label="{_text(name)}">{lines}<path class="line" d="{path}"/></svg></div>'
        f"<div class=x><span>{_clock(since)}</span><span>{_clock((since + until) / 2)}</span>"
        f"<span>{_clock(until)}</span></div></figure>\n"
    )


def _clock(unix_s: float) -> str:
    return f"{dt.datetime.fromtimestamp(unix_s):%b %d %H:%M}"
