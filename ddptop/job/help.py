"""Writes the help: the glossary, and an explanation of what is under the cursor."""

from __future__ import annotations

import datetime as dt
import functools
import re
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from ddptop.job import status as job_status
from ddptop.job.figures import devices, jobs, ranks
from ddptop.job.figures.ranks import COMPARED
from ddptop.job.keys import key, with_keys
from ddptop.job.loss_trend import LossTrend
from ddptop.job.outliers import oddity, state_of, uneven
from ddptop.job.progress import eta, median_loss, progress_of, share, step_text
from ddptop.job.status import Attention
from ddptop_runner.base import units
from ddptop_runner.devices import codes
from ddptop_runner.judge.balance.imbalance import RankDeviation
from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import GpuSample, NodeSnapshot, RankSample

Words: TypeAlias = tuple[tuple[str, str], ...]
"""Term and meaning."""

OF_FIGURES = {
    "jobs": [one.help for one in jobs.FIGURES],
    "ranks": [one.help for one in ranks.FIGURES],
    "devices": [one.help for one in devices.FIGURES],
}
"""Terms and meanings of the figures, by the section of terms that they belong to."""


class Texts(msgspec.Struct, frozen=True):
    """The content of help.toml."""

    terms: dict[str, dict[str, str]]
    """Meanings by section and term."""
    rank_states: dict[str, str]
    needs: dict[str, str]
    """Why a job is near the top of the list."""
    charts: dict[str, str]
    loss_lines: dict[str, str]
    """What the lines of a loss chart are, by mode."""
    events: dict[str, str]
    """Meanings of the types of events."""
    alerts: dict[str, str]
    """What each alert means, its usual causes, and what to do."""


@functools.cache
def texts() -> Texts:
    """The prose of the help, read when help is first shown."""
    data = Path(__file__).with_name("help.toml").read_text(encoding="utf-8")
    return msgspec.convert(_flowed(msgspec.toml.decode(data)), Texts)


def _flowed(value: Any) -> Any:
    """Join the lines of each paragraph."""
    if isinstance(value, dict):
        return {name: _flowed(inner) for name, inner in value.items()}
    return "\n\n".join(" ".join(part.split()) for part in value.split("\n\n"))


@functools.cache
def sections() -> dict[str, Words]:
    """Terms and meanings by section, in the order of the help."""
    return {
        section: (*terms.items(), *filter(None, OF_FIGURES.get(section, ())))
        for section, terms in texts().terms.items()
    }


def glossary(*names: str) -> list[tuple[str, str]]:
    """Return these terms and their meanings, in order, skipping unknown ones."""
    known = {term: meaning for words in sections().values() for term, meaning in words}
    return [(name, known[name]) for name in names if name in known]


def explain_alert(finding_id: str) -> str:
    """Return what an alert means, its usual causes, and what to do; "" for an unknown one.

    `finding_id` is `Alert.id`; numbers at its end (XID and device) and its host are ignored.
    """
    return with_keys(texts().alerts.get(re.sub(r"(-\d+)*(@.*)?$", "", finding_id), ""))


def explain_event(kind: str) -> str:
    """Return what a type of event means."""
    return with_keys(texts().events.get(kind, "an entry in the job's history"))


def explain_state(state: str) -> list[tuple[str, str]]:
    """Return what a state of a rank or job means."""
    meaning = texts().rank_states.get(state)
    return [(state, meaning)] if meaning else glossary(state)


def explain_rank(
    rank: RankSample, apart: RankDeviation, now: dt.datetime, live: bool
) -> list[tuple[str, str]]:
    """Return the rank's state, how it differs from the others, and the terms on its card."""
    symbol = state_of(rank, now, live)[0]
    sections = [(f"rank {rank.rank}: {symbol}", _about(rank))]
    if live and (odd := oddity(rank, apart)) is not None:
        sections.append((odd[0], _far(apart)))
    if rank.loss_state in ("nan", "inf") and (text := explain_alert(f"loss-{rank.loss_state}")):
        sections.append((f"loss {rank.loss_state}", text))
    names = ("busy", "vs median", "step", "n/a") if apart.is_slow else ("vs median", "step", "n/a")
    return [*sections, *glossary(*names)]


def _about(rank: RankSample) -> str:
    meaning = dict(explain_state(rank.state)).get(rank.state, rank.state)
    return f"{meaning}; {rank.state_reason}" if rank.state_reason else meaning


def _far(apart: RankDeviation) -> str:
    parts = [
        f"{one.name} {units.deviation(apart.of(figure))}"
        for figure, one in COMPARED.items()
        if apart.of(figure) is not None
    ]
    return (
        f"compared with the median of the job's ranks: {', '.join(parts)}. "
        f"Press {key('rank.open')} for details, such as what the rank is waiting for"
    )


