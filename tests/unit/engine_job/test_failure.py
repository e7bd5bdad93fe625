"""From the exits and logs of an attempt to its cause as text, using real files."""

from __future__ import annotations

import os

import msgspec
import pytest
from tests.support.builders import make_snapshot, make_spec, put_exit, put_job
from tests.support.tables import table

from ddptop_runner.base.paths import LAUNCHER
from ddptop_runner.host.oom import MemoryGroup, OomWatch
from ddptop_runner.job import evidence, failure
from ddptop_runner.job.ranks import CommandRanks, OwnRanks
from ddptop_runner.judge.causes.culprit import RankEnd
from ddptop_runner.judge.restarts import policy
from ddptop_runner.model.diagnose import PythonException, RankExit
from ddptop_runner.model.snapshot import Cause, GpuProcess, GpuSample, RankSample, encode
from ddptop_runner.store import evidence_folder

pytestmark = pytest.mark.usefixtures("ddptop_home")

TRACEBACK = (
    'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: {}\n'
)
LOST = TRACEBACK.replace("ValueError", "RuntimeError").format(
    "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:3"
)


@pytest.fixture
def quiet():
    """A machine whose kernel reports nothing."""
    return OomWatch(groups=list)


def table_of(*exits: RankExit) -> OwnRanks:
    table = OwnRanks(len(exits), 0.0)
    for exit_ in exits:
        put_exit(table[exit_.rank], exit_)
    return table


def put_log(folder, rank: int, text: str | bytes, attempt: int = 0) -> None:
    log = folder.log_file(attempt, rank)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(text.encode() if isinstance(text, str) else text)


def test_a_cause_holds_nothing_that_steers_a_terminal(quiet):
    folder = put_job()
    put_log(folder, 0, TRACEBACK.format("a \x1b[31mred\x1b[0m \x1b]0;title\x07word"))
    _, cause = failure.judge(folder, 0, table_of(RankExit(0, 7, 1, 1.0)), 1.0, oom=quiet)
    assert "ValueError: a red word" in cause.summary
    assert "\x1b" not in cause.summary


def test_a_crash_names_the_line_from_which_it_came(quiet):
    folder = put_job()
    stacks = evidence.stacks_file(folder, 0, 0)
    stacks.parent.mkdir(parents=True, exist_ok=True)
    thread = "Current thread 0x00007f51 (most recent call first):"
    stacks.write_text(f'Fatal Python error: Aborted\n\n{thread}\n  File "/a/b.py", line 3 in f\n')
    _, cause = failure.judge(folder, 0, table_of(RankExit(0, 7, -6, 1.0)), 1.0, oom=quiet)
    assert "after an error in C++ code. It crashed at /a/b.py:3 in f. Its log is" in cause.summary
    assert cause.place == "/a/b.py:3 in f"
    _, cause = failure.judge(folder, 0, table_of(RankExit(0, 7, -9, 1.0)), 1.0, oom=quiet)
    assert cause.place is None


