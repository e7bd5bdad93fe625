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
from string import Template
from typing import Any

import msgspec

from ddptop.draw.compare import rows
from ddptop.draw.story import attempt_row, headline, origin
from ddptop.export.report import Report
from ddptop.export.settings import ReportTable
from ddptop.job.compare import compare
from ddptop.job.progress import eta, progress_of
from ddptop.job.series import Points
from ddptop.job.status import job_state, loss_remark, short_cause
from ddptop_runner.base import units
from ddptop_runner.base.units import NOT_AVAILABLE
from ddptop_runner.store.log_clean import sanitized_line

MOST_CHARS = 300
"""Of one text."""
MOST_ROWS = 30
"""Of a table; earlier ones are left out."""


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
    found = (
        Section(title="Run", facts=_run(report)),
        _attempts(report),
        _breakdown("Time", "time", report.times_s, units.duration),
        _devices(report, costs),
        _findings(report),
    )
    return [one for one in found if one.facts or one.rows]


def _run(report: Report) -> list[tuple[str, str]]:
    job, saved = report.job, "none detected"
    if (last := report.checkpoint) is not None:
        saved = f"{report.checkpoints:,}, last {last.name} on {_when(last.at)}"
    figures = [row for row in rows(compare([report.run]), job.read_at) if row.is_figure]
    return [
        ("command", job.command),
        *origin(job.spec),
        ("host", ", ".join(one.host for one in job.snapshot.nodes) or job.host),
        *((row.label, row.values[0][0]) for row in figures),
        ("time left", eta(progress_of(job))) if job.is_live else ("ended", _when(job.ended_at)),
        ("checkpoints", saved),
    ]


def _attempts(report: Report) -> Section:
    found = []
    for one in reversed(report.attempts[:MOST_ROWS]):
        cells = attempt_row(one, report.job.state, report.job.read_at)
        shown = [cells[name][0] for name in ("number", "day", "started", "ran", "steps", "how")]
        why = "" if one.cause is None else short_cause(one.cause)
        lost = report.steps_lost.get(one.number, None if why else 0)
        found.append([*shown, why, units.count(lost)])
    left_out = len(report.attempts) - len(found)
    title = f"Attempts ({left_out} earlier ones left out)" if left_out else "Attempts"
    columns = ("attempt", "day", "started", "ran", "steps", "result", "cause", "steps lost")
    return Section(title=title, columns=columns, rows=found)


def _devices(report: Report, costs: ReportTable) -> Section:
    hours, kwh, known = report.gpu_hours, report.energy_kwh, report.energy_known
    if not hours:
        had_some = bool(report.job.spec.devices)
        return Section(title="GPU hours", facts=[("used", NOT_AVAILABLE)] if had_some else ())
    facts = [("used", _hours(sum(value or 0.0 for value in hours.values())))]
    if kwh is None:
        facts.append(("energy", NOT_AVAILABLE))
    else:
        of = "" if known > 0.99 else f", known for {known:.0%} of the GPU hours"
        facts.append(("energy", f"{_amount(kwh, 'kWh')}{of}"))
        if (price := costs.price_per_kwh) is not None:
            facts.append(("cost", f"{kwh * price:,.2f} {costs.currency} at {price:g} per kWh"))
    return msgspec.structs.replace(_breakdown("GPU hours", "hours", hours, _hours), facts=facts)


def _findings(report: Report) -> Section:
    found, still = [], "not over" if report.job.is_live else "until the end"
    for one in report.findings[-MOST_ROWS:]:
        lasted = units.duration(one.lasted_s) if one.open_since is None else still
        found.append((one.message, _when(one.since), lasted, str(one.times)))
    columns = ("finding", "since", "lasted", "times")
    return Section(title="Findings", columns=columns, rows=found)


def _breakdown(
    title: str,
    unit: str,
    parts: Mapping[Any, float | None],
    form: Callable[[float | None], str],
) -> Section:
    """A table of parts of a whole."""
    whole = sum(value or 0.0 for value in parts.values()) or 1.0
    found = [
        (part, form(value), NOT_AVAILABLE if value is None else f"{value / whole:.1%}")
        for part, value in parts.items()
    ]
    shares = [(value or 0.0) / whole for value in parts.values()]
    return Section(title=title, columns=("", unit, "share"), rows=found, shares=shares)


def _hours(value: float | None) -> str:
    return NOT_AVAILABLE if value is None else _amount(value, "h")


def _amount(value: float, unit: str) -> str:
    return f"{value:,.{2 if value < 10 else 0}f} {unit}"


def _when(at: dt.datetime | None) -> str:
    return NOT_AVAILABLE if at is None else f"{at.astimezone():%b %d %H:%M}"


def _one_line(text: str) -> str:
    line = sanitized_line(text)
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
    parts = [_section(one) for one in sections(report, costs)]
    parts.insert(1, _charts(report))
    template = Template(Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=_text(title_of(report)),
        summary=_text(summary_of(report)),
        sections="".join(parts),
        written_at=f"{report.job.read_at.astimezone():%Y-%m-%d %H:%M %Z}",
    )


def _text(value: str) -> str:
    return html.escape(_one_line(value))


def _section(one: Section) -> str:
    facts = "".join(
        f"<div><dt>{_text(label)}</dt><dd>{_text(value)}</dd></div>" for label, value in one.facts
    )
    heads = (*one.columns, *[""] * bool(one.shares))
    rows = "".join(f"<th>{_text(name)}</th>" for name in heads)
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
