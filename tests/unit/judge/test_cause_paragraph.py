"""The paragraph that explains a failure: which rank, what, why, and how many failed after it."""

from __future__ import annotations

import pytest

from ddptop_runner.host.oom import OomFinding
from ddptop_runner.judge.causes import culprit
from ddptop_runner.judge.causes.culprit import Culprit, RankEnd
from ddptop_runner.judge.causes.paragraph import LONGEST, Surroundings, XidReport, cause_of
from ddptop_runner.model.diagnose import PythonException, RankExit

BUG = PythonException("ValueError", "bad", "a.py:1 in f")
LOST = PythonException("RuntimeError", "gloo: Connection closed by peer [127.0.0.1]:65", "a.py:2")
WAITED = PythonException("RuntimeError", "Timed out waiting 8000ms for recv", "a.py:2")
HERE = Surroundings()


def end(rank: int = 3, code: int | None = 1, by_us: bool = False, **known: object) -> RankEnd:
    exit_ = RankExit(rank, 1000 + rank, code, float(rank), by_us)
    return RankEnd(exit_, **known)  # type: ignore[arg-type]


def told(*ends: RankEnd, around: Surroundings = HERE):
    blamed = culprit.find(ends)
    assert blamed is not None
    return cause_of(blamed, ends, around, "/e")


def memory(words: str, killed: bool = True) -> Surroundings:
    return Surroundings(killed_for_memory=lambda: OomFinding(killed, words))