def explain_heat(figure: str) -> list[tuple[str, str]]:
    """Explain what the cells of the map show."""
    return [
        (
            f"map: {figure}",
            "each cell is a rank; a taller block means a higher value (see the legend below). "
            f"A dot means unknown. Press {key('ranks.figure')} for the next metric, or "
            f"{key('ranks.shape')} for cards or the table",
        )
    ]


PAUSES = {"no_step": "no step 25 s", "stalled": "stalled"}
"""The terms that explain pauses."""
_TRENDS = {
    "falling": "↘: falling",
    "flat": "→: flat (within noise)",
    "rising": "↗: rising",
}


def explain_job(one: Attention, trend: LossTrend | None, now: dt.datetime) -> list[tuple[str, str]]:
    """Return headings and texts for the job's state, status, and figures."""
    view, snapshot = one.job, one.job.snapshot
    state, _ = job_status.state_of(view)
    pause = view.pause
    known = dict(glossary(*PAUSES.values(), view.state))
    meaning = known.get(view.state, "This version of ddptop does not recognize this state")
    if pause is not None and (term := PAUSES.get(pause.state)) is not None:
        meaning, trend = known[term], None
    if view.is_foreign:
        meaning = "ddptop did not start it and can see only its processes and devices"
    need = texts().needs.get(one.need.name.lower(), "")
    found = [
        (f"{view.name}: {state}", with_keys(f"{_sentence(meaning)} {need}".strip())),
        ("status", one.sentence),
    ]
    found += [
        (f"alert: {alert.id}", text)
        for alert in snapshot.alerts
        if view.is_live and (text := explain_alert(alert.id))
    ]
    progress = progress_of(view)
    done = share(progress)
    how_far = f"step {step_text(run_step.of_snapshot(snapshot), progress, view.is_live)}"
    how_far += f", {done} of the run" if done else "; the total is unknown"
    if view.is_live:
        how_far += f", ETA {eta(progress)} at the current pace"
    found.append(("progress", f"{how_far}. Elapsed: {units.duration(view.elapsed_s(now))}."))
    found.append(("loss", _loss(snapshot, trend)))
    if view.is_live:
        found.append(("uneven", _uneven(snapshot)))
    return found


def _loss(snapshot: NodeSnapshot, trend: LossTrend | None) -> str:
    value, state = median_loss(snapshot)
    if value is None and state is None:
        return "n/a: no loss found in probe reports or rank output."
    text = f"{units.loss(value, state)}, the median across ranks."
    if trend is not None:
        text += f" {_TRENDS[trend.way]} over the last {trend.span}."
    return text


def _uneven(snapshot: NodeSnapshot) -> str:
    known = uneven(snapshot)
    if not known:
        return "n/a: needs values from at least two ranks or devices."
    parts = ", ".join(f"{one.name} {text}" for one, (text, _) in known)
    return f"{parts}: largest deviation from the median of all ranks; 0% is even."


def slowed_by(gpu: GpuSample) -> list[str]:
    """Why its clocks are lowered, except for harmless reasons."""
    return [
        reason for reason in gpu.throttle_reasons or [] if codes.throttle(reason).weight != "usual"
    ]


def explain_device(gpu: GpuSample) -> list[tuple[str, str]]:
    """Return headings and texts for the device and each of its figures."""
    part = ", MIG instance" if gpu.parent_uuid is not None else ""
    name = f"{gpu.name}{part}" if gpu.name else f"unnamed device{part}"
    found = [(f"GPU {gpu.index}", f"{name}. Devices are numbered in PCI order, as in nvidia-smi.")]
    if gpu.lost:
        text = "The driver can no longer reach the device. Only a reset or a reboot can recover it."
        return [*found, ("lost", f"{gpu.note}. {text}" if gpu.note else text)]
    if gpu.note:
        found.append(("note", gpu.note))
    found += [
        (f"slowed: {reason}", _sentence(codes.throttle(reason).remedy))
        for reason in gpu.throttle_reasons or []
    ]
    for code in gpu.xid or []:
        xid = codes.xid(code)
        found.append((f"XID {code}", f"{_sentence(xid.meaning)} {_sentence(xid.remedy)}"))
    found += [
        (f"{one.key} {one.text(gpu)}", one.explain(gpu)) for one in devices.FIGURES if one.explain
    ]
    if gpu.unknown:
        text = "; ".join(f"{field.replace('_', ' ')}: {why}" for field, why in gpu.unknown.items())
        found.append(("n/a", f"Not available: {text}."))
    return found


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
