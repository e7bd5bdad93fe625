"""Writes the help: the glossary, what is under the cursor, and what is wrong with a job."""

from __future__ import annotations

import datetime as dt
import functools
import re
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from ddptop.job import status as job_status
from ddptop.job.figures import devices, jobs, ranks
from ddptop.job.figures.ranks import COMPARED, oddity, state_of
from ddptop.job.keys import key, with_keys
from ddptop.job.record import Job
from ddptop.job.status import (
    SET_BACK,
    Attention,
    alerts_of,
    brief_place,
    failure_name,
    job_state,
    severity,
)
from ddptop_runner.base import units
from ddptop_runner.devices import codes
from ddptop_runner.judge.balance.imbalance import RankDeviation
from ddptop_runner.model.snapshot import Alert, GpuSample, RankSample

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
    about: dict[str, dict[str, str]]
    """Headings and texts on parts of screens, such as the fields of the launch form."""


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


def about(what: str) -> list[tuple[str, str]]:
    """Return the headings and texts on a part of a screen."""
    return [(name, with_keys(text)) for name, text in texts().about[what].items()]


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


def explain_job(one: Attention) -> list[tuple[str, str]]:
    """Return headings and texts for the job's state, status, and alerts."""
    view = one.job
    state, _ = job_status.state_of(view)
    pause = view.pause
    known = dict(glossary(*PAUSES.values(), view.state))
    meaning = known.get(view.state, "This version of ddptop does not recognize this state")
    if pause is not None and (term := PAUSES.get(pause.state)) is not None:
        meaning = known[term]
    if view.is_foreign:
        meaning = "ddptop did not start it and can see only its processes and devices"
    need = texts().needs.get(one.need.name.lower(), "")
    found = [
        (f"{view.name}: {state}", with_keys(f"{_sentence(meaning)} {need}".strip())),
        ("status", one.sentence),
    ]
    found += [
        (f"alert: {alert.id}", text)
        for alert in view.snapshot.alerts
        if view.is_live and (text := explain_alert(alert.id))
    ]
    return found


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


class Guilty(NamedTuple):
    """The rank whose log shows why a job hangs or failed."""

    rank: int
    attempt: int | None
    """The attempt in which it failed; None for the latest."""
    why: str
    """A few words, such as `SIGKILL`."""


def guilty(view: Job) -> Guilty | None:
    """The rank that the others wait for, or that failed first; None if no rank is to blame."""
    state = view.snapshot
    pause = view.pause
    if pause is not None and pause.ranks:
        place = next((one.stands_at for one in state.ranks if one.rank == pause.ranks[0]), None)
        where = "" if place is None else f", last seen at {brief_place(place)}"
        return Guilty(pause.ranks[0], None, f"the other ranks wait for it{where}")
    attempt, cause = None, state.cause
    if cause is None and view.is_live and view.state in SET_BACK and state.attempt:
        attempt, cause = state.attempt - 1, state.previous_cause
    if cause is None or cause.rank is None:
        return None
    why = "stuck" if cause.kind == "hang" else failure_name(cause)
    place = "" if cause.place is None else brief_place(cause.place)
    return Guilty(cause.rank, attempt, f"{why} at {place}" if place else why)


def findings(view: Job | None, now: dt.datetime) -> tuple[str, list[tuple[str, str]]]:
    """A brief summary of the current findings, and a heading and text for each."""
    if view is None:
        return "the job no longer exists; esc closes", []
    if not view.is_live and not view.is_foreign:
        return _ended(view)
    sections = [(_heading(alert, now), _text(alert)) for alert in alerts_of(view)]
    return f"{'worst first' if sections else 'no problems found'}; esc closes", sections


def _ended(view: Job) -> tuple[str, list[tuple[str, str]]]:
    """For an ended job: why it failed, if it did, and the keys that show more."""
    cause, text = view.snapshot.cause, with_keys(_MORE)
    if view.state == "failed" and cause is not None:
        text = f"{cause.summary}\n\n{text}"
    return "the job has ended; esc closes", [(job_state(view.state)[0], text)]


_MORE = (
    "Press esc, then {view.story} for each attempt, why it ended, and which alerts were active "
    "until then, or {view.logs} for the logs."
)


def _text(alert: Alert) -> str:
    return "\n\n".join(filter(None, [alert.message, explain_alert(alert.id)]))


def _heading(alert: Alert, now: dt.datetime) -> str:
    symbol, _ = severity(alert.severity)
    parts = [f"{symbol} {alert.severity}"]
    if alert.ranks:
        parts.append(units.name_ranks(alert.ranks, compact=True))
    if alert.gpus:
        parts.append(f"{'GPU' if len(alert.gpus) == 1 else 'GPUs'} {units.ranks(alert.gpus)}")
    if alert.host is not None:
        parts.append(f"host {alert.host}")
    if alert.severity != "info":
        parts.append(f"for {units.duration((now - alert.since).total_seconds())}")
    return "   ".join(parts)
