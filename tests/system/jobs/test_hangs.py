"""Ranks that never reach a collective, one attempt after the other: which is named, and the
evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.tmux]

SCRIPT = """
import os, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from descent import Descent

dist.init_process_group("gloo")
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
model = torch.nn.Linear(16, 1)
optimizer = Descent(model)


class Samples(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, index):
        if rank == 1 and attempt == 0 and index == 40:
            time.sleep(3600)
        return torch.randn(16)


for step, x in enumerate(DataLoader(Samples(), batch_size=4, num_workers=rank)):
    if rank == 1 and attempt == 1 and step == 15:  # one all_reduce fewer, and of another size
        optimizer.param_groups[0]["params"].pop(0)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    time.sleep(0.05)
dist.barrier()
"""


@pytest.mark.gloo_records
def test_rank_that_held_up_the_others_is_named(launch_script):
    job = launch_script(SCRIPT, "--max-restarts", "2", "--hang-timeout", "6")
    assert job.wait() == 0
    (hang,) = job.events("hang")
    assert (hang["attempt"], hang["rank"]) == (0, 1)
    assert "(limit: 6 s)" in hang["message"]
    loader = (Path(hang["evidence"]) / "stacks-rank-1-loader.txt").read_text()
    assert "--- data loader process " in loader
    assert "in __getitem__" in loader
    (failure,) = job.events("failure")
    assert failure["attempt"] == 1
    assert "It is unknown which rank is at fault" in failure["message"]
