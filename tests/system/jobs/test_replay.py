"""A real job is recorded and fails; then every moment of it can be replayed."""

from __future__ import annotations

import pytest

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.job.moment import MomentReader
from ddptop_runner.job.registry import read_job
from ddptop_runner.model.snapshot import RankSample
from ddptop_runner.store.log_clean import sanitize
from ddptop_runner.store.logs import tail_bytes

pytestmark = [pytest.mark.torch, pytest.mark.tmux]

SCRIPT = """
import os, time, torch
from descent import Descent
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank, attempt = int(os.environ["RANK"]), int(os.environ["DDPTOP_ATTEMPT"])
loader = torch.utils.data.DataLoader(torch.randn(400, 4), batch_size=4)
model = torch.nn.Linear(4, 1)
optimizer = Descent(model)
for step, batch in enumerate(loader):
    time.sleep(0.2 if rank else 0.02)
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()
    print(f"attempt {attempt} step {step}", flush=True)
    if step == 14 and rank:
        raise ValueError("the batch is bad")
"""


def test_every_moment_of_a_job_can_be_replayed(launch_script):
    job = launch_script(SCRIPT, "--max-restarts", "0", name="moments")
    assert job.wait() in (1, 93)
    folder = RunFolder(job.folder())
    view = read_job(folder)
    reader = MomentReader(folder, view.spec)
    span = reader.span()
    assert span is not None
    at = {
        (one.type, one.attempt): one.ts.timestamp()
        for one in reader.events()
        if one.rank in (None, 1)
    }

    def states(when: float) -> tuple[str, list[str]]:
        snapshot = reader.read(when, view.snapshot).snapshot
        return snapshot.state, [rank.state for rank in snapshot.ranks]

    assert states(span[0])[0] == "starting"
    assert states(at["training", 0] + 1) == ("running", ["running"] * 2)
    ended = reader.read(span[1], view.snapshot).snapshot
    first, second = (rank.state for rank in ended.ranks)
    assert (ended.state, second) == ("failed", "failed")
    assert first in ("stopped", "failed"), "it is ended, or its connection is before"
    assert ended.cause is not None and ended.cause.exception == "ValueError"

    # the values shown for each rank are consistent
    seen: list[RankSample] = []
    for when in range(int(at["training", 0]), int(at["failure", 0])):
        ranks = reader.read(when, view.snapshot).snapshot.ranks
        seen += [rank for rank in ranks if rank.step and rank.sync_s is not None]
    assert seen, "no moment has steps and what they are made of"
    fast = [rank for rank in seen if rank.rank == 0][-1]
    assert fast.sync_s is not None and fast.sync_s > 0.05, "it waited for the slow one"
    assert fast.log_bytes is not None and fast.step is not None
    log = sanitize(tail_bytes(folder.log_file(0, 0), 1 << 20, fast.log_bytes))
    steps = [line for line in log.splitlines() if line.startswith("attempt 0 step ")]
    # within that second, it may also have printed why it exited
    assert abs(int(steps[-1].split()[-1]) - fast.step) <= 7, "the log ends where the rank was"
