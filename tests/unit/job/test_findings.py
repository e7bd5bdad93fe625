"""Findings about a job, and the text for a job that has ended."""

from __future__ import annotations

import msgspec
import pytest
from ddptop.job.help import Guilty, findings, guilty
from ddptop.job.record import Job
from tests.support.fake_home import NOW, ago, snapshot_of, spec_of
from tests.support.own_views import view_of

from ddptop_runner.model.snapshot import Alert, Cause, Pause

CAUSE = Cause(kind="exception", rank=1, summary="Rank 1 was the first to fail: exit status 1.")


def job(state: str, **more: object) -> Job:
    """A job in that state."""
    spec = spec_of("a", 2, 600)
    ended = {} if state == "running" else {"ended_at": ago(60)}
    view = view_of(snapshot_of(spec, **{"state": state, **ended, **more}))
    return msgspec.structs.replace(
        view, name=spec.job, created_at=spec.created_at, launch_spec=spec
    )


def test_failed_job_shows_its_cause_instead_of_no_findings() -> None:
    hint, [(heading, text)] = findings(job("failed", cause=CAUSE), NOW)
    assert hint == "the job has ended; esc closes"
    assert heading == "✗ failed"
    assert text.startswith("Rank 1 was the first to fail: exit status 1.")
    assert "e for each attempt, why it ended" in text


def test_stopped_job_shows_where_to_look() -> None:
    hint, [(heading, text)] = findings(job("stopped"), NOW)
    assert hint == "the job has ended; esc closes"
    assert heading == "■ stopped"
    assert "e for each attempt" in text and "evidence" not in text


def test_alert_shows_its_duration_and_a_healthy_job_has_none() -> None:
    assert findings(job("running"), NOW) == ("no problems found; esc closes", [])
    odd = Alert(id="odd", severity="warning", message="it is odd", since=ago(90), ranks=[2])
    hint, [(heading, text)] = findings(job("running", alerts=[odd]), NOW)
    assert hint == "worst first; esc closes"
    assert heading == "▲ warning   rank 2   for 1m 30s"
    assert text == "it is odd"


HANG = Cause(kind="hang", rank=1, summary="stuck", place="/home/me/train.py:79 in main")
RAISED = Cause(
    kind="exception", rank=1, summary="", exception="ValueError", place="/a/train.py:7 in f"
)
KILLED = Cause(kind="signal", rank=0, summary="killed", signal="SIGKILL")


def waits(reason: str | None) -> Pause:
    return Pause(state="hung", since=ago(90), reason=reason, ranks=[1])


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (job("running"), None),
        (
            job("hung", pause=waits("waiting for rank 1, last seen at train.py:79")),
            Guilty(1, None, "the other ranks wait for it"),
        ),
        (job("failed", cause=HANG), Guilty(1, None, "stuck at train.py:79")),
        (job("failed", cause=CAUSE), Guilty(1, None, "failed")),
        (job("failed", cause=RAISED), Guilty(1, None, "ValueError at train.py:7")),
        (job("restarting", attempt=2, previous_cause=KILLED), Guilty(0, 1, "SIGKILL")),
        (job("running", attempt=2, previous_cause=KILLED), None),
        (job("failed", cause=Cause(kind="launch", summary="no such file")), None),
    ],
)
def test_the_guilty_rank_and_why(view: Job, expected: Guilty | None) -> None:
    assert guilty(view) == expected
