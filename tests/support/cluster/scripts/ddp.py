"""Fits a line with DDP over gloo: `ddp.py FOLDER [STEPS] [PAUSE_S] [SAVE_EVERY]`.

It takes the same orders as steps.py.
"""

import datetime
import json
import os
import sys
import time
from pathlib import Path

import ddptop
import torch
import torch.distributed as dist

folder = Path(sys.argv[1])
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
pause_s = float(sys.argv[3]) if len(sys.argv) > 3 else 0.02
save_every = int(sys.argv[4]) if len(sys.argv) > 4 else 50
timeout_s = float(os.environ.get("DDP_TIMEOUT_S", "1800"))
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_s))
rank, attempt = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
torch.manual_seed(rank)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
checkpoint = folder / "checkpoint.pt"
first = 1
if checkpoint.exists():
    state = torch.load(checkpoint)
    model.load_state_dict(state["model"])
    first = state["step"] + 1
host = os.uname().nodename
order = folder / f"do-{rank}"
with (folder / f"losses-{attempt}-{rank}.jsonl").open("a", buffering=1) as file:
    for step in range(first, steps + 1):
        if order.exists():
            word = order.read_text()
            order.unlink()
            if word == "fail":
                raise RuntimeError("told to fail")
            if word == "skip":
                time.sleep(100_000)
        loss = (model(torch.randn(8, 16)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        line = {"step": step, "at": time.time(), "host": host, "is_first": step == first}
        file.write(json.dumps(line) + "\n")
        if rank == 0 and (ddptop.checkpoint_requested() or step % save_every == 0):
            torch.save({"model": model.state_dict(), "step": step}, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").replace(checkpoint)
        time.sleep(pause_s)
dist.barrier()
dist.destroy_process_group()
