"""Real training on real devices; skipped if there are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.real_jobs import Job

pytestmark = [pytest.mark.torch, pytest.mark.tmux, pytest.mark.gpu, pytest.mark.slow]

TRAINER = """
import json, os, sys, time
import torch
import torch.distributed as dist
local_rank = int(os.environ["LOCAL_RANK"])
if not torch.cuda.is_available():
    sys.exit("torch sees no CUDA device")
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4096, 4096).cuda())
optimizer = torch.optim.AdamW(model.parameters())
with open(f"losses-{dist.get_rank()}.jsonl", "w", buffering=1) as file:
    for step in range(1, 100_000):
        loss = (model(torch.randn(64, 4096, device="cuda")) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        file.write(json.dumps({"step": step, "loss": loss.item()}) + "\\n")
        time.sleep(0.01)
"""


def _cuda_devices() -> int:
    import torch

    return torch.cuda.device_count()


def test_each_rank_is_on_its_device_with_its_loss_and_memory(
    tmp_path, ddptop_home, ddptop_cli, wait_until
):
    count = _cuda_devices()
    if count == 0:
        pytest.skip("NVML has a device, this torch has no CUDA")
    (tmp_path / "train.py").write_text(TRAINER)
    answer = ddptop_cli(
        "launch", "-d", "--gpus", "all", "--force", "--cwd", str(tmp_path), "train.py"
    )
    assert answer.returncode == 0, answer.stderr
    job = Job(answer.stdout.strip(), ddptop_cli)
    wait_until(lambda: job.trains(step=50), what="training on devices")
    wait_until(
        lambda: all(rank["gpu_mem_used_bytes"] for rank in job.status()["ranks"]),
        what="memory per rank",
    )
    status = job.status()
    assert [rank["cuda_device"] for rank in status["ranks"]] == list(range(count))
    assert len({rank["gpu"] for rank in status["ranks"]}) == count
    for rank in status["ranks"]:
        lines = (tmp_path / f"losses-{rank['rank']}.jsonl").read_text().splitlines()
        written = {line["step"]: line["loss"] for line in map(json.loads, lines)}
        assert rank["loss"] == pytest.approx(written[rank["loss_step"]], rel=1e-4)
    holders = {p["pid"] for gpu in status["gpus"] for p in gpu["processes"]}
    assert {rank["pid"] for rank in status["ranks"]} <= holders
    assert not [a for a in status["alerts"] if a["severity"] == "error"]
    job.cli("stop", job.name)
    assert not any(Path(f"/proc/{rank['pid']}").exists() for rank in status["ranks"])
