"""The report: its figures against ones computed by hand, and its pages with hostile texts."""

from __future__ import annotations

import datetime as dt
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from ddptop.export.report import ByTime, Report, gpu_hours, periods_of, read_report, times
from ddptop.export.report_page import MOST_CHARS, markdown, page
from ddptop.export.settings import ReportTable
from ddptop.job.attempts import attempts_of
from ddptop.sources.history import JobHistory
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.fake_home import (
    HOST,
    ago,
    failed_job,
    finished_job,
    gpu,
    make_folder,
    snapshot_of,
    spec_of,
    two_cpu_ranks,
    write_snapshot,
)
from tests.support.own_views import read
from tests.support.rows import row

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.model.snapshot import Cause, RankSample
from ddptop_runner.model.spec import Device
from ddptop_runner.store.history import HistoryWriter

HOSTILE = '<script src=//x>1</script> | `a` "b" *c* _d_ [e](f) &lt; \x1b[31m\u202e \n# g'
LIVED_S = 300


def at(second: float) -> dt.datetime:
    return ago(1000 - second)


def two_attempts(home: Path, text: str = "bad batch") -> RunFolder:
    """Steps of a second: 100, of which 40 are lost, then 40, a pause of a minute, and 40."""
    spec = spec_of(
        "bert", 2, 1000, args=[text], note=text, devices=[Device(index=0), Device(index=1)]
    )
    folder = make_folder(home, spec)
    cause = Cause(
        kind="exception", rank=1, headline=text, summary=text, exception="E", work_lost_steps=90
    )
    events = [
        row(at(0), "launched", attempt=0),
        row(at(10), "attempt_started", attempt=0),
        row(at(30), "training", attempt=0),
        row(at(90), "checkpoint", attempt=0, path="/ck/60.pt", step=60),
        row(at(100), "alert", text, attempt=0, id="straggler"),
        row(at(105), "alert", text, attempt=0, id="straggler"),
        row(at(110), "alert_over", attempt=0, messages={"straggler": "over"}),
        row(at(120), "alert", text, attempt=0, id="straggler"),
        row(at(130), "failure", attempt=0, cause=cause),
        row(at(150), "attempt_started", attempt=1),
        row(at(160), "training", attempt=1),
        row(at(170), "alert_over", attempt=1, messages={"straggler": "over"}),
        row(at(300), "finished", attempt=1),
    ]
    writer = HistoryWriter(folder.history_db, batch_s=1e9)
    for event in events:
        writer.event(event)
    for second in [*range(10, 130), *range(150, LIVED_S)]:
        attempt = int(second >= 150)
        step = second - 29 if attempt == 0 else min(second, 199) - 159 + max(0, second - 259)
        ranks = [
            RankSample(
                rank=number,
                local_rank=number,
                host=HOST,
                step=max(0, step),
                loss=5.0 - step / 100 if step > 0 else None,
                loss_state="ok",
                step_time_s=1.0,
                data_wait_s=0.1,
                sync_s=0.25,
            )
            for number in range(2)
        ]
        gpus = [gpu(number, util_percent=80.0, power_w=360.0) for number in range(2)]
        writer.add(at(second).timestamp(), attempt, ranks, gpus)
    writer.close(final=True)
    ended = {"state": "finished", "ts": at(300), "ended_at": at(300), "exit_code": 0}
    began = {"attempt": 1, "attempts_began": {0: 0, 1: 60}, "step": 80, "guardian": None}
    write_snapshot(folder, snapshot_of(spec, started_at=at(0), **ended, **began))
    return folder


def report_of(folder: RunFolder) -> Report:
    return read_report(read(folder), JobHistory(folder.history_db))


def test_the_figures_are_those_computed_by_hand(ddptop_home: Path) -> None:
    report = report_of(two_attempts(ddptop_home))
    expected = {
        "training": 140,
        "lost training": 40,
        "starting": 30,
        "pauses": 60,
        "between attempts": 30,
    }
    assert report.times_s == pytest.approx(expected, abs=2)
    assert sum(report.times_s.values()) == pytest.approx(LIVED_S)
    assert report.steps_lost == {0: 40}, "from where attempt 1 continued, not as the cause guessed"
    hours = {
        "computing": 0.55 * 360, "waiting for ranks": 0.25 * 360, "waiting for data": 0.1 * 360,
        "idle": 0.1 * 360, "no steps": 180, "not recorded": 0,
    }  # fmt: skip
    found = {part: (value or 0) * 3600 for part, value in report.gpu_hours.items()}
    assert found == pytest.approx(hours, abs=4)
    assert report.energy_kwh == pytest.approx(360 * 540 / 3.6e6)
    assert report.energy_known == pytest.approx(1.0)
    assert (report.checkpoints, report.checkpoint and report.checkpoint.name) == (1, "60.pt")
    (finding,) = report.findings
    assert (finding.times, finding.lasted_s, finding.open_since) == (2, 60.0, None)
    text = markdown(report, ReportTable(price_per_kwh=100, currency="EUR"))
    for expected_line in (
        "- energy: 0.05 kWh",
        "- cost: 5.40 EUR at 100 per kWh",
        "- best loss: 4.0000 at step 100",
        "| no steps | 0.05 h | 33.",
    ):
        assert expected_line in text


