"""`ddptop status` of a job that runs a command: its launcher, and what no rank column shows."""

from __future__ import annotations

from ddptop.commands import status
from ddptop.job.record import own_job
from tests.support.builders import put_job

from ddptop_runner.base.paths import LAUNCHER, RunFolder
from ddptop_runner.job.registry import read_job
from ddptop_runner.model.snapshot import Cause, LauncherSample, RankSample


def said(folder: RunFolder, is_live: bool = True) -> list[str]:
    view = read_job(folder)
    view.__dict__.update(state="running" if is_live else "failed", guarded=True)
    return status.describe(own_job(view)).splitlines()


def put(job: str, **snapshot: object) -> RunFolder:
    return put_job(
        job, snapshot, kind="command", target="mpirun", launcher="mpirun", nproc=0, devices=None
    )


def sample(rank: int, **more: object) -> RankSample:
    return RankSample(rank=rank, local_rank=rank, host="h", loss=0.5, **more)


MPIRUN = LauncherSample(
    name="mpirun", pid=4700, state="running", cpu_percent=187.2, rss_bytes=2 << 30
)


def test_command_without_ranks_shows_what_it_waits_for(ddptop_home):
    lines = said(put("slow", launcher=MPIRUN, world_size=None))
    assert "  launcher: mpirun, ● running, whole tree CPU 187%, RSS 2.0 GiB, pid 4700" in lines
    assert "  ranks: none yet; each appears once it starts training (see ddptop logs slow)" in lines
    quiet = LauncherSample(name="mpirun", state="failed", exit_code=1)
    ended = said(put("over", launcher=quiet, world_size=None), is_live=False)
    assert "  launcher: mpirun, ✗ exit 1, whole tree CPU n/a, RSS n/a, pid n/a" in ended
    assert not any("none yet" in line for line in ended)


def test_what_no_column_tells_of_a_rank_stands_below(ddptop_home):
    ranks = [
        sample(0, loss_parts=4, loss_is="sum", losses={"Adam 1": 0.5, "Adam 2": 1.25}),
        sample(1, frameworks=["lightning"], rank_source="start order", replicas=2),
        sample(2, rank_source="probe"),
    ]
    lines = said(put("gan", launcher=MPIRUN, ranks=ranks))
    assert any("0.5000 Σ4" in line for line in lines)
    assert lines[-2:] == [
        "  rank 0: Adam 1 0.5000; Adam 2 1.2500; loss: sum of 4 backward passes",
        "  rank 1: 1 process, 2 devices: no per-device loss; rank inferred from start order; "
        "imports lightning",
    ]
    many = [sample(rank, frameworks=[f"framework {rank // 2}"]) for rank in range(40)]
    lines = said(put("many", launcher=MPIRUN, ranks=many))
    assert lines[-2:] == ["  ranks 30, 31: imports framework 15", "  and 4 more"]


def test_the_last_lines_of_a_failed_command_are_all_of_its_ranks(ddptop_home):
    text = "[0]<stdout>:fine\n[1]<stderr>:ValueError: no\nexit codes: 0 1\n"
    lines = ["last lines from the command:", *(f"  {line}" for line in text.splitlines())]
    for rank in (1, None):
        cause = Cause(kind="exception", rank=rank, summary="it failed")
        folder = put(f"bad{rank}", launcher=MPIRUN, cause=cause, state="failed")
        log = folder.log_file(0, LAUNCHER)
        log.parent.mkdir(parents=True)
        log.write_text(text)
        assert said(folder, is_live=False)[-len(lines) :] == lines
