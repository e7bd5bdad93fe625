"""Foreign jobs over many updates: real processes, and bounded memory over days."""

from __future__ import annotations

import datetime as dt
import os
import signal

import msgspec
import pytest
from tests.support.foreign_toys import (
    census_of,
    job_of,
    long_ago,
    rank_of,
    running,
    stop_and_wait,
)
from tests.support.foreign_watching import FAR, SLEEP, first_rank, look, memory_of

from ddptop_runner.base.clock import utc_now
from ddptop_runner.foreign import watch
from ddptop_runner.foreign.types import Census, ForeignRank
from ddptop_runner.host.tree import RankUsage
from ddptop_runner.model.snapshot import GpuProcess, GpuSample

# -- what becomes of it ----------------------------------------------------------------------------


def test_states_reach_the_ranks(book, wait_until):
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


@pytest.mark.parametrize(
    ("letter", "blocked_s", "state"),
    [
        *(("R", 0, "running"), ("T", 0, "paused"), ("t", 0, "paused"), ("Z", 0, "zombie")),
        *(("D", 4, "running"), ("D", 6, "blocked")),
    ],
)
def test_the_state_of_a_process(letter, blocked_s, state):
    found, reason = watch.state_of(letter, blocked_s)
    assert found == state
    assert (reason is None) == (state == "running")


def test_uninterruptible_sleep_counts_only_if_it_lasts():
    rank = ForeignRank(rank=0, local_rank=0, pid=7, start_ticks=55)
    now = utc_now()
    record = watch.JobRecord(job_of(os.getpid(), ranks=(rank,)), now)

    def state(letter: str, now_s: float) -> str:
        usages = {7: RankUsage(None, 1, letter, (7,), start_ticks=55)}
        return first_rank(record.view([], usages, now, now_s)).state

    assert [state("D", now_s) for now_s in (0.0, 2.0, 4.0, 6.0)] == ["running"] * 3 + ["blocked"]
    assert state("S", 7.0) == "running"
    assert [state("D", now_s) for now_s in (10.0, 15.0)] == ["running", "blocked"]


def test_a_process_of_that_pid_that_started_later_is_another(book):
    with running(*SLEEP) as process:
        rank = rank_of(process.pid)
        later = msgspec.structs.replace(rank, start_ticks=rank.start_ticks + 1)
        view = look(book, census_of(job_of(process.pid, ranks=(later,))))
        assert (first_rank(view).state, first_rank(view).rss_bytes) == ("unknown", None)


def test_a_followed_job_that_is_gone_stays_as_lost(book):
    with running(*SLEEP) as process, running(*SLEEP) as other:
        job, stranger = job_of(process.pid), job_of(other.pid, started_at=long_ago())
        census = census_of(stranger, job)
        views = book.update(census, [], utc_now(), follow=job.name)
        assert [view.job for view in views] == [job.name, stranger.name]  # newest first
        assert views[0].is_live
        later = utc_now() + dt.timedelta(seconds=2)
        census = Census()
        (view,) = book.update(census, [], later, follow=job.name)
        assert (view.job, view.state, view.snapshot.ended_at) == (job.name, "lost", later)
        assert not view.is_live
        assert [rank.state for rank in view.snapshot.ranks] == ["unknown"]
        much_later = later + dt.timedelta(seconds=9)
        (view,) = book.update(census, [], much_later, follow=job.name)
        assert view.snapshot.ended_at == later
        assert [event.type for event in book.events(job.name)] == ["lost", "watched"]
        assert book.update(census, [], much_later) == [], "although no process has changed since"
        assert book.events(job.name) == []


def test_what_the_next_run_writes_is_not_the_lost_jobs(book, tmp_path):
    with (tmp_path / "log").open("wb", buffering=0) as file:
        with running(*SLEEP, stdout=file) as process:
            job = job_of(process.pid)
            look(book, census_of(job), job.name)
            file.write(b"step 1 loss 2.5\n")
        view = look(book, Census(), job.name)  # its last lines are read
        assert (view.state, first_rank(view).loss) == ("lost", 2.5)
        last = book.lines(job.name)
        assert last.lines == ("step 1 loss 2.5",)
        assert book.curves(job.name).series(0, FAR, 10)[0][0].last == [2.5]
        file.write(b"step 2 loss 9.5\n")
        look(book, Census(), job.name)
        assert book.lines(job.name, since=last.mark).lines == ()
        assert book.curves(job.name).series(0, FAR, 10)[0][0].last == [2.5]


