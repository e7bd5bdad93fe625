"""A job that takes no steps, on every screen and in every command: the same words and color."""

from __future__ import annotations

import json

import pytest
from ddptop.commands import status
from ddptop.commands.status_watch import job_line, job_lines
from ddptop.draw import header
from ddptop.job import status as status_text
from ddptop.job.figures.jobs import PlainJob, loss_cell, plain_table
from ddptop.job.loss_trend import LossTrend
from ddptop.job.record import Job
from ddptop.job.status import attention, pause_sentence, pause_state, plain_status, state_of
from ddptop.style import plain
from tests.support.fake_home import NOW, ago
from tests.support.own_views import engine_view, rank, view_of

from ddptop_runner.jobs.contract import job_row, job_status
from ddptop_runner.model.snapshot import Alert, Pause, encode

FALLING = LossTrend("falling", 60.0, -0.2)


def view(
    state: str | None, job_state: str = "running", reason: str | None = None, **more: object
) -> Job:
    pause = None
    if state is not None:
        pause = Pause(state=state, since=ago(25), reason=reason, ranks=[1], **more)
    ranks = [
        rank(n, state="running", step=9, loss=1.5, loss_state="ok", steps_per_s=0.0)
        for n in range(2)
    ]
    return view_of(state=job_state, ranks=ranks, step=9, pause=pause)


WHY = "rank 0 saves a checkpoint"
PAUSES = {
    # state -> (text, style in the interface, color in plain lines)
    "no_step": ("no step for 25 s", "busy", ""),
    "stalled": ("stalled for 25 s", "warn", "warn"),
}


@pytest.mark.parametrize("state", PAUSES)
def test_the_same_words_everywhere(state: str) -> None:
    told, style, color = PAUSES[state]
    one = view(state, reason=WHY)
    (alive, _, learning, *_) = header.header_lines(one, NOW, 160, FALLING)
    assert told in plain(alive) and WHY in plain(alive)
    assert "steps/" not in plain(alive) and "last step" not in plain(alive)
    assert "trend n/a" in plain(learning) and "falling" not in plain(learning)
    assert pause_state(one.snapshot.pause, NOW)[1] == style
    assert state_of(one, NOW)[1] == style
    assert loss_cell(one.snapshot, None)[-1] == (" ", "")
    lines = job_lines(one, job_status(engine_view(one)))
    assert color in ("", "warn") and lines[0][0][0].endswith(told)
    assert (WHY, "") in lines[0]
    assert not any("steps/s" in text for line in lines for text, _ in line)
    assert job_line(one, job_status(engine_view(one)))[1][0] == told
    assert f": {told} ({WHY})" in status.describe(one, job_status(engine_view(one)))


@pytest.mark.parametrize("state", PAUSES)
def test_the_time_to_the_verdict_is_everywhere_without_alarm(state: str) -> None:
    one = view(state, reason="waiting for rank 1", verdict_at=ago(-89), verdict="restart")
    told = "waiting for rank 1; restart in 89 s"
    stalled = Alert(id="stalled", severity="warning", message="no steps", since=ago(3))
    one.snapshot.alerts.extend([stalled] * (state == "stalled"))
    said = attention(one, NOW)
    assert said.sentence.endswith(f"{PAUSES[state][0]}: {told}")
    assert said.style == ("warn" if state == "stalled" else "dim")
    assert told in plain(header.header_lines(one, NOW, 160, FALLING)[0])
    assert (told, "") in job_lines(one, job_status(engine_view(one)))[0]
    assert f"({told})" in status.describe(one, job_status(engine_view(one)))
    assert plain_status(one, NOW) == told
    assert json.loads(encode(job_row(engine_view(one))))["pause"]["verdict"] == "restart"


def test_pause_without_a_warning_needs_no_attention() -> None:
    said = attention(view("no_step", reason=WHY), NOW)
    assert (said.sentence, said.style) == (f"no step for 25 s: {WHY}", "dim")
    assert pause_sentence(view("no_step").snapshot.pause, NOW) == "no step for 25 s"


def test_json_has_it_with_the_state_and_null_during_steps() -> None:
    for of in (job_status, job_row):
        told = json.loads(encode(of(engine_view(view("no_step", reason=WHY)))))
        assert told["state"] == "running"
        assert (told["pause"]["state"], told["pause"]["reason"]) == ("no_step", WHY)
        assert told["pause"]["ranks"] == [1]
        assert json.loads(encode(of(engine_view(view(None)))))["pause"] is None
        ended = json.loads(encode(of(engine_view(view("no_step", "stopped")))))
        assert ended["pause"] is None, "a job that has ended pauses no more"


def test_hung_job_is_reported_as_before() -> None:
    one = view("hung", "hung")
    assert state_of(one, NOW) == status_text.job_state("hung")
    assert "‖ hung" in plain(header.header_lines(one, NOW, 160, FALLING)[0])
    assert job_status(engine_view(one)).pause.state == "hung"
    rows = [
        PlainJob(job_row(engine_view(each)), NOW) for each in (one, view(None), view("stalled"))
    ]
    states = [row[1] for row in plain_table(rows, "ls")[1]]
    assert states[:2] == ["hung", "running"] and states[2].startswith("stalled ")
