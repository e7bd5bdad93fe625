"""Slurm's formats: allocations, node lists, batch scripts, and the queue."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import time
from typing import Any

import pytest
from ddptop.commands import control, ls, status, status_watch
from tests.support.builders import LONG_AGO, gone, make_snapshot, make_spec, put_job
from tests.support.tables import table

from ddptop_runner.base.errors import (
    ControlError,
    DdptopError,
    NoSuchJobError,
    UsageError,
    WaitTimeoutError,
)
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.job.registry import read_job
from ddptop_runner.jobs import commands, launch, slurm_holder, slurm_queue
from ddptop_runner.jobs.slurm import nodes_in
from ddptop_runner.launch import slurm
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.snapshot import Checkpoint, RankSample, RunStep
from ddptop_runner.store.history import HistoryWriter

FINISHED = {"state": "finished", "ended_at": LONG_AGO}
STATES_OF_7 = [("PENDING", "Priority"), ("RUNNING", "None")]
HOSTS = {
    "node1": ("node1",),
    "node[1-3],x": ("node1", "node2", "node3", "x"),
    "a[08-11,3],c": ("a08", "a09", "a10", "a11", "a3", "c"),
    "r[1-2]n[1-2]": ("r1n1", "r1n2", "r2n1", "r2n2"),
    "": (),
}


def test_a_single_node_needs_no_scontrol(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert nodes_in("node1") == ("node1",)
    assert nodes_in("") == ()
    with pytest.raises(DdptopError, match="scontrol cannot be run"):
        nodes_in("node[1-2]")


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="scontrol is not installed")
@pytest.mark.parametrize("text", [one for one in HOSTS if one])
def test_node_lists_are_read_by_slurm(text, tmp_path, monkeypatch):
    (tmp_path / "slurm.conf").write_text("ClusterName=x\nSlurmctldHost=localhost\n")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    assert nodes_in(text) == HOSTS[text]


def test_allocation_is_read_from_variables():
    env = {
        "SLURM_JOB_ID": "12",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_RESTART_COUNT": "3",
        "SLURM_GPUS_ON_NODE": "4",
        "SLURM_TASK_PID": "77",
        "SLURM_ARRAY_TASK_ID": "5",
    }
    batch = slurm.allocation(env)
    assert batch == slurm.Allocation("12", "n[1-2]", 3, True, False, "5", 4)
    step = slurm.allocation({**env, "SLURM_STEP_ID": "0"})
    assert step is not None
    assert (step.is_batch, step.in_step) == (False, True)
    salloc = slurm.allocation({"SLURM_JOB_ID": "12", "SLURM_NODELIST": "n1"})
    assert salloc == slurm.Allocation("12", "n1")
    assert slurm.allocation({"SLURM_JOB_ID": "", "SLURM_JOB_NODELIST": "n1"}) is None


GPUS = {
    # variables: the allocation's GPUs on this node
    "SLURM_GPUS_ON_NODE=0 CUDA_VISIBLE_DEVICES=0,1": None,
    "SLURM_GPUS_ON_NODE=2 CUDA_VISIBLE_DEVICES=NoDevFiles": 2,
    "CUDA_VISIBLE_DEVICES=NoDevFiles": None,
    "GPU_DEVICE_ORDINAL=NoDevFiles CUDA_VISIBLE_DEVICES=0,1": None,
    "CUDA_VISIBLE_DEVICES=-1": None,
    "CUDA_VISIBLE_DEVICES=": None,
    "CUDA_VISIBLE_DEVICES=0,1": 2,
    "SLURM_JOB_GPUS=3": 1,
    "": None,
}


@pytest.mark.parametrize("variables", GPUS)
def test_gpus_of_an_allocation(variables):
    env = dict(one.split("=") for one in variables.split())
    found = slurm.allocation({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", **env})
    assert found is not None
    assert found.gpus_on_node == GPUS[variables]


def test_steps_get_none_of_the_options_of_the_batch_step():
    env = {
        "SLURM_CONF": "/c",
        "SLURM_JOB_ID": "1",
        "SLURM_ARRAY_TASK_ID": "2",
        "SLURM_CPUS_PER_TASK": "4",
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_EXPORT_ENV": "NONE",
        "SLURM_GPUS_PER_NODE": "2",
        "SLURM_STEP_ID": "0",
        "SRUN_CPUS_PER_TASK": "4",
        "PATH": "/bin",
    }
    kept = slurm.step_environment(env)
    assert sorted(kept) == ["PATH", "SLURM_ARRAY_TASK_ID", "SLURM_CONF", "SLURM_JOB_ID"]


SPLITS = table(__file__, "splits")


@pytest.mark.parametrize("typed", SPLITS)
def test_options_of_sbatch_end_where_the_script_begins(typed):
    assert list(slurm.split_sbatch(shlex.split(typed))) == SPLITS[typed]


def test_the_batch_script_is_what_sbatch_reads():
    batch = slurm.Batch(
        python="/v/bin/python",
        name="bert",
        nodes=(2, 4),
        cwd="/a b",
        command=("ddptop", "launch", "--slurm", "it's.py"),
        exports=(("DDPTOP_HOME", "/h"),),
        gpus_per_node=8,
        options=("-p", "high", "--comment", 'a "b" #c', "--hold"),
    )
    script = slurm.batch_script(batch)
    head = [line for line in script.splitlines() if line.startswith("#SBATCH ")]
    assert head == [
        "#SBATCH --job-name=bert",
        "#SBATCH --nodes=2-4",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        "#SBATCH --signal=B:USR1@120",
        "#SBATCH --gpus-per-node=8",
        "#SBATCH --no-kill",
        "#SBATCH -p high",
        '#SBATCH --comment "a \\"b\\" #c"',
        "#SBATCH --hold",
    ]
    assert script.endswith(
        "cd '/a b' || exit 1\nexport DDPTOP_HOME=/h\nexec ddptop launch --slurm 'it'\"'\"'s.py'\n"
    )
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize("options", table(__file__, "refused"))
def test_options_that_would_break_a_job_are_refused(options):
    with pytest.raises(UsageError):
        slurm.check_sbatch(options)
    slurm.check_sbatch(["--signal=B:USR1@300", "--nodelist=a", "--signal", "B:SIGUSR1@60"])
    slurm.check_sbatch(
        ["--sign=B:USR1@300", "--part=gpu", "--nice", "--no-kill", "--wait-all-nodes=1"]
    )


def _ran(attempt: int, step: int | None, saved: Checkpoint | None = None, **changes: Any):
    """The job when its attempt has to leave, two hours after its start."""
    changes.setdefault("run_step", None if step is None else RunStep(step=step, counts="run"))
    since = LONG_AGO - dt.timedelta(hours=2)
    known = {"attempt": attempt, "checkpoint": saved, "ts": LONG_AGO, "attempt_started_at": since}
    return make_snapshot(make_spec("j"), **known, **changes)


def test_requeues_without_progress_run_out_and_progress_refills_them():
    counts = slurm_holder.Requeues(slurm_job="1")
    for attempt, step in enumerate((100, 100, 90, 100)):
        counts = slurm_holder.requeued(counts, _ran(attempt, step))
        assert slurm_holder.why_no_requeue(counts, None) is None
    assert (counts.count, counts.without_progress, counts.step) == (4, 3, 100)
    for stuck in (slurm_holder.requeued(counts, _ran(4, 100)), slurm_holder.requeued(counts, None)):
        assert "no progress in the last 3" in (slurm_holder.why_no_requeue(stuck, None) or "")
    moved = slurm_holder.requeued(counts, _ran(4, 101))
    assert slurm_holder.why_no_requeue(moved, None) is None
    assert slurm_holder.why_no_requeue(moved, 5) is None
    assert "--max-requeues 4" in (slurm_holder.why_no_requeue(moved, 4) or "")


@pytest.mark.parametrize("saves", ["known", "unknown", "never"])
def test_a_job_that_counts_only_the_steps_of_its_attempts_progresses(saves):
    counts = slurm_holder.Requeues(slurm_job="1")
    for attempt in range(6):
        at = LONG_AGO + dt.timedelta(hours=attempt)
        step = 500 * (attempt + 1) if saves == "known" else None
        saved = Checkpoint(path="/c", at=at, attempt=attempt, step=500, global_step=step)
        run = RunStep(step=500, counts="attempt" if attempt else "run", attempt=attempt)
        ran = _ran(attempt, None, None if saves == "never" else saved, run_step=run)
        counts = slurm_holder.requeued(counts, ran)
        assert slurm_holder.why_no_requeue(counts, None) is None
    assert counts.without_progress == 0
    again = slurm_holder.requeued(counts, ran)
    assert again.without_progress == 1, "it has not run since"
    idle = slurm_holder.requeued(counts, _ran(6, None, saved, run_step=run))
    assert idle.without_progress == (saves != "never"), "a script that saves has not saved"


def test_the_queue_is_read():
    cells = [
        ["7", "bert", "PENDING", "gpu", "2", "", "Resources", "2026-11-22T10:00:00"],
        ["8_1", "a|b", "RUNNING", "gpu", "1", "n1", "None", "2026-11-22T10:00:00"],
    ]
    cells[0] += ["2026-11-22T12:00:00", "1-00:00:00", "1-00:00:00", "7"]
    cells[1] += ["2026-11-22T11:00:00", "UNLIMITED", "UNLIMITED", "9"]
    printed = "\n".join("\x1f".join(line) for line in cells)
    pending, running = slurm.queue_of(printed + "\nsomething else\n")
    at = dt.datetime(2026, 11, 22, 12, tzinfo=dt.timezone.utc)
    assert (pending.start_estimate, pending.started_at, pending.reason) == (at, None, "Resources")
    assert (pending.nodes, pending.node_list, pending.time_limit_s) == (2, None, 86400.0)
    assert (running.id, running.number, running.name) == ("8_1", "9", "a|b")
    hour = dt.timedelta(hours=1)
    assert (running.started_at, running.start_estimate) == (at - hour, None)
    assert (running.reason, running.time_limit_s) == (None, None)


def test_what_sbatch_prints_is_read():
    said = "sbatch: error: invalid partition: x\nsbatch: error: Submission failed\nsee the wiki\n"
    assert slurm.refusal(said) == "invalid partition: x. Submission failed"
    assert slurm.refusal("\n\x1b[31mno\r\n") == "\ufffd[31mno"
    assert slurm.refusal("\n") is None
    assert slurm.submitted("12\n") == "12"
    assert slurm.submitted("note\n12;cluster\n") == "12"
    assert slurm.submitted("") is None
    assert slurm.seconds_of("1-02:03:04") == 93784.0
    assert slurm.seconds_of("03:04") == 184.0
    assert slurm.seconds_of("UNLIMITED") is None


def test_a_job_in_slurm_that_writes_no_more_is_lost_and_not_running_for_ever(ddptop_home):
    folder = put_job("j", {"state": "running"}, slurm_job="7", host="elsewhere")
    assert read_job(folder).state == "running"
    long_ago = time.time() - 600
    for file in (folder.node_file("elsewhere"), folder.spec_file):
        os.utime(file, (long_ago, long_ago))
    assert read_job(folder).state == "lost"
    folder = put_job("k", {"state": "running"}, host="elsewhere")
    os.utime(folder.node_file("elsewhere"), (long_ago, long_ago))
    assert read_job(folder).state == "running", "of a host that cannot be seen nothing is known"


@pytest.mark.parametrize(
    "step",
    [
        r"""echo '{"type": "refused", "error": "no\\nrank \\u001b[31m", "hint": "wait\\n"}'""",
        r"printf 'srun: error: no\033[31m\r\n' >&2; exit 1",
    ],
)
def test_what_another_node_says_is_one_line(ddptop_home, tmp_path, monkeypatch, step):
    srun = tmp_path / "srun"
    srun.write_text(f"#!/bin/sh\ncat >/dev/null\n{step}\n")
    srun.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    folder = put_job("j", {"state": "running"}, slurm_job="7", host="elsewhere")
    with pytest.raises(ControlError) as refused:
        commands.request_in_allocation(read_job(folder), pt.StopAsked(), pt.Done, 10.0)
    assert not re.search(r"[\x00-\x1f]", str(refused.value))


def test_a_job_that_ran_in_slurm_is_submitted_again_and_not_restarted(ddptop_home):
    folder = put_job("j", {"state": "failed"}, slurm_job="7", host="elsewhere", backing="held")
    with pytest.raises(UsageError, match="ran in Slurm job 7; submit it again"):
        launch.require_startable(read_job(folder))


def _printed(state: str, reason: str) -> str:
    cells = ["7", "j", state, "gpu", "1", "", reason, "2026-11-22T10:00:00"]
    return "\x1f".join([*cells, "2026-11-22T12:00:00", "1:00:00", "1:00:00", "7"])


def _requeued(tmp_path, monkeypatch, printed: str) -> RunFolder:
    """A job that Slurm ended, and a squeue that prints the queue."""
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\ncat <<'E'\n{printed}\nE\n")
    squeue.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURM_CONF", "/dev/null")
    rank = RankSample(rank=0, local_rank=0, host="elsewhere", state="running", step=40)
    known = {"state": "running", "step": 40, "ranks": [rank], "ts": LONG_AGO, "guardian": gone()}
    folder = put_job("j", known, slurm_job="7", host="elsewhere")
    for file in (folder.node_file("elsewhere"), folder.spec_file):
        os.utime(file, (time.time() - 600,) * 2)
    return folder


def test_a_requeued_job_that_waits_in_slurm_is_queued(ddptop_home, tmp_path, monkeypatch, capsys):
    folder = _requeued(tmp_path, monkeypatch, _printed("PENDING", "Priority"))
    assert ls.run(show_all=False, as_json=True) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(job["job"], job["state"]) for job in answer["jobs"]] == [("j", "queued")]
    assert answer["jobs"][0]["restart_at"] == "2026-11-22T12:00:00Z"
    assert [job["job"] for job in answer["slurm"]] == ["j"], "and is not listed twice"
    assert status.run("j", as_json=False) == 0
    printed = capsys.readouterr().out
    assert "j: queued" in printed
    assert "requeued as Slurm job 7; pending (Priority)" in printed
    assert not re.search(r"unguarded|stale|running|\d MiB", printed), "nothing of it runs"
    assert status.run(None, as_json=False) == 0, "it is the only job alive"
    assert "j: queued" in capsys.readouterr().out
    with pytest.raises(WaitTimeoutError, match="j is still queued"):
        control.run_wait(None, timeout_s=0.2)
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        assert status_watch.run(None, as_json=True, interval_s=1.0) == 0
        assert status_watch.run("j", as_json=True, interval_s=1.0) == 0, "not 5, of a lost job"
    of_all, of_one = map(json.loads, capsys.readouterr().out.splitlines())
    assert of_all["jobs"][0]["state"] == of_one["state"] == "queued"
    view = read_job(folder)
    for refuse in (commands.stop, commands.remove, commands.require_ended):
        with pytest.raises(UsageError, match=r"waiting in Slurm's queue.*scancel 7"):
            refuse(view)
    with pytest.raises(UsageError, match="in use: that job is queued"):
        launch.require_free("j")
    with pytest.raises(WaitTimeoutError, match="j is still queued"):
        commands.wait_until_ended(view, timeout_s=0.2)


@pytest.mark.parametrize("printed", ["", _printed("RUNNING", "None")])
def test_a_job_that_slurm_does_not_start_again_is_lost(ddptop_home, tmp_path, monkeypatch, printed):
    view = read_job(_requeued(tmp_path, monkeypatch, printed))
    assert slurm_queue.as_queued(view).state == "lost"
    commands.require_ended(view)


def test_a_job_whose_queue_is_unknown_is_waited_for(ddptop_home, tmp_path, monkeypatch):
    view = read_job(_requeued(tmp_path, monkeypatch, ""))
    assert commands.wait_until_ended(view, timeout_s=5.0).state == "lost"
    slurm_queue.forget_queue()
    (tmp_path / "squeue").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(WaitTimeoutError):
        commands.wait_until_ended(view, timeout_s=0.3)


def test_a_job_that_slurm_has_just_started_again_is_not_lost(ddptop_home, tmp_path, monkeypatch):
    now = dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    printed = _printed("RUNNING", "None").replace("2026-11-22T12:00:00", now)
    assert slurm_queue.as_queued(read_job(_requeued(tmp_path, monkeypatch, printed))).is_live


def test_a_job_that_slurm_has_not_started_is_waited_for(ddptop_home, tmp_path, monkeypatch):
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\ncat <<'E'\n{_printed('PENDING', 'Priority')}\nE\n")
    squeue.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURM_CONF", "/dev/null")
    with pytest.raises(NoSuchJobError, match=r"has not started: .* 7 is pending \(Priority\)"):
        status.run("j", as_json=False)
    with pytest.raises(WaitTimeoutError, match="j has not started"):
        control.run_wait("j", timeout_s=0.0)
    with pytest.raises(NoSuchJobError, match="no job named 'other'"):
        control.run_wait("other", timeout_s=None)

    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", lambda _: put_job("j", FINISHED, slurm_job="7"))
        assert control.run_wait("j", timeout_s=None) == 0


def test_a_job_in_the_queue_is_waited_for_and_not_the_ended_one_of_its_name(
    ddptop_home, monkeypatch
):
    old = put_job("j", {**FINISHED, "state": "failed"}, slurm_job="6")
    queue = slurm_queue.Queue(jobs=slurm.queue_of(_printed("PENDING", "Priority")))
    monkeypatch.setattr(slurm_queue, "read_queue", lambda: queue)
    with pytest.raises(WaitTimeoutError, match="j has not started: Slurm job 7 is pending"):
        control.run_wait("j", timeout_s=0.0)
    assert slurm_queue.find("j").state == "failed", "its log can still be read"

    def start(_):
        if old.path.exists():
            shutil.rmtree(old.path)
            put_job("j", FINISHED, slurm_job="7")

    monkeypatch.setattr(time, "sleep", start)
    assert control.run_wait("j", timeout_s=None) == 0


def test_a_job_is_waited_for_while_the_queue_is_unknown_or_lists_it(ddptop_home, monkeypatch):
    listed = [slurm_queue.Queue(jobs=slurm.queue_of(_printed(*one))) for one in STATES_OF_7]
    queues = iter([listed[0], slurm_queue.Queue(note="no answer"), listed[1], listed[1]])
    pauses = iter([None, None, FINISHED])

    def pause(_):
        if (ended := next(pauses, None)) is not None:
            put_job("j", ended, slurm_job="7")

    monkeypatch.setattr(slurm_queue, "read_queue", lambda: next(queues))
    monkeypatch.setattr(time, "sleep", pause)
    assert control.run_wait("j", timeout_s=None) == 0


def test_a_job_that_leaves_the_queue_without_starting_is_no_longer_waited_for(
    ddptop_home, monkeypatch
):
    queues = iter([slurm.queue_of(_printed("PENDING", "Priority")), []])
    monkeypatch.setattr(slurm_queue, "read_queue", lambda: slurm_queue.Queue(jobs=next(queues)))
    monkeypatch.setattr(slurm_queue, "POLL_S", 0.0)
    with pytest.raises(DdptopError, match=r"Slurm job 7 ended without starting j; see .*slurm-7"):
        control.run_wait("j", timeout_s=None)


def test_a_job_with_a_history_of_another_version_is_not_restarted(ddptop_home):
    folder = put_job("j", {"state": "failed"})
    HistoryWriter(folder.history_db).close(final=True)
    launch.require_startable(read_job(folder))
    with contextlib.closing(sqlite3.connect(folder.history_db)) as db, db:
        db.execute("UPDATE meta SET value = '2' WHERE key = 'schema'")
    with pytest.raises(UsageError, match="written by another version of ddptop"):
        launch.require_startable(read_job(folder))


def test_what_srun_prints_is_told_without_its_noise():
    noise = "srun: cluster configuration lacks support for cpu binding\n"
    assert slurm.step_problem(noise) is None
    said = f"{noise}srun: error: Unable to contact slurm controller (connect failure)\n"
    assert slurm.step_problem(said) == "Unable to contact slurm controller (connect failure)"
