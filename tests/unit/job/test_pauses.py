"""A job that takes no steps, on every screen and in every command: the same words and color."""

from __future__ import annotations

import json

import pytest
from ddptop.commands import status
from ddptop.commands.status_watch import job_lines
from ddptop.draw import header
from ddptop.job import status as status_text
from ddptop.job.figures.jobs import Subject, job_table, loss_cell
from ddptop.job.record import Job
from ddptop.job.series import LossTrend
from ddptop.job.status import attention, pause_sentence, state_of
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
    # state -> (text, style)
    "no_step": ("no step for 25 s", "busy"),
    "stalled": ("stalled for 25 s", "warn"),
}
SYMBOLS = {"no_step": "◌", "stalled": "▲"}


@pytest.mark.parametrize("state", PAUSES)
def test_the_same_words_everywhere(state: str) -> None:
    told, style = PAUSES[state]
    one = view(state, reason=WHY)
    (alive, _, learning, *_) = header.header_lines(one, NOW, 160, FALLING)
    assert told in plain(alive) and WHY in plain(alive)
    assert "steps/" not in plain(alive) and "last step" not in plain(alive)
    assert "trend n/a" in plain(learning) and "falling" not in plain(learning)
    assert state_of(one) == (f"{SYMBOLS[state]} {state.replace('_', ' ')}", style)
    assert loss_cell(one.snapshot, None)[-1] == (" ", "")
    assert f"{told}: {WHY}" in attention(one, NOW).sentence
    lines = [plain(line) for line in job_lines(one, 160)]
    assert told in lines[0] and WHY in lines[0] and "steps/s" not in "".join(lines)
    assert f"{told}, {WHY}" in status.describe(one)


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
    assert told in plain(job_lines(one, 160)[0]) and told in status.describe(one)
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
    assert state_of(one) == status_text.job_state("hung")
    assert "‖ hung" in plain(header.header_lines(one, NOW, 160, FALLING)[0])
    rows = [Subject(attention(each, NOW), NOW) for each in (one, view(None), view("stalled"))]
    assert [row[1] for row in job_table(rows, "ls")[1]] == ["hung", "running", "stalled"]
