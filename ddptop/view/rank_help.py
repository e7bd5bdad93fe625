"""Explain a rank's card, row, or cell for the help. Pure."""

from __future__ import annotations

import datetime as dt

from ddptop.view.figures.ranks import COMPARED
from ddptop.view.findings import explain
from ddptop.view.glossary import GLOSSARY
from ddptop.view.keys import key
from ddptop.view.odd import oddity, state_of
from ddptop_runner.base import units
from ddptop_runner.judge.balance.imbalance import RankDeviation
from ddptop_runner.model.snapshot import RankSample

_STATES = {
    "starting": "it is running but has not taken a training step yet",
    "running": "it is training",
    "exited": "it exited with status 0",
    "failed": "it exited with a nonzero status or was killed by a signal",
    "stopped": "ddptop ended it (stop, kill, or a group restart)",
    "unknown": "it has not reported its state",
    "blocked": "it has been in uninterruptible sleep (disk or driver) for a while",
}


def glossary(*names: str) -> list[tuple[str, str]]:
    """Return these terms of the glossary, in order; unknown ones are skipped."""
    known = dict(GLOSSARY)
    return [(name, known[name]) for name in names if name in known]


def explain_state(state: str) -> list[tuple[str, str]]:
    """Return what a state of a rank or job means."""
    said = _STATES.get(state) or dict(GLOSSARY).get(state)
    return [(state, said)] if said else []


def explain_rank(
    rank: RankSample, apart: RankDeviation, now: dt.datetime, live: bool
) -> list[tuple[str, str]]:
    """Return the rank's state, how it differs from the others, and the terms on its card."""
    symbol = state_of(rank, now, live)[0]
    sections = [(f"rank {rank.rank}: {symbol}", _about(rank))]
    if live and (odd := oddity(rank, apart)) is not None:
        sections.append((odd[0], _far(apart)))
    if rank.loss_state in ("nan", "inf") and (text := explain(f"loss-{rank.loss_state}")):
        sections.append((f"loss {rank.loss_state}", text))
    return [*sections, *glossary("vs median", "step", "n/a")]


def _about(rank: RankSample) -> str:
    said = dict(explain_state(rank.state)).get(rank.state, rank.state)
    return f"{said}; {rank.state_reason}" if rank.state_reason else said


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
    """What the cells of the map show."""
    return [
        (
            f"map: {figure}",
            "each cell is a rank; a taller block means a higher value (see the legend below). "
            f"A dot means unknown. Press {key('ranks.figure')} for the next metric, or "
            f"{key('ranks.shape')} for cards or the table",
        )
    ]
