"""Which job is listed first, and the sentence that says why."""

from __future__ import annotations

import datetime as dt

import msgspec
import pytest
from ddptop.draw.panels import about
from ddptop.job.figures.jobs import by_text, calm_duration, columns_for
from ddptop.job.help import explain_job
from ddptop.job.record import Job, foreign_job
from ddptop.job.series import LossTrend
from ddptop.job.status import (
    Attention,
    Need,
    attention,
    brief_place,
    next_step,
    ranked,
    seen_key,
    short_cause,
    state_of,
)
from ddptop.style import fit_columns
from tests.support import fake_foreign, fake_gpus
from tests.support.fake_home import NOW, ago, snapshot_of, spec_of
from tests.support.own_views import rank, read, row_of, view_of
from tests.support.tables import table

from ddptop_runner.model.snapshot import Alert, Cause, RankSample
from ddptop_runner.model.spec import Waiting

RAISED = Cause(
    kind="exception",
    rank=1,
    exception="ValueError",
    place="/home/ada/finetune.py:10 in batch",
    headline="rank 1: ValueError: shard 7 holds 63 columns, the model takes 64 at finetune.py:10",
    summary="Rank 1 (pid 4711) raised an exception at step 120. ValueError: shard 7 holds 63 "
    "columns, the model takes 64 (at finetune.py:10 in batch). "
    "3 other ranks were stopped as a result.",
)


def job(name: str, state: str = "running", age_s: float = 600, **more: object) -> Job:
    """A job with this name and age and a live guardian."""
    spec = spec_of(name, 2, age_s)
    ended = {} if state in LIVE else {"ended_at": ago(age_s - 60)}
    view = view_of(snapshot_of(spec, **{"state": state, **ended, "step": 5, **more}))
    return msgspec.structs.replace(
        view, name=spec.job, created_at=spec.created_at, launch_spec=spec
    )


LIVE = ("running", "hung", "starting", "queued", "restarting", "stopping")


def alert(severity: str, message: str = "it is odd", id_: str = "odd") -> Alert:
    return Alert(id=id_, severity=severity, message=message, since=ago(90))


def test_what_needs_a_person_stands_on_top_and_ended_jobs_below_newest_first() -> None:
    views = [
        job("old", "finished", 9000),
        job("queued", "queued"),
        job("calm"),
        job("young", "starting"),
        job("newer", "stopped", 800),
        job("slow", ranks=SLOW, alerts=[alert("warning", "rank 3 is slow", "straggler")]),
        job("warned", alerts=[alert("warning")]),
        job("bad", alerts=[alert("warning"), alert("error")]),
        job("lost", "lost", 700),
        job("stuck", "hung"),
        job("crashed", "failed", 400, cause=RAISED),
        job("crashed-long-ago", "failed", 99_000, cause=RAISED),
    ]
    order = [one.job.name for one in ranked(views, NOW, (), "need")]
    assert order == [
        *("crashed", "stuck", "lost", "bad", "warned", "slow", "calm", "young", "queued"),
        *("newer", "old", "crashed-long-ago"),
    ]
    seen = {seen_key(view) for view in views if view.name in ("crashed", "lost")}
    order = [one.job.name for one in ranked(views, NOW, seen, "need")]
    assert order[:2] == ["stuck", "bad"]
    assert order[-5:] == ["lost", "crashed", "newer", "old", "crashed-long-ago"]
    again = {("crashed", ago(100_000))}  # it was opened after an earlier failure
    assert ranked(views, NOW, again, "need")[0].job.name == "crashed"


def test_who_holds_up_the_others_is_the_least_of_warnings() -> None:
    slow = alert("warning", "rank 3 is holding up the others: 38% of each step", "straggler")
    view = job("a", alerts=[slow])
    found = attention(view, NOW)
    assert found.need is Need.UNEVEN
    assert found.sentence == "▲ rank 3 is holding up the others: 38% of each step (for 1m)"
    other = job("a", alerts=[slow, alert("warning", "GPU 3 is hot")])
    assert attention(other, NOW).need is Need.WARNING
    assert attention(other, NOW).sentence == "▲ GPU 3 is hot (for 1m; 1 more)"