seconds = st.floats(0, 500)


@given(
    st.lists(st.tuples(seconds, seconds, seconds, st.lists(seconds)), min_size=1, max_size=4),
    st.sets(st.integers(0, 2000)),
    st.floats(0, 100),
)
def test_the_parts_add_up_to_the_whole(
    shared_home: RunFolder,
    attempts: list[tuple[float, float, float, list[float]]],
    missing: set[int],
    util: float,
) -> None:
    now, events, stepped = 0.0, [row(at(0), "launched", attempt=0)], []
    held = 0.0
    for number, (wait, starts, trains, steps) in enumerate(attempts):
        events.append(row(at(now + wait), "attempt_started", attempt=number))
        events.append(row(at(now + wait + starts), "training", attempt=number))
        now += wait + starts + trains
        held += starts + trains
        events.append(row(at(now), "failure", attempt=number))
        stepped += [at(now - step).timestamp() for step in steps]
    job = read(shared_home)
    found = attempts_of(events, "failed", at(now), dict.fromkeys(range(4), 100))
    periods = periods_of(job, found, {0: 30}, sorted(stepped), 10.0)[:-1]
    assert sum(times(periods).values()) == pytest.approx(now, abs=0.01)
    start = int(at(0).timestamp())
    values = {start + s: [util, util] for s in range(int(now)) if s not in missing}
    shares = dict.fromkeys(values, 0.4)
    assume(values)
    hours = gpu_hours(periods, ByTime(values, 1), shares, shares, 1)
    assert sum(value or 0 for value in hours.values()) == pytest.approx(2 * held / 3600, abs=0.001)
    assert all(value is None or value > -1e-6 for value in hours.values())


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A job whose attempts a test makes up."""
    return failed_job(tmp_path_factory.mktemp("home"))


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        self.attributes |= {name for name, _ in attributes}


def test_hostile_texts_stay_texts(ddptop_home: Path) -> None:
    report = report_of(two_attempts(ddptop_home, HOSTILE))
    html = page(report, ReportTable(price_per_kwh=1, currency="<b>"))
    tags = Tags()
    tags.feed(html)
    assert "svg" in tags.found and not tags.found & {"script", "b", "a", "img", "link", "iframe"}
    assert not tags.attributes & {"src", "href", "onerror", "xlink:href"}
    assert "url(" not in html and "@import" not in html
    assert "\x1b" not in html and "\u202e" not in html
    text = markdown(report, ReportTable())
    assert "\x1b" not in text
    assert not re.search(r"(?<!\\)[<`]", text)
    rows = [line for line in text.splitlines() if line.startswith("| 0 |")]
    assert [len(re.findall(r"(?<!\\)\|", one)) for one in rows] == [9]


def test_the_latest_rows_are_kept_and_long_texts_are_cut(ddptop_home: Path) -> None:
    report = report_of(two_attempts(ddptop_home, "x" * 1000))
    attempts = tuple(replace(report.attempts[0], number=n) for n in reversed(range(40)))
    (one,) = report.findings
    found = tuple(replace(one, message=f"finding {n}") for n in range(40))
    changed = replace(report, attempts=attempts, findings=found, energy_known=0.5)
    text = markdown(changed, ReportTable())
    assert "## Attempts (10 earlier ones left out)" in text
    latest = [str(n) for n in range(10, 40)]
    assert re.findall(r"^\| (\d+) \|", text, re.M) == latest
    assert re.findall(r"^\| finding (\d+) ", text, re.M) == latest
    assert max(map(len, re.findall("x+", text))) < MOST_CHARS
    assert "kWh, known for 50% of the GPU hours" in text


def test_unknown_is_na(ddptop_home: Path) -> None:
    text = markdown(report_of(two_cpu_ranks(ddptop_home)), ReportTable(price_per_kwh=1))
    assert "GPU hours" not in text
    assert "cost" not in text
    assert "- time left: " in text
    report = report_of(finished_job(ddptop_home))  # without a history
    assert re.findall("^## (.*)", markdown(report, ReportTable()), re.M) == ["Run"]
    assert "<svg" not in page(report, ReportTable())


def test_the_time_before_a_relaunch_does_not_count(shared_home: RunFolder) -> None:
    events = [
        row(at(0), "launched", attempt=0),
        row(at(10), "attempt_started", attempt=0),
        row(at(12), "training", attempt=0),
        row(at(100), "finished", attempt=0),
        row(at(500), "launched", attempt=1),
        row(at(530), "attempt_started", attempt=1),
        row(at(532), "training", attempt=1),
        row(at(600), "finished", attempt=1),
    ]
    job = replace(read(shared_home), ended_at=at(600))
    found = times(periods_of(job, attempts_of(events, "finished", at(600), {}), {}, [], 1000))
    assert found["between attempts"] == pytest.approx(10 + 30)
    assert sum(found.values()) == pytest.approx(100 + 100)
