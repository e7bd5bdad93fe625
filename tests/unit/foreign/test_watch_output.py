"""The output of foreign jobs over many updates: losses and steps of their ranks."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from tests.support.foreign_toys import (
    census_of,
    job_of,
    lines_in,
    long_ago,
    printer,
    running,
)
from tests.support.foreign_watching import FAR, SLEEP, first_rank, look

from ddptop_runner.base.clock import utc_now
from ddptop_runner.foreign import output, watch
from ddptop_runner.foreign.watch import Curves, ForeignBook, NewLines
from ddptop_runner.reading.text.parser import Reading

# -- what it prints --------------------------------------------------------------------------------


def test_losses_of_a_growing_file(book, tmp_path, wait_until):
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
        assert first.is_reset
        assert first.lines[0] == "step 0/1000 loss 2.5000"

        def faster() -> bool:
            return first_rank(look(book, census, job.name)).steps_per_s is not None

        wait_until(faster)
        view = look(book, census, job.name)
        assert 0.5 < first_rank(view).steps_per_s < 60
        assert first_rank(view).step_time_s == pytest.approx(1 / first_rank(view).steps_per_s)
        assert 10 < view.snapshot.eta_s < 3000
        later = book.lines(job.name, since=first.mark)
        assert not later.is_reset
        assert later.lines[0] == f"step {len(first.lines)}/1000 loss " + (
            f"{2.5 - len(first.lines) / 1000:.4f}"
        )
        assert book.lines(job.name, since=later.mark).lines == ()
        series = book.curves(job.name).series(0, FAR, 100)[0][0]
        assert series.t == sorted(series.t)
        assert series.last[-1] == first_rank(view).loss
        span = book.curves(job.name).span()
        assert span is not None
        assert abs(span[1] - time.time()) < 10


@pytest.mark.parametrize(
    "line",
    [
        "epoch {epoch} step {done}/5120 loss 2.5",
        "Epoch: [{epoch}][{step}/131]\tLoss 2.5 (2.5)",
        "[{epoch}, {step}] loss: 2.5",
    ],
)
def test_the_step_time_of_lines_that_come_seldom(tmp_path, line):
    """Every 20 steps of 250 ms, across two epoch boundaries, in simulated time."""
    path, start = tmp_path / "train.log", utc_now()
    after_s = 0.0
    book = ForeignBook(clock=lambda: after_s)
    with path.open("wb", buffering=0) as file, running(*SLEEP, stdout=file) as process:
        job = job_of(process.pid, started_at=long_ago())
        census = census_of(job)
        seen = []
        for done in range(1, 300):
            after_s = done * 0.25
            if done % 20 == 0:
                epoch, step = divmod(done, 131)
                file.write(f"{line.format(epoch=epoch, step=step, done=done)}\n".encode())
            if done % 4 == 0:
                now = start + dt.timedelta(seconds=after_s)
                step_time_s = first_rank(look(book, census, job.name, now=now)).step_time_s
                seen.append(step_time_s)
    book.close()
    known = [one for one in seen[40:] if one is not None]
    assert len(known) > 20
    assert min(known) == pytest.approx(0.25, rel=0.1)
    assert max(known) == pytest.approx(0.25, rel=0.1)


def test_what_an_earlier_run_appended_is_not_this_runs_loss(book, tmp_path):
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


def test_ranks_with_files_of_their_own(book, tmp_path):
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
        first.write(b"step 11 loss 2.5 lr 0.001\n")
        second.write(b"step 13 loss 9.5 lr 0.003\nstep 13 val loss 3.5\n")
        look(book, census, job.name)
        losses, scalars = book.curves(job.name).series(0, FAR, 10)
        assert list(scalars) == ["learning rate", "validation loss"]
        rate = scalars["learning rate"]
        assert (rate.min, rate.mean, rate.max) == ([0.001], [0.002], [0.003]), "of both ranks"
        assert scalars["validation loss"].last == [3.5]
        assert list(losses) == [0, 1]
        assert losses[1].nonfinite_t


def test_last_words_are_read_of_a_process_that_ends_while_its_output_is_looked_for(
    book, tmp_path, monkeypatch
):
    monkeypatch.setattr(output, "FIND_EVERY_S", 0.0)
    path = tmp_path / "train.log"
    with path.open("wb", buffering=0) as file, running(*SLEEP, stdout=file, stderr=file) as process:
        job = job_of(process.pid)
        census = census_of(job)
        look(book, census, follow=job.name)
        file.write(b"step 7/10 loss 2.5\n")
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        view = look(book, census, follow=job.name)  # the census was taken before
        assert book.lines(job.name).lines == ("step 7/10 loss 2.5",)
        assert view.output == f"file {path}"


def test_lines_of_one_output_go_to_the_rank_that_they_name(book, tmp_path):
    with (
        (tmp_path / "log").open("wb", buffering=0) as file,
        running(*SLEEP, stdout=file) as one,
        running(*SLEEP, stdout=file) as two,
    ):
        job = job_of(one.pid, two.pid)
        census = census_of(job)
        look(book, census, job.name)
        file.write(b"[1]<stdout>:step 3 loss 1.5\n[default0]:step 3 loss 2.5\n")
        file.write(b"[7]<stdout>:step 3 loss 9.5\n")  # a rank of another host
        view = look(book, census, job.name)
        assert [r.loss for r in view.snapshot.ranks] == [2.5, 1.5]
        file.write(b"step 4 loss 3.5\n")
        view = look(book, census, job.name)
        assert [r.loss for r in view.snapshot.ranks] == [3.5, 1.5]


def test_what_a_launcher_hands_on_of_a_ranks_own_output_is_not_read_twice(book, tmp_path):
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


def test_validations_and_epochs_are_told_apart(book, tmp_path):
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


def test_why_an_output_cannot_be_read_is_said(book):
    with running(*SLEEP, stderr=subprocess.DEVNULL) as process:
        job = job_of(process.pid)
        view = look(book, census_of(job), job.name)
        assert view.output == "/dev/null: discarded"
        assert first_rank(view).loss is None
        assert first_rank(view).last_progress_at is None
        assert book.lines(job.name).lines == ()
    assert book.lines("nobody:1") == NewLines()
    assert book.curves("nobody:1").series(0, FAR, 10) == ({}, {})


@pytest.mark.tmux
def test_losses_in_a_tmux_pane(book, wait_until):
    folder = tempfile.mkdtemp(prefix="ddptop-", dir="/tmp")
    socket = f"{folder}/socket"
    tmux = ["tmux", "-S", socket, "-f", "/dev/null"]
    try:
        subprocess.run(
            [*tmux, "new-session", "-d", "-s", "work", f"exec {shlex.join(printer())}"],
            check=True,
            timeout=60,
            env={**os.environ, "TMUX": ""},
        )
        answer = subprocess.run(
            [*tmux, "list-panes", "-F", "#{pane_pid}"], check=True, capture_output=True, timeout=60
        )
        pid = int(answer.stdout)
        name = Path(f"/proc/{pid}/comm")
        wait_until(lambda: "tmux" not in name.read_text(), what="the pane runs its command")
        # the server is found through the pane's own $TMUX: the socket is in no usual place
        job = job_of(pid)
        census = census_of(job)
        assert look(book, census, job.name).output == "tmux pane work:0.0 (captured)"
        wait_until(lambda: first_rank(look(book, census, job.name)).loss is not None)
        rank = first_rank(look(book, census, job.name))
        assert rank.loss == pytest.approx(2.5 - rank.step / 1000)
        assert any("loss" in line for line in book.lines(job.name).lines)
    finally:
        subprocess.run([*tmux, "kill-server"], capture_output=True, check=False)
        shutil.rmtree(folder)


def bytes_read() -> int:
    """Everything that this process has read so far, from files and anything else."""
    told = Path("/proc/self/io").read_text().split()
    return int(told[told.index("rchar:") + 1])


def test_a_large_log_is_read_from_its_end(book, tmp_path):
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.truncate(1 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\nstep 4 loss 3.5\nstep 5 loss 2.5\n")
        file.flush()
        with running(*SLEEP, stdout=file) as process:
            job = job_of(process.pid)
            before = bytes_read()
            rank = first_rank(look(book, census_of(job), job.name))
            assert bytes_read() - before < 64 << 20
            assert rank.loss == 2.5


# -- what it printed before it was found -----------------------------------------------------------


def training(*steps: int, epochs: int = 1, begin: int = 1) -> bytes:
    """A line every 8 steps; the loss falls by 1 in 1,000 steps."""
    return b"".join(
        f"epoch {epoch} step {step}/512 loss {8 - (512 * (epoch - 1) + step) / 1000:.4f}\n".encode()
        for epoch in range(begin, begin + epochs)
        for step in steps or range(8, 513, 8)
    )


def test_losses_printed_before_are_known_by_step(book, tmp_path):
    with (
        (tmp_path / "log").open("wb", buffering=0) as file,
        running(*SLEEP, stdout=file) as process,
    ):
        file.write(training(epochs=3))
        job = job_of(process.pid)
        census = census_of(job)
        look(book, census, job.name)
        file.write(training(8, begin=4))
        look(book, census, job.name)
        assert book.curves(job.name, by_step=True).span() == (8, 3 * 512 + 8)
        series = book.curves(job.name, by_step=True).series(0, FAR, 1000)[0][0]
        assert series.t == list(range(8, 3 * 512 + 9, 8))
        assert series.last == [pytest.approx(8 - step / 1000) for step in series.t]
        by_time = book.curves(job.name).series(0, FAR, 1000)[0][0]
        assert len(by_time.t) <= 2, "the times of the others are unknown"


def test_a_log_beyond_the_limit_is_read_from_its_end(book, tmp_path, monkeypatch):
    monkeypatch.setattr(output, "READ_BYTES", 2000)
    with (
        (tmp_path / "log").open("wb", buffering=0) as file,
        running(*SLEEP, stdout=file) as process,
    ):
        file.write(training(epochs=7))
        job = job_of(process.pid)
        for _ in range(3):
            look(book, census_of(job), job.name)
        assert book.curves(job.name, by_step=True).span() is None, (
            "the steps of earlier epochs are unknown"
        )


# -- bounds ----------------------------------------------------------------------------------------


def test_a_scan_that_takes_long_reads_the_watched_job_and_the_others_later(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "READ_S", 1.5)
    ticks = itertools.count()
    book = ForeignBook(clock=lambda: float(next(ticks)))  # each job takes 1 s
    with (
        (tmp_path / "one").open("wb", buffering=0) as one,
        (tmp_path / "two").open("wb", buffering=0) as two,
        running(*SLEEP, stdout=one) as first,
        running(*SLEEP, stdout=two) as second,
        contextlib.closing(book),
    ):
        for file in (one, two):
            file.write(b"step 1/10 loss 2.5\n")
        older, newer = job_of(first.pid, started_at=long_ago()), job_of(second.pid)
        census = census_of(newer, older)

        def losses() -> list[float | None]:
            views = book.update(census, [], utc_now(), follow=older.name)
            return [first_rank(view).loss for view in views]

        assert losses() == [None, 2.5]
        monkeypatch.setattr(watch, "READ_S", 10.0)
        assert losses() == [2.5, 2.5]


def test_the_oldest_values_are_dropped(monkeypatch):
    monkeypatch.setattr(watch, "MAX_POINTS", 400)
    curves = Curves()
    start = 1_000_000
    for second in range(5000):
        for rank in (0, 3):
            curves.add(rank, start + second, Reading(loss=5000.0 - second + rank))
    curves.add(3, start + 5000, Reading(loss=float("nan")))
    assert curves.span() == (start + 4800, start + 5000)
    losses, named = curves.series(0, FAR, 5000)
    assert (list(losses), named) == ([0, 3], {})
    assert (losses[0].max[0], losses[0].last[-1]) == (199, 1)
    assert losses[3].nonfinite_t == [start + 5000]
    assert curves.series(start + 5000, start + 5000, 10)[0].keys() == {3}, "both ends included"
    few = curves.series(start + 4850, start + 4949, 10)[0][0]
    assert len(few.t) <= 10 and all(t % few.bucket_s == 0 for t in few.t)