def test_own_jobs_come_before_foreign_ones() -> None:
    theirs, ill = foreign_job(fake_foreign.healthy()), foreign_job(fake_foreign.with_findings())
    views = [
        theirs,
        ill,
        job("calm", age_s=99_000),
        job("bad", age_s=9000, alerts=[alert("error")]),
    ]
    needs = {view.name: attention(view, NOW).need for view in views}
    assert needs[theirs.name] == needs["calm"] and needs[ill.name] == needs["bad"]
    order = [one.job.name for one in ranked(views, NOW, (), "need")]
    assert order == ["bad", "calm", ill.name, theirs.name]


def test_other_orders() -> None:
    views = [job("b", age_s=100), job("A", age_s=300), job("c", "finished", 200)]

    def order(by: str) -> list[str]:
        return [one.job.name for one in ranked(views, NOW, (), by)]

    assert order("name") == ["A", "b", "c"]
    assert order("started") == ["b", "c", "A"]


SLOW = [
    rank(
        n, state="running", step=5, step_time_s=0.5 if n == 3 else 0.3, data_wait_s=0.16 * (n == 3)
    )
    for n in range(4)
]
WELL = [rank(n, state="running", step=5, step_time_s=0.3) for n in range(4)]
TYPES = {
    "ranks": list[RankSample],
    "alerts": list[Alert],
    "cause": Cause,
    "previous_cause": Cause,
    "attempt_started_at": dt.datetime,
}


def from_table(name: str, value: object) -> object:
    """A field of a snapshot."""
    if value == "RAISED":
        return RAISED
    if name == "ranks":
        value = [{"local_rank": one["rank"], "host": "h", **one} for one in value]
    return msgspec.convert(value, TYPES.get(name, object))


@pytest.mark.parametrize("case", table(__file__, "sentences"), ids=lambda case: case[-1][:24])
def test_one_sentence(case: list[object]) -> None:
    state, age_s, fields, sentence = case
    view = job("a", state, age_s, **{name: from_table(name, one) for name, one in fields.items()})
    assert attention(view, NOW).sentence == sentence


def test_without_a_step_a_job_is_only_running() -> None:
    assert attention(job("a", step=None), NOW).sentence == "running; no steps yet"


@pytest.mark.parametrize("state", ["running", "restarting"])
def test_job_that_recovers_by_itself_needs_no_attention(state: str) -> None:
    found = attention(job("a", state, previous_cause=RAISED, attempt_started_at=ago(20)), NOW)
    assert (found.need, found.style) == (Need.RUNNING, "dim")


def test_a_guardian_that_was_killed_and_old_figures_are_warnings() -> None:
    view = msgspec.structs.replace(job("a", ranks=WELL), guarded=False)
    assert attention(view, NOW).need is Need.WARNING
    assert "guardian" in attention(view, NOW).sentence
    old = job("b", ranks=WELL, ts=ago(30))
    assert attention(old, NOW).sentence.startswith("▲ last update 30 s ago")


def test_foreign_jobs_are_shown_as_far_as_known(frozen: object) -> None:
    healthy = foreign_job(fake_foreign.healthy())
    assert attention(healthy, NOW).sentence == "no problems detected"
    assert attention(foreign_job(fake_foreign.with_findings()), NOW).need is Need.ERROR
    ending = msgspec.structs.replace(healthy, stopping="SIGINT sent")
    assert attention(ending, NOW) == Attention(ending, Need.RUNNING, "SIGINT sent", "dim")
    assert state_of(ending)[0] == "◌ stopping"
    gone = foreign_job(fake_foreign.gone())
    assert attention(gone, NOW).need is Need.ENDED
    assert attention(gone, NOW).sentence.startswith("1m ago: its processes have exited")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"summary": "The agent\nexited."}, "The agent exited."),
        ({"headline": "rank 1: it\nfailed", "summary": "more"}, "rank 1: it failed"),
        ({"headline": "rank 1 failed", "summary": "more", "host": "b"}, "b: rank 1 failed"),
    ],
)
def test_short_causes(fields: dict[str, str], text: str) -> None:
    assert short_cause(Cause(kind="unknown", **fields)) == text


def test_places_are_brief() -> None:
    assert brief_place("/home/a/train.py:81 in step") == "train.py:81"
    assert brief_place("train.py:81") == "train.py:81"


def test_what_to_do_next() -> None:
    def step(view: Job, *, readonly: bool = False) -> str:
        return next_step(attention(view, NOW), readonly=readonly)

    failed = job("a", "failed", cause=RAISED)
    assert step(failed) == "e: cause and evidence; l: logs; R: relaunch"
    assert "R:" not in step(failed, readonly=True)
    assert step(job("a", "stopped")) == "e: story; l: logs; R: relaunch"
    assert "stacks for all ranks" in step(job("a", "hung"))
    assert step(job("a", alerts=[alert("error")])).startswith("f: findings and remedies")
    assert step(job("a", ranks=WELL)) == ""
    lost = job("a", "lost")
    queued = msgspec.structs.replace(lost.spec, queue=Waiting(candidates=[], count=1, since=NOW))
    waited = msgspec.structs.replace(lost, launch_spec=queued)
    assert step(waited) == "U: queue it again; ddptop queue restore: all of them"
    assert (step(waited, readonly=True), step(lost)[:2]) == ("", "e:")


def test_a_row_has_the_sentence_the_trend_and_a_mark() -> None:
    view = job("a", ranks=[rank(0, loss=2.5, loss_state="ok")])
    row = row_of(view, trend=LossTrend("rising", 60.0, 0.1), marked=True)
    assert row["loss"] == (("2.5000 ", ""), ("↗", "warn"))
    assert row["job"] == (("◆ ", "chosen"), ("a", "strong"))
    ended = job("b", "failed", 400, cause=RAISED)
    row = row_of(ended)
    assert row["why"][0][1] == "bad"
    assert row_of(ended, {seen_key(ended)})["why"][0][1] == "dim"


def test_a_row_names_the_hosts_of_a_job_on_several_unless_there_is_trouble() -> None:
    ranks = [msgspec.structs.replace(rank(number), host=host) for number, host in enumerate("abc")]
    calm, hot = (job("a", ranks=ranks, alerts=alerts) for alerts in ([], [alert("error")]))
    shown = ["".join(text for text, _ in row_of(one)["why"]) for one in (calm, hot)]
    assert [text.startswith("a, b, c: ") for text in shown] == [True, False], shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "n/a"), (3, "<1m"), (59.9, "<1m"), (60, "1m"), (3599, "59m"), (3600, "1h 00m")],
)
def test_how_long_it_lasts_changes_once_a_minute(seconds: float | None, text: str) -> None:
    assert calm_duration(seconds) == text


@pytest.mark.parametrize("cells", [58, 79, 119, 199])
def test_the_sentence_has_what_the_other_columns_leave(cells: int) -> None:
    columns = columns_for(cells, ["a" * 9], ["● running"], ())
    widths = {column.key: size for column, size in fit_columns(columns, cells)}
    assert widths["job"] == 9
    assert widths["why"] >= {58: 25, 79: 30, 119: 30, 199: 60}[cells]
    assert sum(size + 1 for size in widths.values()) <= cells


def test_the_help_explains_the_state_of_the_row(frozen: object) -> None:
    told = dict(explain_job(attention(read(fake_gpus.eight_gpu_ranks(frozen)), NOW)))
    assert told["llama-ft: ● running"].startswith("Taking steps")


def test_a_job_in_another_ddptop_home_is_not_called_foreign() -> None:
    torchrun = foreign_job(fake_foreign.healthy())
    job = msgspec.structs.replace(torchrun.foreign, launcher="ddptop")
    other = foreign_job(fake_foreign.view_of(job, torchrun.snapshot.ranks, []))
    assert by_text(other, other.user)[0] == "ddptop, other home"
    assert by_text(other, "somebody")[0] == f"{other.user}: ddptop"
    assert about(other).startswith("in another DDPTOP_HOME: user ")
    assert about(torchrun).startswith("not started by ddptop: ")