CAUSES = {
    "exception": (
        [end(exception=BUG, step=5, leaving=True)],
        HERE,
        ("exception", None, 1, "ValueError", "a.py:1 in f"),
        "Rank 3 (pid 1003) exited with status 1 at step 5. ValueError: bad (at a.py:1 in f).",
    ),
    "one that died without a word took that step at least": (
        [end(code=-11, step=5, tail="step 5\n"), end(4, -15, True)],
        HERE,
        ("signal", "SIGSEGV", None, None, None),
        "Rank 3 (pid 1003) was killed by SIGSEGV after step 5, the first to fail. SIGSEGV: an "
        "invalid memory access in C++ code. Its last output: 'step 5'. 1 other rank was stopped "
        "as a result.",
    ),
    "exit code": (
        [end(code=3, tail="loading\nno such data set  \n\n"), end(4, -15, True), end(5, -15, True)],
        HERE,
        ("exit_code", None, 3, None, None),
        "Rank 3 (pid 1003) exited with status 3, the first to fail. Its last output: 'no such data "
        "set'. 2 other ranks were stopped as a result.",
    ),
    "exit code, silent": (
        [end(code=1, tail=" \n")],
        HERE,
        ("exit_code", None, 1, None, None),
        "Rank 3 (pid 1003) exited with status 1. Its log is empty.",
    ),
    "a print failed because the disk is full": (
        [end(code=1, tail="step 5\n")],
        Surroundings(is_disk_full=True),
        ("exit_code", None, 1, None, None),
        "Rank 3 (pid 1003) exited with status 1. Its last output: 'step 5'. The run folder's disk "
        "is full, so it could not print; free some space.",
    ),
    "a handled exception is not the cause of another exit status": (
        [end(code=3, exception=BUG, tail="ValueError: bad\n")],
        HERE,
        ("exit_code", None, 3, None, None),
        "Rank 3 (pid 1003) exited with status 3. Its last output: 'ValueError: bad'.",
    ),
    "unknown": (
        [end(code=None)],
        HERE,
        ("exit_code", None, None, None, None),
        "Rank 3 (pid 1003) exited with an unknown status. Its log is empty.",
    ),
    "killed": (
        [end(code=-9, exception=BUG)],
        HERE,
        ("signal", "SIGKILL", None, None, None),
        "Rank 3 (pid 1003) was killed by SIGKILL. It is unknown whether another process killed it "
        "or it ran out of memory.",
    ),
    "killed for memory": (
        [end(code=-9)],
        memory("The kernel did it."),
        ("host_oom", "SIGKILL", None, None, None),
        "Rank 3 (pid 1003) was killed by SIGKILL. The kernel did it.",
    ),
    "killed, and not for memory": (
        [end(code=-9)],
        memory("Something else did it.", killed=False),
        ("signal", "SIGKILL", None, None, None),
        "Rank 3 (pid 1003) was killed by SIGKILL. Something else did it.",
    ),
    "killed below a shell": (
        [end(code=137)],
        memory("The kernel did it."),
        ("host_oom", None, 137, None, None),
        "Rank 3 (pid 1003) exited with status 137. A shell reports 137 for a process "
        "killed by SIGKILL. The kernel did it.",
    ),
    "a killed data loader": (
        [
            end(
                exception=PythonException(
                    "RuntimeError",
                    "DataLoader worker (pid(s) 31981) exited unexpectedly",
                    "a.py:1",
                    because="RuntimeError: worker (pid 31981) is killed by signal: Killed",
                )
            )
        ],
        Surroundings(killed_for_memory=lambda: OomFinding(True, "Memory.")),
        ("host_oom", None, 1, "RuntimeError", "a.py:1"),
        None,
    ),
    "no memory left": (
        [end(exception=PythonException("MemoryError", "", "a.py:1"))],
        HERE,
        ("host_oom", None, 1, "MemoryError", "a.py:1"),
        "Rank 3 (pid 1003) exited with status 1. MemoryError (at a.py:1). The machine ran out "
        "of memory, or the job reached its memory limit.",
    ),
    "no memory left for torch": (
        [
            end(
                exception=PythonException(
                    "RuntimeError", "[enforce] DefaultCPUAllocator: can't allocate memory", "a.py:1"
                )
            )
        ],
        HERE,
        ("host_oom", None, 1, "RuntimeError", "a.py:1"),
        None,
    ),
    "a device's memory": (
        [
            end(
                exception=PythonException(
                    "torch.OutOfMemoryError",
                    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has",
                    "a.py:1",
                ),
                gpu=3,
                peak_bytes=2**30,
            ),
            end(4, -15, True, peak_bytes=2**31),
        ],
        HERE,
        ("cuda_oom", None, 1, "OutOfMemoryError", "a.py:1"),
        "Rank 3 (pid 1003) ran out of GPU memory (at a.py:1), the first to fail. It "
        "tried to allocate 2.00 GiB on GPU 3. Peak memory: 1.0 GiB (rank 3) to 2.0 GiB (rank "
        "4). 1 other rank was stopped as a result.",
    ),
    "C++ says why": (
        [end(code=-6, tail="terminate called after throwing an instance of 'X'\n  what():  y\n")],
        HERE,
        ("signal", "SIGABRT", None, None, None),
        "Rank 3 (pid 1003) was killed by SIGABRT. SIGABRT: it aborted after an error in "
        "C++ code. Its last output: \"terminate called after throwing an instance of 'X' what():  "
        'y".',
    ),
    "aborted while going down after an exception": (
        [end(code=-6, exception=BUG)],
        HERE,
        ("exception", "SIGABRT", None, "ValueError", "a.py:1 in f"),
        "Rank 3 (pid 1003) was killed by SIGABRT. ValueError: bad (at a.py:1 in f).",
    ),
    "a known error": (
        [end(exception=PythonException("OSError", "[Errno 28] No space left on device", "a.py:1"))],
        HERE,
        ("exception", None, 1, "OSError", "a.py:1"),
        "Rank 3 (pid 1003) exited with status 1. OSError: [Errno 28] No space left on device (at "
        "a.py:1). A disk or a disk quota is full.",
    ),
    "a device error": (
        [end(exception=BUG, gpu=2)],
        Surroundings(xids=[XidReport(1, 79), XidReport(2, 79)]),
        ("gpu", None, 1, "ValueError", "a.py:1 in f"),
        "Rank 3 (pid 1003) exited with status 1. ValueError: bad (at a.py:1 in f). GPU 2 reported "
        "XID 79: the device fell off the bus.",
    ),
    "an error of the program that the device reports": (
        [end(exception=BUG, gpu=2)],
        Surroundings(xids=[XidReport(2, 31)]),
        ("exception", None, 1, "ValueError", "a.py:1 in f"),
        None,
    ),
    "a lost device": (
        [end(code=-9, gpu=2)],
        Surroundings(lost_gpus=[2]),
        ("gpu", "SIGKILL", None, None, None),
        None,
    ),
    "left with 0": (
        [end(1, 0, step=50, leaving=True), end(2, 1, exception=LOST), end(3, -15, True)],
        HERE,
        ("early_exit", None, 0, None, None),
        "Rank 1 (pid 1001) exited with status 0 at step 50 while the others continued. Rank 2 "
        "lost its connection to it at a.py:2 and exited with status 1. All ranks must "
        "take the same number of steps: check for an early exit or uneven data. 1 more rank was "
        "stopped as a result.",
    ),
    "raised, and was ended while going down": (
        [end(1, 1, exception=LOST), end(3, -15, True, exception=BUG)],
        HERE,
        ("exception", None, 1, "ValueError", "a.py:1 in f"),
        "Rank 3 (pid 1003) raised an exception. ValueError: bad (at a.py:1 in f). Rank 1 lost its "
        "connection to it at a.py:2 and exited with status 1.",
    ),
    "did not come": (
        [end(1, 1, exception=WAITED), end(3, -15, True, step=5, stands_at="t.py:9 in body")],
        HERE,
        ("hang", None, 1, None, "t.py:9 in body"),
        "Rank 3 (pid 1003) never reached a collective in which rank 1 was waiting for it. It was "
        "last seen at t.py:9 in body at step 5. Rank 1 gave up and exited with status 1: "
        "RuntimeError: Timed out waiting 8000ms for recv (at a.py:2).",
    ),
    "paused": (
        [end(1, 1, exception=WAITED), end(3, -9, True, paused=True)],
        HERE,
        ("hang", None, 1, None, None),
        None,
    ),
    "victims alone": (
        [end(1, 1, exception=LOST), end(2, 1, exception=LOST)],
        HERE,
        ("exception", None, 1, "RuntimeError", "a.py:2"),
        "Rank 1 (pid 1001) exited with status 1, the first to fail. RuntimeError: gloo: Connection "
        "closed by peer [127.0.0.1]:65 (at a.py:2). It lost its connection to another rank; the "
        "reason is unknown. 1 other rank failed afterward.",
    ),
}


