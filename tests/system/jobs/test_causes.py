"""The causes of real failures: one job whose attempts fail in different ways and then succeed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.tmux]

SCRIPT = """
import atexit, os, sys, time
import ddptop

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def leave_slowly():
    open(sys.argv[0] + ".leaving", "w").close()
    time.sleep(60)


def check(step):
    if attempt == 0:  # its victim dies first, for the traceback is printed long before its own end
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            file.write('{"message": {"message": "ValueErr')
        atexit.register(leave_slowly)
        raise ValueError(f"damaged sample at {step}")
    sys.exit(0)


for step in range(1, 9):
    if step == 8 and rank == 1 and attempt < 2:
        time.sleep(0.5)
        check(step)
    if step == 8 and rank == 0 and attempt < 2:
        while attempt == 0 and not os.path.exists(sys.argv[0] + ".leaving"):
            time.sleep(0.05)
        time.sleep(attempt)
        raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:9")
    ddptop.report(loss=1 / step)
    time.sleep(0.1)
if rank == 0:
    time.sleep(4)  # it saves what was trained; longer than an early exit may go unseen
"""


def test_each_failure_names_its_rank_and_success_names_none(launch_script):
    job = launch_script(SCRIPT, "--max-restarts", "9")
    assert job.wait() == 0
    status = job.status()
    assert (status["state"], status["cause"], status["attempt"]) == ("finished", None, 2)
    raised, left = job.events("failure")
    assert raised["rank"] == left["rank"] == 1
    assert "raised an exception" in raised["message"]
    assert "ValueError: damaged sample at 8 (at " in raised["message"]
    assert "script.py:18 in check)" in raised["message"]
    assert "Rank 0 lost its connection to it" in raised["message"]
    assert (
        "exited with status 0 at step 7 of attempt 1 while the others continued" in left["message"]
    )
    assert left["exit_code"] == 0
    assert not any("early" in event["message"] for event in job.events("alert"))
    kept = Path(raised["evidence"])
    assert raised["message"].startswith((kept / "summary.txt").read_text().splitlines()[0])
    assert (kept / "error-rank-1.json").read_text().endswith('"ValueErr')
    names = {path.name for path in kept.iterdir()}
    assert {"proc-rank-1.txt", "stacks-rank-1.txt", "tail-rank-0.txt", "snapshot.json"} <= names


RUNS_OUT = """
import torch

observers, lines = [], [{"filename": "/me/model.py", "name": "forward", "line": 33}]
block = {"state": "active_allocated", "size": 3 << 30, "frames": lines}
snapshot = {"segments": [{"device": 0, "blocks": [block]}], "device_traces": []}
torch.cuda.memory._record_memory_history = lambda **options: None
torch.cuda.memory._snapshot = lambda: snapshot
torch._C._cuda_attach_out_of_memory_observer = observers.append
for call, _ in torch.cuda._queued_calls:  # as once CUDA is initialized
    if call.__module__.endswith("probe.memory"):
        call()
for observer in observers:
    observer(0, 2**31, 2**36, 2**20)
raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")
"""


@pytest.mark.parametrize(
    ("restarts", "options", "named"),
    [
        ("0", (), False),
        ("0", ("--no-probe",), False),
        ("0", ("--memory-snapshot",), True),
        ("1", (), True),  # the attempt after the first failure
    ],
)
def test_what_holds_a_devices_memory_as_it_runs_out(launch_script, restarts, options, named):
    job = launch_script(RUNS_OUT, "--max-restarts", restarts, *options)
    assert job.wait() in (1, 93)  # twice at the same step is not worth requeueing
    cause = job.status()["cause"]
    held = "Its tensors held 3.0 GiB: 3.0 GiB from model.py:33 in forward."
    assert (held in cause["summary"]) is named
    is_offered = not named and "--no-probe" not in options
    assert ("--memory-snapshot names" in cause["summary"]) is is_offered
    names = {path.name for path in Path(cause["evidence"]).iterdir()}
    assert ({"memory-rank-0.json", "memory-rank-0.pickle"} <= names) is named