OUT_OF_MEMORY = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity
"""


@pytest.mark.parametrize(
    ("recorded", "sentence"),
    [
        (
            '{"total_bytes": 3221225472, "by_place": {"model.py:33 in forward": 2147483648}}',
            "Its tensors held 3.0 GiB: 2.0 GiB from model.py:33 in forward.",
        ),
        ('{"total_bytes": -1, "by_place": {}}', "It tried to allocate 2.00 GiB on its device."),
        ('{"total_bytes": 1, "by_pl', "It tried to allocate 2.00 GiB on its device."),
    ],
)
def test_what_a_rank_recorded_as_its_memory_ran_out(quiet, recorded, sentence):
    folder = put_job()
    put_log(folder, 0, OUT_OF_MEMORY)
    written = evidence_folder.written_by(folder, 0, 0, "memory.json")
    written.parent.mkdir(parents=True)
    written.write_text(recorded)
    _, cause = failure.judge(
        *(folder, 0, table_of(RankExit(0, 7, 1, 1.0)), 1.0),
        oom=quiet,
        offers_memory_snapshots=False,
    )
    assert cause.kind == "cuda_oom" and cause.summary.endswith(sentence)


def test_the_rank_that_raised_is_named_though_its_victim_died_first(quiet):
    folder = put_job()
    put_log(folder, 0, LOST)
    put_log(folder, 1, TRACEBACK.format("bad"))
    exits = (RankExit(0, 7, 1, 1.0), RankExit(1, 8, 1, 1.2))
    outcome, cause = failure.judge(folder, 0, table_of(*exits), 1.0, oom=quiet)
    assert (cause.kind, cause.rank, cause.exception) == ("exception", 1, "ValueError")
    assert cause.place == "train.py:3 in <module>"
    assert outcome.exception is not None and outcome.exception.place == cause.place
    assert (outcome.kind, outcome.exit_code) == ("exception", 1)


async def test_only_output_before_the_end_of_an_ended_rank_counts(quiet):
    """Its SIGTERM handler may raise, and ddptop sent the signal."""
    folder = put_job()
    put_log(folder, 0, LOST)
    put_log(folder, 1, "step 5\n")
    scene = evidence_folder.Scene(ranks={0: None, 1: None})
    kept = await evidence_folder.keep(folder, 0, "failure", scene)
    put_log(folder, 1, "step 5\n" + TRACEBACK.format("got SIGTERM"))
    exits = (RankExit(0, 7, 1, 1.0), RankExit(1, 8, 1, 2.0, ended_by_us=True))
    _, cause = failure.judge(folder, 0, table_of(*exits), 1.0, oom=quiet)
    assert cause.rank == 0
    assert "SIGTERM" not in cause.summary
    assert cause.evidence == str(kept)
    assert (kept / "summary.txt").read_text().startswith(cause.summary)


def test_the_snapshot_of_that_moment_tells_of_the_device(quiet):
    folder = put_job()
    put_log(folder, 0, TRACEBACK.format("CUDA error: unspecified"))
    kept = evidence_folder.new_folder(folder, 0, "failure")
    mine = GpuProcess(pid=7, job=folder.job, mem_used_bytes=2**30)
    gpus = [
        GpuSample(index=2, xid=[31], processes=[mine]),
        GpuSample(index=3, xid=[13, 79], processes=[mine]),
    ]
    ranks = [RankSample(rank=0, local_rank=0, host="h", gpu=3)]
    snapshot = make_snapshot(make_spec(), gpus=gpus, ranks=ranks)
    (kept / "snapshot.json").write_bytes(encode(snapshot))
    outcome, cause = failure.judge(
        *(folder, 0, table_of(RankExit(0, 7, 1, 1.0)), 1.0), oom=quiet, xids_before={3: [13]}
    )
    assert cause.kind == outcome.kind == "gpu"
    assert "GPU 3 reported XID 79: the device fell off the bus." in cause.summary
    assert "XID 13" not in cause.summary and "XID 31" not in cause.summary


def test_a_kill_that_the_kernel_counted_is_memory():
    counts = iter([4, 5])
    oom = OomWatch(groups=lambda: [MemoryGroup("/g", 2, next(counts), limit_bytes=2**30)])
    oom.begin_attempt()
    folder = put_job()
    put_log(folder, 0, "step 3\n")
    outcome, cause = failure.judge(folder, 0, table_of(RankExit(0, 7, -9, 1.0)), 1.0, oom=oom)
    assert (cause.kind, outcome.kind, outcome.signal) == ("host_oom", "host_oom", "SIGKILL")
    assert "limit: 1.0 GiB" in cause.summary


def test_no_rank_failed(quiet):
    folder = put_job()
    outcome, cause = failure.judge(folder, 0, OwnRanks(2, 0.0), 1.0, oom=quiet)
    assert (cause.kind, outcome.kind) == ("unknown", "unknown")


@pytest.mark.parametrize(("returncode", "kind"), [(0, "early_exit"), (None, "hang"), (3, "hang")])
def test_a_hang_after_a_rank_left_with_0_is_its_doing(returncode, kind):
    table = OwnRanks(2, 0.0)
    table[1].steps = 50
    put_exit(table[1], RankExit(1, 8, returncode, 1.0))
    cause = failure.after_hang(Cause(kind="hang", rank=1, summary="The job hung."), table)
    assert cause.kind == kind
    said = (
        "Rank 1 (pid 8) exited with status 0 at step 50 while the others continued."
        in cause.summary
    )
    assert said is (kind == "early_exit")
    assert cause.summary.endswith("The job hung.")


@pytest.mark.parametrize(("said", "reason"), table(__file__, "hopeless"))
def test_missing_script_is_distinguished_from_bad_arguments(quiet, said, reason):
    folder = put_job()
    put_log(folder, 0, said)
    outcome, _ = failure.judge(folder, 0, table_of(RankExit(0, 7, 2, 1.0)), 1.0, oom=quiet)
    decision = policy.decide(policy.record(policy.History(), outcome), 3, 0.5)
    assert (decision.reason, decision.restart, decision.requeue) == (reason, False, False)


@pytest.mark.parametrize(
    ("exit_code", "said", "reason"),
    [
        (127, "sh: 1: trian: not found\n", "the shell did not find the command (exit status 127)"),
        (
            126,
            "sh: 1: ./x: Permission denied\n",
            "the shell could not execute the command (exit status 126)",
        ),
        (
            1,  # its launcher's own, whose log says why
            "python: can't open file '/w/train.py': [Errno 2] No such file or directory\n"
            + TRACEBACK.replace("ValueError", "ChildFailedError").format("train.py FAILED"),
            "the script does not exist: /w/train.py",
        ),
    ],
)
def test_a_command_that_cannot_run_is_not_tried_again_elsewhere(quiet, exit_code, said, reason):
    folder = put_job()
    put_log(folder, LAUNCHER, said)
    table = CommandRanks(0.0)
    table.started(LAUNCHER, 0, os.getpid())
    put_exit(table.launcher, RankExit(LAUNCHER, os.getpid(), exit_code, 1.0))
    outcome, cause = failure.judge(folder, 0, table, 1.0, oom=quiet)
    decision = policy.decide(policy.record(policy.History(), outcome), 3, 0.5)
    assert (cause.rank, cause.exit_code) == (None, exit_code)
    assert (decision.reason, decision.restart, decision.requeue) == (reason, False, False)


def test_a_command_that_is_its_only_rank_is_named_as_that_rank(quiet):
    """Its exit is seen twice, by the agent and the supervisor, a moment apart."""
    folder, pid = put_job(), os.getpid()
    table = CommandRanks(0.0)
    table.started(LAUNCHER, 0, pid)
    table.started(0, 0, pid)
    table[0].rank_source = "probe"
    put_exit(table.launcher, RankExit(LAUNCHER, pid, -9, 1.0))
    put_exit(table[0], RankExit(0, pid, -9, 1.001))
    _, cause = failure.judge(folder, 0, table, 1.0, oom=quiet)
    assert (cause.rank, cause.signal) == (0, "SIGKILL")


def test_event_keeps_only_a_readable_part_of_an_exit():
    many = "Missing key(s): " + ", ".join(f"layers.{n}.weight" for n in range(100_000))
    error = PythonException("RuntimeError", many, "train.py:3 in main", because="E: " + many)
    end = failure.shortened(
        RankEnd(RankExit(5, 7, 1, 100.0), exception=error, tail="x" * 90_000 + "the end")
    )
    assert end.exception is not None
    assert end.exception.message.startswith("Missing key(s)")
    assert end.tail.endswith("the end")
    assert len(msgspec.json.encode(end)) < 10_000
    plain = msgspec.to_builtins(end)
    assert msgspec.convert(plain, RankEnd) == end, "the head reads it back"
