"""Foreign jobs watched from look to look: real processes, and bounded memory over days."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import os
import random
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.foreign.toys import (
    census_of,
    job_of,
    lines_in,
    long_ago,
    printer,
    rank_of,
    running,
    stop_and_wait,
)

from ddptop_runner.clock import utc_now
from ddptop_runner.foreign import job_record, loss_history
from ddptop_runner.foreign.loss_history import LossHistory
from ddptop_runner.foreign.types import Census
from ddptop_runner.foreign.view import ForeignView
from ddptop_runner.foreign.visible import cuda_index, ordered_devices
from ddptop_runner.foreign.watch import ForeignBook
from ddptop_runner.loss_text import Reading
from ddptop_runner.model import GpuProcess, GpuSample
from ddptop_runner.progress.from_text import TextProgress

SLEEP = (sys.executable, "-c", "import time; time.sleep(1000)")
FAR = 4e9
"""A unix time after all that a test does."""


@pytest.fixture
def book() -> Iterator[ForeignBook]:
    one = ForeignBook()
    yield one
    one.close()


def look(book: ForeignBook, census: Census, follow: str | None = None, **changes: Any) -> Any:
    """The view of the job that is followed, else of the only one."""
    views = book.look(census, changes.get("gpus", []), changes.get("now", utc_now()), follow=follow)
    if follow is None:
        (view,) = views
        return view
    return next(view for view in views if view.job == follow)


def memory_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def first_rank(view: ForeignView) -> Any:
    return view.snapshot.ranks[0]


# -- what it prints --------------------------------------------------------------------------------


def test_losses_of_a_growing_file(book: ForeignBook, tmp_path: Path, wait_until) -> None:
    path = tmp_path / "train.log"
    with path.open("wb") as file, running(*printer(), stdout=file, stderr=file) as process:
        wait_until(lambda: lines_in(path) > 5)
        job = job_of(process.pid, started_at=long_ago())
        census = census_of(job)
        view = look(book, census, job.name)
        rank = first_rank(view)
        assert rank.loss_source == "log"
        assert rank.step >= 4
        assert rank.global_step == rank.step == rank.loss_step
        assert rank.loss == pytest.approx(2.5 - rank.step / 1000)
        assert view.snapshot.total_steps == 1000
        assert view.output == f"file {path}"
        first = book.lines(job.name)
        assert first.anew
        assert first.lines[0] == "step 0/1000 loss 2.5000"

        def faster() -> bool:
            return first_rank(look(book, census, job.name)).steps_per_s is not None

        wait_until(faster)
        view = look(book, census, job.name)
        assert 5 < first_rank(view).steps_per_s < 60
        assert first_rank(view).step_time_s == pytest.approx(1 / first_rank(view).steps_per_s)
        assert 10 < view.snapshot.eta_s < 300
        later = book.lines(job.name)
        assert not later.anew
        assert later.lines[0] == f"step {len(first.lines)}/1000 loss " + (
            f"{2.5 - len(first.lines) / 1000:.4f}"
        )
        assert book.lines(job.name).lines == ()
        series = book.chart(job.name, 0, FAR, 100)[0]
        assert series.t == sorted(series.t)
        assert 2.0 < series.last[-1] < 2.5
        span = book.span(job.name)
        assert span is not None
        assert abs(span[1] - time.time()) < 10


def test_what_an_earlier_run_appended_is_not_this_runs_loss(
    book: ForeignBook, tmp_path: Path
) -> None:
    path = tmp_path / "nohup.out"
    path.write_text("step 900/1000 loss 0.1\n")
    with path.open("ab") as file, running(*SLEEP, stdout=file) as process:
        job = job_of(process.pid)
        census = census_of(job)
        rank = first_rank(look(book, census, job.name))
        assert (rank.loss, rank.step) == (None, None)
        assert book.lines(job.name).lines == ("step 900/1000 loss 0.1",)
        file.write(b"step 1/1000 loss 3.5\n")
        file.flush()
        rank = first_rank(look(book, census, job.name))
        assert (rank.loss, rank.step, rank.global_step) == (3.5, 1, 1)


def test_ranks_with_files_of_their_own(book: ForeignBook, tmp_path: Path) -> None:
    with (
        (tmp_path / "rank0.log").open("wb", buffering=0) as first,
        (tmp_path / "rank1.log").open("wb", buffering=0) as second,
        running(*SLEEP, stdout=first) as one,
        running(*SLEEP, stdout=second) as two,
    ):
        job = job_of(one.pid, two.pid)
        census = census_of(job)
        look(book, census, job.name)
        first.write(b"step 10 loss 2.5\n")
        second.write(b"step 12 loss nan\n")
        view = look(book, census, job.name)
        ranks = view.snapshot.ranks
        assert [(r.loss, r.loss_state, r.step) for r in ranks] == [
            (2.5, "ok", 10),
            (None, "nan", 12),
        ]
        assert view.snapshot.step == 10
        assert book.lines(job.name, 1).lines == ("step 12 loss nan",)
        assert [alert.id for alert in view.snapshot.alerts] == ["loss-nan"]
        assert book.events(job.name)[0].type == "alert"
        assert list(book.chart(job.name, 0, FAR, 10)) == [0, 1]
        assert book.chart(job.name, 0, FAR, 10)[1].nonfinite_t


def test_lines_of_one_output_go_to_the_rank_that_they_name(
    book: ForeignBook, tmp_path: Path
) -> None:
    with (
        (tmp_path / "log").open("wb", buffering=0) as file,
        running(*SLEEP, stdout=file) as one,
        running(*SLEEP, stdout=file) as two,
    ):
        job = job_of(one.pid, two.pid)
        census = census_of(job)
        view = look(book, census, job.name)
        assert "count as" not in (view.output or "")
        file.write(b"[1]<stdout>:step 3 loss 1.5\n[default0]:step 3 loss 2.5\n")
        file.write(b"[7]<stdout>:step 3 loss 9.5\n")  # a rank of another host
        view = look(book, census, job.name)
        assert [r.loss for r in view.snapshot.ranks] == [2.5, 1.5]
        file.write(b"step 4 loss 3.5\n")
        view = look(book, census, job.name)
        assert [r.loss for r in view.snapshot.ranks] == [3.5, 1.5]
        assert (view.output or "").endswith("lines that name no rank count as rank 0's")


def test_what_a_launcher_hands_on_of_a_ranks_own_output_is_not_read_twice(
    book: ForeignBook, tmp_path: Path
) -> None:
    with (
        (tmp_path / "all").open("wb", buffering=0) as all_,
        (tmp_path / "rank0").open("wb", buffering=0) as own,
        running(*SLEEP, stdout=all_) as launcher,
        running(*SLEEP, stdout=own) as rank,
    ):
        job = job_of(rank.pid, root_pid=launcher.pid, launcher_pids=(launcher.pid,))
        census = census_of(job)
        look(book, census, job.name)
        own.write(b"step 3/9 loss 2.5\n")
        all_.write(b"[default0]:step 2/9 loss 3.5\n")
        view = look(book, census, job.name)
        assert (first_rank(view).loss, first_rank(view).step) == (2.5, 3)
        assert view.snapshot.total_steps == 9
        assert book.lines(job.name).lines == ("[default0]:step 2/9 loss 3.5",)
        assert book.lines(job.name, 0).lines == ("step 3/9 loss 2.5",)


def test_a_bar_beside_lines_does_not_mix_with_their_steps() -> None:
    progress = TextProgress()
    at = utc_now()
    for number in range(30):
        at += dt.timedelta(seconds=1)
        bar = Reading(step=number % 10, total=10, counts="epoch", loss=1.0)
        progress.hear(bar, at, source=1)
        if number >= 5:
            progress.hear(Reading(step=number * 100, loss=2.0), at, source=2)
    assert progress.step == 2900
    assert progress.counts_run
    assert progress.steps_per_s(at) == pytest.approx(100)
    for number in range(40):
        at += dt.timedelta(seconds=1)
        progress.hear(Reading(step=number % 20, total=20, counts="epoch"), at, source=1)
    assert progress.step == 19
    assert not progress.counts_run


def test_validations_and_epochs_are_told_apart(book: ForeignBook, tmp_path: Path) -> None:
    with (
        (tmp_path / "log").open("wb", buffering=0) as file,
        running(*SLEEP, stdout=file) as process,
    ):
        job = job_of(process.pid)
        census = census_of(job)
        look(book, census, job.name)
        file.write(b"Epoch: [3][11/25]\tLoss 2.5 (2.6)\nTest: [ 1/25]\tLoss 1.5 (1.5)\n")
        view = look(book, census, job.name)
        rank = first_rank(view)
        assert (rank.loss, rank.step, rank.global_step) == (2.5, 11, None)
        assert rank.metrics == {"epoch": 3.0, "validation loss": 1.5}
        assert view.snapshot.total_steps is None
        assert view.snapshot.eta_s is None


def test_why_an_output_cannot_be_read_is_said(book: ForeignBook) -> None:
    with running(*SLEEP, stderr=subprocess.DEVNULL) as process:
        job = job_of(process.pid)
        view = look(book, census_of(job), job.name)
        assert view.output == book.output_words(job.name) == "/dev/null: nothing is kept"
        assert first_rank(view).loss is None
        assert first_rank(view).last_progress_at is None
        assert book.lines(job.name).lines == ()
    assert book.output_words("nobody:1") == "not known"
    assert book.chart("nobody:1", 0, FAR, 10) == {}


@pytest.mark.tmux
def test_losses_in_a_tmux_pane(book: ForeignBook, wait_until: Callable[..., Any]) -> None:
    socket = f"/tmp/ddptop-test-{uuid.uuid4().hex[:10]}"
    tmux = ["tmux", "-S", socket, "-f", "/dev/null"]
    try:
        subprocess.run(
            [*tmux, "new-session", "-d", "-s", "work", f"exec {shlex.join(printer())}"],
            check=True,
            timeout=10,
            env={**os.environ, "TMUX": ""},
        )
        answer = subprocess.run(
            [*tmux, "list-panes", "-F", "#{pane_pid}"], check=True, capture_output=True, timeout=10
        )
        pid = int(answer.stdout)
        # the server is found by the pane's own $TMUX: the socket is in no usual place
        job = job_of(pid)
        census = census_of(job)
        assert look(book, census, job.name).output == "tmux pane work:0.0 (captured)"
        wait_until(lambda: first_rank(look(book, census, job.name)).loss is not None)
        assert 2 < first_rank(look(book, census, job.name)).loss <= 2.5
        assert any("loss" in line for line in book.lines(job.name).lines)
    finally:
        subprocess.run([*tmux, "kill-server"], capture_output=True, check=False)
        Path(socket).unlink(missing_ok=True)


def test_a_large_log_is_read_from_its_end(book: ForeignBook, tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.truncate(1 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\nstep 5 loss 2.5\n")
        file.flush()
        with running(*SLEEP, stdout=file) as process:
            job = job_of(process.pid)
            started = time.process_time()
            rank = first_rank(look(book, census_of(job), job.name))
            assert time.process_time() - started < 1.0
            assert rank.loss == 2.5


# -- what becomes of it ----------------------------------------------------------------------------


def test_states_reach_the_ranks(book: ForeignBook, wait_until: Callable[..., Any]) -> None:
    with running(*SLEEP) as one, running(*SLEEP) as two:
        job = job_of(one.pid, two.pid)
        for process in (one, two):  # past fork and exec
            wait_until(lambda pid=process.pid: memory_of(pid) > 4 << 20)
        stop_and_wait(two.pid, wait_until)
        view = look(book, census_of(job))
        assert view.state == "running"
        assert [rank.state for rank in view.snapshot.ranks] == ["running", "paused"]
        assert "SIGCONT" in (view.snapshot.ranks[1].state_reason or "")
        assert [alert.id for alert in view.snapshot.alerts] == ["paused"]
        assert all(rank.rss_bytes for rank in view.snapshot.ranks)


def test_a_followed_job_that_is_gone_stays_as_lost(book: ForeignBook) -> None:
    with running(*SLEEP) as process, running(*SLEEP) as other:
        job, stranger = job_of(process.pid), job_of(other.pid, started_at=long_ago())
        census = census_of(stranger, job)
        views = book.look(census, [], utc_now(), follow=job.name)
        assert [view.job for view in views] == [job.name, stranger.name]  # newest first
        assert views[0].is_live
        later = utc_now() + dt.timedelta(seconds=2)
        (view,) = book.look(Census(), [], later, follow=job.name)
        assert (view.job, view.state, view.ended_at) == (job.name, "lost", later)
        assert not view.is_live
        assert [rank.state for rank in view.snapshot.ranks] == ["unknown"]
        much_later = later + dt.timedelta(seconds=9)
        (view,) = book.look(Census(), [], much_later, follow=job.name)
        assert view.ended_at == later
        assert [event.type for event in book.events(job.name)] == ["lost", "watched"]
        assert book.look(Census(), [], much_later) == []
        assert book.events(job.name) == []


def test_what_the_next_run_writes_is_not_the_lost_jobs(book: ForeignBook, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb", buffering=0) as file:
        with running(*SLEEP, stdout=file) as process:
            job = job_of(process.pid)
            look(book, census_of(job), job.name)
            file.write(b"step 1 loss 2.5\n")
        view = look(book, Census(), job.name)  # its last words are read
        assert (view.state, first_rank(view).loss) == ("lost", 2.5)
        assert book.lines(job.name).lines == ("step 1 loss 2.5",)
        assert book.chart(job.name, 0, FAR, 10)[0].last == [2.5]
        file.write(b"step 2 loss 9.5\n")
        look(book, Census(), job.name)
        assert book.lines(job.name).lines == ()
        assert book.chart(job.name, 0, FAR, 10)[0].last == [2.5]


def test_restarted_ranks_are_told(book: ForeignBook, tmp_path: Path) -> None:
    with (
        (tmp_path / "log").open("wb", buffering=0) as file,
        running(*SLEEP) as launcher,
        running(*SLEEP, stdout=file) as old,
        running(*SLEEP, stdout=file) as new,
    ):
        common = {"root_pid": launcher.pid, "launcher_pids": (launcher.pid,)}
        before = job_of(old.pid, ranks=(rank_of(old.pid, restart_count=0),), **common)
        after = job_of(old.pid, ranks=(rank_of(new.pid, restart_count=1),), **common)
        look(book, census_of(before), before.name)
        file.write(b"step 9 loss 2.5\n")
        assert first_rank(look(book, census_of(before), before.name)).step == 9
        view = look(book, census_of(after), before.name)
        assert view.snapshot.attempt == 1
        assert (first_rank(view).step, first_rank(view).loss) == (None, None)
        kinds = [event.type for event in reversed(book.events(before.name))]
        assert kinds == ["watched", "group_restart", "rank_exited", "rank_started"]
        file.write(b"step 1 loss 3.5\n")
        assert first_rank(look(book, census_of(after), before.name)).step == 1


def test_a_job_keeps_its_name_when_its_launcher_is_gone(book: ForeignBook) -> None:
    with running(*SLEEP) as launcher, running(*SLEEP) as rank:
        job = job_of(rank.pid, root_pid=launcher.pid, launcher_pids=(launcher.pid,))
        look(book, census_of(job), job.name)
        orphan = job_of(rank.pid)
        assert orphan.name != job.name
        view = look(book, census_of(orphan), job.name)
        assert view.state == "running"
        assert view.foreign.root_pid == rank.pid


def test_a_dead_launcher_that_was_pinned_is_not_the_job(book: ForeignBook) -> None:
    with running(*SLEEP) as launcher, running(*SLEEP) as rank:
        job = job_of(rank.pid, root_pid=launcher.pid, launcher_pids=(launcher.pid,))
        look(book, census_of(job), job.name)
        pinned = job_of(launcher.pid, name=job.name)
        for jobs in ((pinned, job_of(rank.pid)), (job_of(rank.pid), pinned)):
            view = look(book, census_of(*jobs), job.name)
            assert [one.pid for one in view.snapshot.ranks] == [rank.pid]
        kinds = [event.type for event in book.events(job.name)]
        assert kinds == ["watched"]
        assert book.known() == 1


# -- devices ---------------------------------------------------------------------------------------


def gpu(index: int, *pids: int, name: str = "H100") -> GpuSample:
    return GpuSample(
        index=index,
        uuid=f"GPU-{index}",
        name=name,
        util_percent=90.0 + index,
        power_w=300.0,
        mem_used_bytes=2 << 30,
        processes=[GpuProcess(pid=pid, mem_used_bytes=1 << 30) for pid in pids],
    )


def test_ranks_on_their_devices(book: ForeignBook) -> None:
    with running(*SLEEP) as one, running(*SLEEP) as two:
        ranks = tuple(
            rank_of(process.pid, i, visible_devices="2,3") for i, process in enumerate((one, two))
        )
        job = job_of(one.pid, two.pid, ranks=ranks)
        gpus = [gpu(0, 4242), gpu(1), gpu(2, one.pid), gpu(3, two.pid)]
        view = look(book, census_of(job), gpus=gpus)
        found = view.snapshot.ranks
        assert [(r.gpu, r.cuda_device, r.gpus) for r in found] == [
            (2, 0, ["GPU-2"]),
            (3, 1, ["GPU-3"]),
        ]
        assert [r.gpu_util_percent for r in found] == [92.0, 93.0]
        assert [r.gpu_mem_used_bytes for r in found] == [1 << 30] * 2
        assert [r.gpu_power_w for r in found] == [300.0] * 2
        assert [g.index for g in view.snapshot.gpus] == [2, 3]
        assert view.snapshot.imbalance.memory == 0
        assert view.snapshot.gpus[0].processes[0].job == job.name
        look(book, census_of(job), job.name, gpus=gpus)
        gone = look(book, Census(), job.name, gpus=gpus)  # their figures are no longer its own
        assert [r.gpu for r in gone.snapshot.ranks] == [2, 3]
        assert [r.gpu_util_percent for r in gone.snapshot.ranks] == [None, None]
        assert [g.power_w for g in gone.snapshot.gpus] == [None, None]


def test_a_job_without_a_device_has_none(book: ForeignBook) -> None:
    with running(*SLEEP) as process:
        job = job_of(process.pid, ranks=(rank_of(process.pid, visible_devices="0"),))
        view = look(book, census_of(job), gpus=[gpu(0, 4242)])
        assert (first_rank(view).gpu, view.snapshot.gpus) == (None, [])


def spinning(index: int, pid: int, power_w: float) -> GpuSample:
    return msgspec.structs.replace(
        gpu(index, pid),
        util_percent=100.0,
        mem_util_percent=0.0 if power_w < 200 else 40.0,
        power_w=power_w,
        power_limit_w=700.0,
    )


@pytest.mark.parametrize("stuck", [True, False])
def test_ranks_that_spin_without_a_new_line_are_stuck(stuck: bool, tmp_path: Path) -> None:
    seconds = itertools.count(1000.0)
    book = ForeignBook(clock=lambda: next(seconds))
    now = utc_now()
    with (
        (tmp_path / "log").open("wb", buffering=0) as file,
        running(*SLEEP, stdout=file) as one,
        running(*SLEEP, stdout=file) as two,
    ):
        job = job_of(one.pid, two.pid)
        census = census_of(job)
        for second in range(400):
            now += dt.timedelta(seconds=1)
            works = second < 200 or not stuck
            if works:
                file.write(b"step %d loss 2.5\n" % second)
            watts = 600.0 if second < 200 else 130.0  # the healthy twin waits for its data
            gpus = [spinning(0, one.pid, watts), spinning(1, two.pid, watts)]
            view = look(book, census, job.name, gpus=gpus, now=now)
        states = [rank.state for rank in view.snapshot.ranks]
        assert states == (["stuck", "stuck"] if stuck else ["running", "running"])
        assert bool(view.snapshot.alerts) is stuck
        if stuck:
            assert "W" in (first_rank(view).state_reason or "")
            assert book.events(job.name)[0].type == "alert"
    book.close()


@pytest.mark.parametrize(
    ("visible", "pci_order", "names", "order"),
    [
        (None, False, ("A", "A", "A"), [0, 1, 2]),
        (None, False, ("A", "B", "A"), None),
        (None, True, ("A", "B", "A"), [0, 1, 2]),
        ("2,0", False, ("A", "A", "A"), [2, 0]),
        ("2,0", False, ("A", "B", "A"), None),
        ("GPU-1, GPU-0", False, ("A", "B", "A"), [1, 0]),
        ("1,9,0", False, ("A", "A", "A"), [1]),
        ("1,1", False, ("A", "A", "A"), [1]),
        ("", False, ("A", "A", "A"), []),
        ("GPU-", False, ("A", "A", "A"), []),
    ],
)
def test_what_cuda_visible_devices_says(
    visible: str | None, pci_order: bool, names: tuple[str, ...], order: list[int] | None
) -> None:
    gpus = [gpu(index, name=name) for index, name in enumerate(names)]
    found = ordered_devices(visible, gpus, pci_order=pci_order)
    assert (None if found is None else [one.index for one in found]) == order
    assert cuda_index(found, gpus[0]) == (order.index(0) if order and 0 in order else None)


# -- bounds ----------------------------------------------------------------------------------------


def test_losses_of_days_take_no_more_than_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_history, "MAX_POINTS", 400)
    monkeypatch.setattr(loss_history, "LEAST_POINTS", 50)
    history = LossHistory()
    start = 1_000_000
    for second in range(5000):
        for rank in (0, 3):
            history.add(rank, start + second, 5000 - second + rank)
        if second % 50 == 0:
            history.add(3, start + second, float("nan"))
    assert history.points() <= 401
    assert history.span() == (start, start + 4992)
    series = history.series(0, FAR, 5000)
    assert list(series) == [0, 3]
    assert series[0].max[0] == 5000
    assert series[0].min[-1] == 1
    assert series[0].last[-1] == 1
    assert series[3].nonfinite_t
    assert all(t % series[0].bucket_s == 0 for t in series[0].t)
    few = history.series(start + 1000, start + 1999, 10)[0]
    assert len(few.t) <= 10
    assert few.max[0] <= 4000 + few.bucket_s
    assert few.mean == sorted(few.mean, reverse=True)


def test_mean_and_extremes_of_a_bucket() -> None:
    history = LossHistory()
    for at, loss in ((10.0, 4.0), (10.4, 2.0), (10.9, 3.0), (11.0, 1.0), (12.5, 7.0)):
        history.add(0, at, loss)
    one = history.series(0, FAR, 100)[0]
    assert one.t == [10, 11, 12]
    assert (one.min[0], one.mean[0], one.max[0], one.last[0]) == (2.0, 3.0, 4.0, 3.0)
    joined = history.series(10, 12, 2)[0]
    assert joined.bucket_s == 2
    assert joined.t == [10, 12]
    assert (joined.min[0], joined.mean[0], joined.max[0], joined.last[0]) == (1.0, 2.5, 4.0, 1.0)
    history.add(0, 3.0, 9.0)  # the clock was set back
    assert history.series(0, FAR, 100)[0].t == [10, 11, 12]


def test_jobs_that_come_and_go_leave_nothing(
    book: ForeignBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_record, "KEPT_EVENTS", 20)
    open_before = len(os.listdir("/proc/self/fd"))
    with running(*SLEEP) as process:
        base = job_of(process.pid)
        for number in range(200):
            job = dataclasses.replace(base, name=f"job:{number}", root_start_ticks=number)
            ranks = (dataclasses.replace(base.ranks[0], start_ticks=number),)
            book.look(census_of(dataclasses.replace(job, ranks=ranks)), [], utc_now())
            book.lines(job.name)
        assert book.known() == 1
        watched = dataclasses.replace(base, name="job:0")
        for number in range(100):
            ranks = (dataclasses.replace(base.ranks[0], restart_count=number),)
            again = dataclasses.replace(watched, ranks=ranks)
            book.look(census_of(again), [], utc_now(), follow="job:0")
        assert len(book.events("job:0")) == 20
    book.look(Census(), [], utc_now())
    assert book.known() == 0
    assert len(os.listdir("/proc/self/fd")) <= open_before


def test_progress_of_a_log_that_falls_silent_or_begins_anew() -> None:
    start = utc_now()
    progress = TextProgress()

    def hear(step: int, after_s: float) -> None:
        at = start + dt.timedelta(seconds=after_s)
        progress.hear(Reading(step=step, total=100, loss=1.0), at)

    for step in range(10):
        hear(step, step * 2.0)
    now = start + dt.timedelta(seconds=18)
    assert progress.steps_per_s(now) == pytest.approx(0.5)
    assert progress.eta_s(now) == pytest.approx(182)
    assert progress.total_steps == 100
    assert progress.steps_per_s(now + dt.timedelta(seconds=60)) is None
    hear(0, 80.0)  # a bar for each epoch
    assert progress.total_steps is None
    assert progress.step == 0


def test_any_readings_add_up_to_something() -> None:
    random_ = random.Random(5)
    progress = TextProgress()
    at = utc_now()
    for _ in range(3000):
        at += dt.timedelta(seconds=random_.choice((-3.0, 0.0, 0.1, 500.0)))
        progress.hear(
            Reading(
                step=random_.choice((None, 0, 7, 10**17)),
                total=random_.choice((None, 0, 3)),
                counts=random_.choice(("run", "epoch", "samples")),
                loss=random_.choice((None, 1.0, float("nan"), float("-inf"))),
            ),
            random_.choice((None, at)),
        )
        rate, eta = progress.steps_per_s(at), progress.eta_s(at)
        assert rate is None or rate > 0
        assert eta is None or eta >= 0


def test_a_signal_ends_nothing_here(book: ForeignBook) -> None:
    """Looking changes nothing in the processes."""
    with running(*SLEEP) as process:
        job = job_of(process.pid)
        for _ in range(3):
            book.look(census_of(job), [], utc_now(), follow=job.name)
        assert process.poll() is None
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM
