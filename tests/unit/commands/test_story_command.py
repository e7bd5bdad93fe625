"""`ddptop story`, and what is suggested for a mistyped verb."""

from __future__ import annotations

import json

import pytest
from ddptop.draw.story import headline
from ddptop.sources.history import JobHistory
from ddptop.sources.past import read_story
from tests.support import fake_story
from tests.support.own_views import read


def test_the_story_is_the_one_of_the_screen(ddptop_home, ddptop_cli):
    folder = fake_story.many_attempts(ddptop_home)
    shown = ddptop_cli("story", "gpt-small")
    job = read(folder)
    attempts = read_story(job, JobHistory(folder.history_db)).attempts
    assert shown.returncode == 0 and shown.stderr == ""
    assert shown.stdout.startswith(f"gpt-small: {headline(attempts, job.state)}\n")
    first, second, third = (shown.stdout.index(f"\nattempt {number} ") for number in range(3))
    assert first < second < third
    assert "✗ SIGKILL, rank 0 first   after 5m 00s" in shown.stdout[second:third]
    last = shown.stdout[third:]
    assert "next step fix data.py:81, then run ddptop restart gpt-small to relaunch" in last
    assert f"evidence  {folder.evidence_dir}/attempt-2-failure" in last
    assert "last lines from rank 2" in last
    assert "press" not in shown.stdout


def test_the_story_as_json(ddptop_home, ddptop_cli):
    fake_story.many_attempts(ddptop_home)
    report = json.loads(ddptop_cli("story", "gpt-small", "--json").stdout)
    assert [row["attempt"] for row in report["attempts"]] == [0, 1, 2]
    second = report["attempts"][1]
    assert (second["ending"], second["ran_s"], second["cause"]["rank"]) == ("failed", 300.5, 0)


@pytest.mark.parametrize(
    ("typed", "suggested"), [("stroy", "story"), ("stopp", ""), ("ll", ""), ("restrat", "")]
)
def test_a_mistyped_verb_gets_no_suggestion_that_changes_a_job(bad_input, typed, suggested):
    line = bad_input(2, typed)
    assert line.startswith(f"ddptop: no command '{typed}'")
    assert (f"did you mean {suggested}?" in line) if suggested else ("did you mean" not in line)


def test_an_unreadable_history_is_an_error(ddptop_home, ddptop_cli):
    folder = fake_story.many_attempts(ddptop_home)
    folder.history_db.write_bytes(b"garbage" * 1000)
    shown = ddptop_cli("story", "gpt-small")
    assert (shown.returncode, shown.stdout) == (1, "")
    (line,) = shown.stderr.splitlines()
    assert "history.db is not a valid history" in line


def test_an_ended_job_is_not_profiled(ddptop_home, bad_input):
    fake_story.many_attempts(ddptop_home)
    assert "gpt-small is not running" in bad_input(2, "profile", "gpt-small")
