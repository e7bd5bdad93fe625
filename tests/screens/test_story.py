"""The story screen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ddptop.sources.history import JobHistory
from ddptop.sources.past import read_story
from ddptop.tui import messages
from ddptop.tui.app import DdptopApp
from ddptop.tui.screens.dialogs import SectionsScreen
from ddptop.tui.screens.logs import LogsScreen
from ddptop.tui.screens.overview import OverviewScreen
from ddptop.tui.screens.story import StoryScreen
from msgspec.structs import replace
from tests.support import fake_home, fake_story
from tests.support.driving import keys_shown, running, said, settle, shown, until
from tests.support.fake_home import write_log
from tests.support.own_views import read
from textual.pilot import Pilot

from ddptop_runner.model.snapshot import Event
from ddptop_runner.model.spec import GitState, read_spec, write_spec

MakeApp = Callable[..., DdptopApp]


def story_of(app: DdptopApp) -> StoryScreen:
    assert isinstance(app.screen, StoryScreen)
    return app.screen


def opened(make_app: MakeApp, job: str = "gpt-small", **options: object) -> DdptopApp:
    return make_app(opening=messages.ScreenWanted("story", job), **options)


async def test_the_previous_attempt_has_another_cause_log_and_events(
    frozen: Path, make_app: MakeApp
) -> None:
    fake_story.many_attempts(frozen)
    async with running(opened(make_app)) as (app, pilot):
        assert "events in attempt 2" in shown(app)
        await pilot.press("j")
        await settle(pilot)
        text = shown(app)
        assert "✗ SIGKILL, rank 0 first   after 5m 00s" in text
        assert "Killed from outside or out of memory: cannot tell." in text
        assert "last lines from rank 0" in text
        assert "restarting all ranks as attempt 2 (restart 2 of 3)" in text
        assert "events in attempt 1" in text


async def test_steps_come_from_the_snapshot_and_the_history(
    frozen: Path, make_app: MakeApp
) -> None:
    folder = fake_story.many_attempts(frozen, attempts=1)
    fake_home.change(folder, step=None)
    story = read_story(read(folder), JobHistory(folder.history_db))
    assert story.attempts[0].steps == 293  # from the last sample before its end


async def test_new_events_are_added_to_those_known(frozen: Path) -> None:
    folder = fake_story.one_attempt(frozen)
    history = JobHistory(folder.history_db)
    first = read_story(read(folder), history)
    assert read_story(read(folder), history).attempts is first.attempts  # nothing is read again
    from ddptop_runner.store.history import HistoryWriter

    writer = HistoryWriter(folder.history_db)
    writer.event(Event(ts=fake_home.NOW, type="alert", message="GPU 1 is slowed", attempt=0))
    writer.close(final=False)
    later = read_story(read(folder), history)
    assert len(later.attempts[0].events) == len(first.attempts[0].events) + 1


async def test_a_job_without_a_failure_reads_well(frozen: Path, make_app: MakeApp) -> None:
    fake_story.one_attempt(frozen)
    async with running(opened(make_app, "calm"), (80, 24)) as (app, pilot):
        text = shown(app)
        assert "1 attempt, no failures; the job is running" in text
        assert "● running   for 59m 57s, 1,200 steps so far" in text
        assert "No failures. Last event: first step after 9.0 s." in text
        await pilot.press("i")
        await pilot.pause()
        assert "attempt 0 did not fail, so no evidence was saved" in said(app)
        assert "Launch again" not in keys_shown(app)


async def test_enter_opens_evidence_of_the_chosen_attempt(frozen: Path, make_app: MakeApp) -> None:
    fake_story.many_attempts(frozen)
    async with running(opened(make_app)) as (app, pilot):
        await pilot.press("j", "enter")
        await until(pilot, lambda: isinstance(app.screen, SectionsScreen))
        await until(pilot, lambda: "attempt-1-failure" in said(app))
        assert "SIGKILL, after step 412" in said(app)
        assert "other evidence" in said(app)
        await pilot.press("escape")
        await pilot.pause()
        assert story_of(app)


async def test_event_is_shown_in_full(frozen: Path, make_app: MakeApp) -> None:
    fake_story.many_attempts(frozen)
    async with running(opened(make_app)) as (app, pilot):
        await pilot.press("tab", "j", "enter")
        await until(pilot, lambda: isinstance(app.screen, SectionsScreen))
        text = said(app)
        assert "4 events" in text
        assert "rank 3 started (pid 4023)" in text


async def test_logs_and_replay_go_to_that_rank_attempt_and_moment(
    frozen: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_story.many_attempts(frozen)
    told: list[messages.ScreenWanted] = []
    async with running(opened(make_app)) as (app, pilot):
        monkeypatch.setattr(app, "open", told.append)
        await pilot.press("j", "l", "p", "tab", "g", "p")
        await pilot.pause()
    logs, replay, at_event = told
    assert (logs.screen, logs.subject, logs.options["attempt"]) == ("logs", ("gpt-small", 0), 1)
    assert replay.screen == at_event.screen == "replay"
    assert replay.subject[1] == fake_story.at(903.5).timestamp()  # where it failed
    assert at_event.subject[1] == fake_story.at(603).timestamp()  # where its ranks were started


async def test_the_log_that_opens_is_of_the_attempt_that_was_chosen(
    frozen: Path, make_app: MakeApp
) -> None:
    folder = fake_story.many_attempts(frozen)
    write_log(folder, 0, 2, "printed by the first attempt\n")
    async with running(opened(make_app)) as (app, pilot):
        await pilot.press("j", "j", "l")
        await until(pilot, lambda: "printed by the first attempt" in shown(app), "the log")
        assert "attempt 0 (latest: 2)" in shown(app)
        await pilot.press("escape")
        await settle(pilot)
        await pilot.press("k", "k", "l")
        await until(pilot, lambda: "ValueError: label 1003" in shown(app), "the latest log")
        assert isinstance(app.screen, LogsScreen)
        assert app.screen.view.attempt is None, "it would not go on with the next attempt's"


async def test_a_filter_leaves_the_events_that_it_names(frozen: Path, make_app: MakeApp) -> None:
    fake_story.many_attempts(frozen)
    async with running(opened(make_app)) as (app, pilot):
        await pilot.press("slash", *"saved")
        await pilot.pause()
        assert "4 checkpoints" in shown(app)
        assert "ranks 0-3 started" not in shown(app)
        await pilot.press("enter", "slash", "space", *"zz", "enter")
        await pilot.pause()
        assert "no events match" in shown(app)
        await pilot.press("escape")
        await pilot.pause()
        assert "ranks 0-3 started" in shown(app)
        assert story_of(app)
        await pilot.press("slash", *"x:3")
        await pilot.pause()
        assert "ranks 0-3 started" in shown(app)  # what cannot be read hides nothing else
        assert "unknown field x" in shown(app)


async def test_what_is_under_the_cursor_is_explained(frozen: Path, make_app: MakeApp) -> None:
    fake_story.many_attempts(frozen)
    async with running(opened(make_app)) as (app, pilot):
        words = dict(story_of(app).explain())
        assert "the rank shown failed first" in words["attempt 2"]
        await pilot.press("tab", "G")
        await pilot.pause()
        assert "failed permanently" in dict(story_of(app).explain())["failed"]


async def test_escape_goes_back_and_the_opening_screen_leaves_by_q(
    frozen: Path, make_app: MakeApp
) -> None:
    fake_story.many_attempts(frozen)
    async with running(opened(make_app, readonly=True), (80, 24)) as (app, pilot):
        assert "Launch again" not in keys_shown(app)
        await pilot.press("R")
        await pilot.pause()
        assert story_of(app)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, OverviewScreen))
        await move(pilot, "e")
        assert story_of(app)
        await pilot.press("q")
        await until(pilot, lambda: isinstance(app.screen, OverviewScreen))
    async with running(opened(make_app), (80, 24)) as (app, pilot):
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running or app._exit)


async def move(pilot: Pilot[None], *keys: str) -> None:
    await pilot.press(*keys)
    await pilot.pause()


async def test_removed_job_is_reported_as_gone(frozen: Path, make_app: MakeApp) -> None:
    async with running(opened(make_app, "never-was"), (80, 24)) as (app, pilot):
        assert "never-was no longer exists" in shown(app)
        await move(pilot, "enter", "l", "p", "i", "tab", "enter")
        assert story_of(app)


async def test_commit_and_note_are_shown(frozen: Path, make_app: MakeApp) -> None:
    folder = fake_story.many_attempts(frozen)
    git = GitState(commit="1a2b3c4d5e6f", branch="main", has_changes=True)
    write_spec(folder, replace(read_spec(folder), git=git, note="larger batch"))
    async with running(opened(make_app), (120, 40)) as (app, _):
        assert "code      1a2b3c4d5e on main, with changes" in shown(app)
        assert "note      larger batch" in shown(app)
