"""What is found of a job, and what is said of one that has ended."""

from __future__ import annotations

import msgspec
from ddptop.view.findings import findings
from tests.tui.fake_home import NOW, ago, snapshot_of, spec_of
from tests.tui.own_views import view_of

from ddptop_runner.job.registry import JobView
from ddptop_runner.model.snapshot import Alert, Cause

CAUSE = Cause(kind="exception", rank=1, summary="Rank 1 was the first to fail: exit status 1.")


def job(state: str, **more: object) -> JobView:
    """A job in that state."""
    spec = spec_of("a", 2, 600)
    ended = {} if state == "running" else {"ended_at": ago(60)}
    view = view_of(snapshot_of(spec, **{"state": state, **ended, **more}))
    msgspec.structs.force_setattr(view, "spec", spec)
    msgspec.structs.force_setattr(view, "read_at", NOW)
    return view


def test_of_a_failed_job_the_cause_is_told_and_not_that_nothing_is_found() -> None:
    hint, [(heading, text)] = findings(job("failed", cause=CAUSE), NOW)
    assert hint == "why it failed; esc closes"
    assert heading == "✗ failed   rank 1"
    assert text.startswith("Rank 1 was the first to fail: exit status 1.")
    assert "e for each attempt and its saved evidence" in text


def test_of_a_stopped_job_it_is_said_where_to_look() -> None:
    hint, [(heading, text)] = findings(job("stopped"), NOW)
    assert hint == "findings are available only while a job is running; esc closes"
    assert heading == "■ stopped"
    assert "e for each attempt" in text and "evidence" not in text


def test_an_alert_says_for_how_long_and_a_healthy_job_has_none() -> None:
    assert findings(job("running"), NOW) == ("no problems found; esc closes", [])
    odd = Alert(id="odd", severity="warning", message="it is odd", since=ago(90), ranks=[2])
    hint, [(heading, text)] = findings(job("running", alerts=[odd]), NOW)
    assert hint == "worst first; esc closes"
    assert heading == "▲ warning   rank 2   for 1m 30s"
    assert text == "it is odd"