@pytest.mark.parametrize("case", CAUSES.values(), ids=list(CAUSES))
def test_cause(case):
    ends, around, facts, summary = case
    cause = told(*ends, around=around)
    assert (cause.kind, cause.signal, cause.exit_code, cause.exception, cause.place) == facts
    assert cause.evidence == "/e"
    assert cause.summary.startswith(f"Rank {cause.rank} (pid {1000 + (cause.rank or 0)}) ")
    if summary is not None:
        assert cause.summary == summary


def test_how_many_failed_and_were_stopped_after_it():
    others = [end(4, -15, True), end(5, 1, exception=LOST), end(6, -15, True)]
    summary = told(end(exception=BUG), *others).summary
    assert summary.endswith(" 1 other rank failed afterward, and 2 were stopped as a result.")
    assert "first" not in told(end(exception=BUG)).summary


@pytest.mark.parametrize("what", ["line", "message", "cause"])
def test_summary_has_a_readable_length(what):
    long = "begin" + "x" * 100_000 + "end"
    exception = None
    if what == "message":
        exception = PythonException("ValueError", long, "a.py:1", because=long)
    elif what == "cause":
        exception = PythonException("ValueError", "b", "a.py:1", because=long)
    summary = told(end(exception=exception, tail=long), end(4, -15, True)).summary
    assert len(summary) <= LONGEST
    assert "begin" in summary and "end" in summary and "[...]" in summary
    assert summary.endswith("1 other rank was stopped as a result.")


def test_without_a_victim_of_its_own_a_missing_rank_is_told_as_well():
    alone = end(exception=None, step=4)
    cause = cause_of(Culprit(alone, "missing"), [alone], HERE, None)
    assert (
        "in which the others were waiting for it. It was last seen after step 4." in cause.summary
    )
