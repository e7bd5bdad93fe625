"""Implements `ddptop doctor --hosts`: all checks on each host, and whether they fit together."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ddptop_runner.launch.doctor import Check, Report
from ddptop_runner.launch.hosts import HostRequest
from ddptop_runner.launch.readiness import Judged, Wanted
from ddptop_runner.launch.survey import LIMIT_S, Survey
from ddptop_runner.model.snapshot import SCHEMA
from ddptop_runner.model.words import Base
from ddptop_runner.version import __version__


class HostReport(Base, frozen=True, kw_only=True):
    """The checks of one host."""

    host: str
    checks: list[Check]
    """`together` is whether it can train with the others; the rest are `doctor` checks there."""


class HostsReport(Base, frozen=True, kw_only=True):
    """What `doctor --hosts LIST --json` prints."""

    schema: int = SCHEMA
    hosts: list[HostReport]


def examine_hosts(hosts: Sequence[HostRequest], python: str) -> tuple[Judged, HostsReport]:
    """Examine all hosts at once.

    Args:
        hosts: the machines.
        python: the job's interpreter, which is the same on all hosts.
    """
    wanted = Wanted(
        ddptop=__version__, target="", kind="none", cwd="/", python=python, force=True, trains=False
    )
    with Survey(hosts) as survey:
        judged = survey.collect(wanted, None, {})
        question = {"ask": "doctor", "python": python}
        answers = survey.ask_all(LIMIT_S, {one.host: question for one in hosts})
    reports = []
    for one in hosts:
        checks = [_together(one.host, judged)]
        if one.host in answers:
            checks += msgspec.convert(answers[one.host], Report).checks
        reports.append(HostReport(host=one.host, checks=checks))
    return judged, HostsReport(hosts=reports)


def _together(host: str, judged: Judged) -> Check:
    against = [refusal for refusal in judged.refusals if host in refusal.hosts]
    notes = [str(note) for note in judged.notes if host in note.hosts]
    detail = "; ".join(refusal.problem for refusal in against) or "; ".join(notes)
    return Check(
        id="together",
        title="Several machines",
        status="error" if against else "warning" if notes else "ok",
        detail=detail or "reachable and compatible with the other hosts",
        remedy="; ".join(refusal.remedy for refusal in against) or None,
    )
