"""Text for signals, exit statuses, and known errors, and which errors mark a victim."""

from __future__ import annotations

import pytest

from ddptop_runner.judge.causes.error_text import (
    LOST,
    MAYBE_LOST,
    NOT_A_VICTIM,
    WAITED,
    exit_code_in_words,
    known_error,
    last_words,
    signal_in_words,
    victim_of,
    victim_of_text,
)
from ddptop_runner.model.diagnose import PythonException

PAIR = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:{}] {}"
HINT = ". This is typically caused by a remote worker crashing. Check the logs of the remote worker"

VICTIMS = {
    "gloo lost its peer": (
        PAIR.format(553, "Connection closed by peer [127.0.0.1]:30377" + HINT),
        LOST,
    ),
    "gloo was reset": (
        PAIR.format(537, "Read error [127.0.0.1]:22449: Connection reset by peer" + HINT),
        LOST,
    ),
    "gloo waited in vain": (
        "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to "
        "complete",
        WAITED,
    ),
    "gloo gave the pair up": ("Application timeout caused pair closure", WAITED),
    "a monitored barrier": (
        "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 3000 ms",
        WAITED,
    ),
    "NCCL lost its peer": (
        "NCCL error in: NCCLUtils.cpp:94, remote process exited or there was a network error",
        LOST,
    ),
    "NCCL lost its peer, newer": (
        "ncclRemoteError: A call failed possibly due to a network error or a remote process "
        "exiting prematurely.",
        LOST,
    ),
    "NCCL's watchdog": (
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, "
        "OpType=ALLREDUCE) ran for 600023 milliseconds before timing out.",
        WAITED,
    ),
    "NCCL's watchdog ends the process": (
        "[Rank 0] Some NCCL operations have failed or timed out. Due to the asynchronous nature of "
        "CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
        WAITED,
    ),
    "NCCL's watchdog found an error of its own": (
        "Process group watchdog thread terminated with exception: CUDA error: an illegal memory "
        "access was encountered",
        NOT_A_VICTIM,
    ),
    "the store's keys never came": (
        "[3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d "
        "key-value store by key '0', but store->get('0') got error: wait timeout after 600000ms",
        WAITED,
    ),
    "the store is gone": ("[c10d] recvValue failed on SocketImpl(fd=3)", LOST),
    "not all came": ("Timed out after 31 seconds waiting for clients. 1/2 joined.", WAITED),
    "any connection": ("[Errno 104] Connection reset by peer", MAYBE_LOST),
    "any pipe": ("BrokenPipeError: [Errno 32] Broken pipe", MAYBE_LOST),
    "a bug": ("shape mismatch", NOT_A_VICTIM),
    "NCCL for another reason": ("NCCL error: unhandled cuda error", NOT_A_VICTIM),
    "NCCL without shared memory": (
        "ncclSystemError: Error while creating shared memory segment /dev/shm/nccl-x, error: "
        "No space left on device (28), Connection closed",
        NOT_A_VICTIM,
    ),
}


@pytest.mark.parametrize("case", VICTIMS.values(), ids=list(VICTIMS))
def test_victims(case):
    text, expected = case
    assert victim_of_text(text) == expected
    assert victim_of(PythonException("RuntimeError", text, None), "") == expected
    assert victim_of(PythonException("RuntimeError", "x", None, detail=text), "") == expected
    of_log = NOT_A_VICTIM if expected == MAYBE_LOST else expected
    assert victim_of(None, text) == of_log


KNOWN = {
    "shared memory": ("is killed by signal: Bus error. It is possible that", None, "--shm-size"),
    "shared memory, NCCL": ("/dev/shm/nccl-x: No space left on device", None, "/dev/shm"),
    "a disk": ("[Errno 28] No space left on device", None, "disk quota is full."),
    "a port": ("EADDRINUSE", None, "Another process is using a port"),
    "files": ("[Errno 24] Too many open files", None, "ulimit -n"),
    "a kernel's check": ("CUDA error: device-side assert triggered", None, "LAUNCH_BLOCKING"),
    "a device": ("CUDA error: uncorrectable ECC error encountered", "gpu", "The device itself"),
    "a mismatch in torch 2.8": (
        "what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 16 vs 4",
        None,
        "diverged",
    ),
    "a mismatch": ("Is there a distributed collective mismatch in your code?", None, "diverged"),
    "a fingerprint": ("Detected mismatch between collectives on ranks.", None, "diverged"),
    "a build": ("no kernel image is available for execution", None, "PyTorch build"),
}


@pytest.mark.parametrize("case", KNOWN.values(), ids=list(KNOWN))
def test_known_errors(case):
    text, kind, said = case
    known = known_error(text)
    assert known is not None
    assert known.kind == kind
    assert said in known.words


def test_an_unknown_error():
    assert known_error("bad shape") is None


def test_every_signal_that_ends_a_process_means_something():
    for name in ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL", "SIGTERM", "SIGINT"):
        assert signal_in_words(name)
    assert "/dev/shm" in (signal_in_words("SIGBUS") or "")
    assert signal_in_words("SIGXCPU")
    assert signal_in_words("signal 70") is None


@pytest.mark.parametrize(
    ("code", "said"),
    [(137, "SIGKILL"), (139, "SIGSEGV"), (127, "did not find"), (126, "could not")],
)
def test_exit_codes(code, said):
    assert said in (exit_code_in_words(code) or "")


TORCHRUN_REPORT = """\
E1121 13:56:22.933 9 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 2)
Traceback (most recent call last):
  File "/env/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
  exitcode  : 2 (pid: 23552)
============================================================
"""


def test_a_code_of_the_programs_own():
    assert exit_code_in_words(1) is exit_code_in_words(7) is None


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (
            "step\nterminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
            "  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 20 vs 8.\n",
            "terminate called after throwing an instance of 'gloo::EnforceNotMet' "
            "what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 20 vs 8.",
        ),
        ("Fatal Python error: Segmentation fault\n\nCurrent thread\n  File\n", None),
        ("no data found\n\n", "no data found"),
        ("no data found\n=======\n", "no data found"),
        (f"no data found\n{TORCHRUN_REPORT}", "no data found"),
        (TORCHRUN_REPORT, "exitcode  : 2 (pid: 23552)"),
        ("", None),
    ],
)
def test_last_words(tail, expected):
    if tail.startswith("Fatal"):
        expected = "Fatal Python error: Segmentation fault"
    assert last_words(tail) == expected
