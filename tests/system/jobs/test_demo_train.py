"""The bundled training: learns, survives a kill -9 of everything, and leaves no partial file."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.support.programs import captured

pytestmark = pytest.mark.torch

TRAIN = Path(__file__).parents[3] / "ddptop" / "demo" / "train.py"
TINY = ["--layers", "1", "--width", "64", "--context", "32", "--batch-size", "4"]
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
    ENV.pop(name, None)


def losses(log: str, rank: int = 0) -> list[tuple[int, float]]:
    found = re.findall(rf"^step (\d+)/\d+ loss ([\d.]+) .*rank {rank}\)$", log, re.MULTILINE)
    return [(int(step), float(loss)) for step, loss in found]


def test_it_resumes_after_everything_was_killed(tmp_path, wait_until):
    checkpoint, log = tmp_path / "out" / "checkpoint.pt", tmp_path / "log"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", "2"]
    common = [str(TRAIN), *TINY, "--out", str(checkpoint.parent), "--save-every", "50"]
    with log.open("wb") as opened:
        job = subprocess.Popen(
            [*torchrun, *common, "--steps", "1000000"], env=ENV, stdout=opened, stderr=opened
        )
    try:
        wait_until(checkpoint.exists, timeout_s=120, what=f"a checkpoint; log: {log.read_text()}")
        wait_until(lambda: len(losses(log.read_text(), 1)) > 6)
    finally:
        children = psutil.Process(job.pid).children(recursive=True)
        # first: it would otherwise end and reap the others as soon as one of them has exited
        job.kill()
        for process in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        job.wait()

    first = losses(log.read_text())
    assert first[0][0] == 1 and 5.0 < first[0][1] < 6.2

    # the second run is a single process without torchrun: the world size may change
    last_step = first[-1][0] + 100
    again = captured(sys.executable, *common, "--steps", str(last_step), env=ENV, timeout=200)
    assert again.returncode == 0, again.stderr
    assert again.stderr == ""
    resumed = re.search(r"resumed from .* at step (\d+)$", again.stdout, re.MULTILINE)
    assert resumed and int(resumed[1]) >= 50 and int(resumed[1]) % 50 == 0
    second = losses(again.stdout)
    assert second[0][0] > int(resumed[1]) and second[-1][0] == last_step
    tail = [loss for _, loss in second[-5:]]
    assert sum(tail) / len(tail) < first[0][1] - 1.5
    assert re.search(r"validation loss [\d.]+", again.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["healthy", "same-batches"])
def test_a_sick_demo_is_named_and_its_healthy_twin_is_not(ddptop_cli, kind):
    answer = ddptop_cli("demo", "--sick", kind, "--", "--seconds", "25", timeout_s=180)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stdout.endswith(f"{kind}: OK\n")


def test_an_unknown_kind_of_sick_demo_is_refused(ddptop_cli):
    answer = ddptop_cli("demo", "--sick", "flu")
    assert answer.returncode == 2
    assert answer.stderr.startswith("ddptop: --sick flu is not a known kind")
    assert "same-batches" in answer.stderr
