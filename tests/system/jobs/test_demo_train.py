"""The bundled training: learns, survives a kill -9 of everything, and leaves no partial file."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.torch

TRAIN = Path(__file__).parents[3] / "ddptop" / "demo" / "train.py"
TINY = ["--layers", "1", "--width", "64", "--context", "32", "--batch-size", "4"]
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
    ENV.pop(name, None)

SMALL_PARTS = """
import importlib.util, itertools, sys, torch
from pathlib import Path
spec = importlib.util.spec_from_file_location("train", sys.argv[1])
train = importlib.util.module_from_spec(spec)
sys.modules["train"] = train
spec.loader.exec_module(train)

# a failure half-way through writing leaves the earlier checkpoint
file = Path(sys.argv[2]) / "checkpoint.pt"
size = train.Size(layers=1, width=64, context=16, batch_size=2, steps=10)
model = train.GPT(size)
optimizer = torch.optim.AdamW(model.parameters())
train.save_checkpoint(file, 5, size, model, optimizer)
before = file.read_bytes()
def half(state, opened):
    opened.write(b"half")
    raise OSError("disk full")
real, torch.save = torch.save, half
try:
    train.save_checkpoint(file, 6, size, model, optimizer)
    raise SystemExit("the error was swallowed")
except OSError:
    pass
torch.save = real
assert file.read_bytes() == before
assert train.load_checkpoint(file, size, model, optimizer) == 5
try:
    train.load_checkpoint(file, train.Size(1, 128, 16, 2, 10), train.GPT(size), optimizer)
    raise SystemExit("another model's checkpoint was taken")
except SystemExit as error:
    assert "--width 64, not 128" in str(error), error

# from any step on, the data is what an unbroken run would have seen
def take(step, count):
    text = torch.arange(200, dtype=torch.uint8)
    windows = train.Windows(text, 16)
    sampler = train.DistributedSampler(windows, num_replicas=2, rank=1, seed=3, drop_last=True)
    loader = train.DataLoader(windows, 2, sampler=sampler, drop_last=True)
    batches = train.batches_from(step, loader, sampler)
    return [x.tolist() for x, _ in itertools.islice(batches, count)]
unbroken = take(0, 12)
assert unbroken[7:] == take(7, 5)
assert len({str(batch) for batch in unbroken}) > 6, "every epoch has the same order"

rates = [train.learning_rate(step, 100, 1.0) for step in range(100)]
assert rates[0] == 0.1 and max(rates) == 1.0 and 0.1 <= rates[-1] < 0.11
assert len(train.read_corpus(100_000)) == 100_000
"""


def losses(log: str, rank: int = 0) -> list[tuple[int, float]]:
    found = re.findall(rf"^step (\d+)/\d+ loss ([\d.]+) .*rank {rank}\)$", log, re.MULTILINE)
    return [(int(step), float(loss)) for step, loss in found]


def test_it_resumes_after_everything_was_killed(
    tmp_path: Path, wait_until: Callable[..., object]
) -> None:
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
    again = subprocess.run(
        [sys.executable, *common, "--steps", str(last_step)],
        env=ENV,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    assert again.stderr == ""
    resumed = re.search(r"resumed from .* at step (\d+)$", again.stdout, re.MULTILINE)
    assert resumed and int(resumed[1]) >= 50 and int(resumed[1]) % 50 == 0
    second = losses(again.stdout)
    assert second[0][0] > int(resumed[1]) and second[-1][0] == last_step
    tail = [loss for _, loss in second[-5:]]
    assert sum(tail) / len(tail) < first[0][1] - 1.5
    assert re.search(r"validation loss [\d.]+", again.stdout)
    assert again.stdout.count("--- sample output ---\ndef main(") == 1


def test_checkpoint_data_order_and_schedule(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SMALL_PARTS, str(TRAIN), str(tmp_path)],
        env=ENV,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_it_knows_nothing_of_ddptop() -> None:
    imports = re.findall(r"^(?:from|import) (\w+)", TRAIN.read_text(), re.MULTILINE)
    assert set(imports) - set(sys.stdlib_module_names) == {"torch"}