def test_restarted_ranks_are_told(book, tmp_path):
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


def test_a_job_keeps_its_name_when_its_launcher_is_gone(book):
    with running(*SLEEP) as launcher, running(*SLEEP) as rank:
        job = job_of(rank.pid, root_pid=launcher.pid, launcher_pids=(launcher.pid,))
        look(book, census_of(job), job.name)
        orphan = job_of(rank.pid)
        assert orphan.name != job.name
        view = look(book, census_of(orphan), job.name)
        assert view.state == "running"
        assert view.foreign.root_pid == rank.pid


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


def test_ranks_on_their_devices(book):
    with running(*SLEEP) as one, running(*SLEEP) as two:
        job = job_of(one.pid, two.pid)
        gpus = [gpu(0, 4242), gpu(1), gpu(2, one.pid), gpu(3, two.pid)]
        view = look(book, census_of(job), gpus=gpus)
        found = view.snapshot.ranks
        assert [(r.gpu, r.cuda_device, r.gpus) for r in found] == [
            (2, None, ["GPU-2"]),
            (3, None, ["GPU-3"]),
        ]
        assert [r.gpu_util_percent for r in found] == [92.0, 93.0]
        assert [r.gpu_mem_used_bytes for r in found] == [1 << 30] * 2
        assert [r.gpu_power_w for r in found] == [300.0] * 2
        assert [g.index for g in view.snapshot.gpus] == [2, 3]
        assert view.snapshot.imbalance.memory == 0
        assert view.snapshot.gpus[0].processes[0].job == job.name
        look(book, census_of(job), job.name, gpus=gpus)
        idle = [msgspec.structs.replace(one, util_percent=0.0, processes=[]) for one in gpus]
        gone = look(book, Census(), job.name, gpus=idle)  # keeps its last figures
        assert [r.gpu for r in gone.snapshot.ranks] == [2, 3]
        assert [r.gpu_util_percent for r in gone.snapshot.ranks] == [92.0, 93.0]


def test_a_job_without_a_device_has_none(book):
    with running(*SLEEP) as process:
        job = job_of(process.pid)
        view = look(book, census_of(job), gpus=[gpu(0, 4242)])
        assert (first_rank(view).gpu, view.snapshot.gpus) == (None, [])


def test_jobs_that_come_and_go_leave_nothing(book, monkeypatch):
    monkeypatch.setattr(watch, "KEPT_EVENTS", 20)
    open_before = len(os.listdir("/proc/self/fd"))
    with running(*SLEEP) as process:
        base = job_of(process.pid)
        for number in range(200):
            job = msgspec.structs.replace(base, name=f"job:{number}", root_start_ticks=number)
            ranks = (msgspec.structs.replace(base.ranks[0], start_ticks=number),)
            look(book, census_of(msgspec.structs.replace(job, ranks=ranks)))  # the only one
        watched = msgspec.structs.replace(base, name="job:0")
        for number in range(100):
            ranks = (msgspec.structs.replace(base.ranks[0], restart_count=number),)
            again = msgspec.structs.replace(watched, ranks=ranks)
            book.update(census_of(again), [], utc_now(), follow="job:0")
        assert len(book.events("job:0")) == 20
    assert book.update(Census(), [], utc_now()) == []
    assert len(os.listdir("/proc/self/fd")) <= open_before


def test_a_signal_ends_nothing_here(book):
    """Watching changes nothing in the processes."""
    with running(*SLEEP) as process:
        job = job_of(process.pid)
        for _ in range(3):
            book.update(census_of(job), [], utc_now(), follow=job.name)
        assert process.poll() is None
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM
