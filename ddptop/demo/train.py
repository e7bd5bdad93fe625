"""Train a small byte-level GPT with DistributedDataParallel on Python's own source code.

A plain training script: it does not depend on ddptop and also runs unchanged under torchrun.

    torchrun --nproc-per-node 2 train.py          one process per GPU, or CPU processes (gloo)
    python train.py --steps 200                   one process

The text comes from the running interpreter's library, so nothing is downloaded. If started
again with the same --out, training resumes from the last checkpoint. The script can also inject
faults (--fault, --fault-file) to show how a launcher handles them.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import math
import os
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, default_collate

VOCABULARY = 256
"""One token per byte value."""
CORPUS_LIMIT_BYTES = 8_000_000
LOG_EVERY, VALIDATE_EVERY, VALIDATION_BATCHES = 10, 100, 4


@dataclass(frozen=True)
class Size:
    """What the shape of the model and of a batch is made of."""

    layers: int
    width: int
    context: int
    """Bytes the model sees at once."""
    batch_size: int
    """Sequences per rank and step."""
    steps: int


CPU = Size(layers=4, width=128, context=128, batch_size=8, steps=2000)
GPU = Size(layers=8, width=512, context=512, batch_size=32, steps=4000)


def log(line: str) -> None:
    """Print a line with one write, so that lines of several ranks on one terminal stay whole."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


# --- data ------------------------------------------------------------------------------------


def read_corpus(limit_bytes: int = CORPUS_LIMIT_BYTES) -> Tensor:
    """The top-level modules of the standard library in a fixed order, as a tensor of bytes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = bytearray().join(file.read_bytes() for file in files)
    return torch.frombuffer(text[:limit_bytes], dtype=torch.uint8)


class Windows(Dataset):
    """Pieces of `context` bytes, each with the same piece shifted by one as its target."""

    def __init__(self, text: Tensor, context: int) -> None:
        self.text, self.context = text, context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * self.context
        piece = self.text[start : start + self.context + 1].long()
        return piece[:-1], piece[1:]


def batches_from(
    step: int, loader: DataLoader, sampler: DistributedSampler
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches for ever, beginning with the one of `step`: their order depends on the seed only."""
    epoch, done = divmod(step, len(loader))
    while True:
        sampler.set_epoch(epoch)
        yield from islice(loader, done, None)
        epoch, done = epoch + 1, 0


# --- model -----------------------------------------------------------------------------------


class Block(nn.Module):
    """Attention and a feed-forward layer, each beside a residual path."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Batch, length and width stay as they are."""
        batch, length, width = x.shape
        split = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.norm_2(x))


class GPT(nn.Module):
    """Predicts the next byte."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.context = size.context
        self.token = nn.Embedding(VOCABULARY, size.width)
        self.position = nn.Parameter(torch.zeros(size.context, size.width))
        self.blocks = nn.Sequential(*(Block(size.width) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, VOCABULARY, bias=False)
        self.apply(self._initialize)

    @staticmethod
    def _initialize(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next byte at every position."""
        x = self.token(tokens) + self.position[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


# --- checkpoint ------------------------------------------------------------------------------


def save_checkpoint(
    file: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Replace the checkpoint as a whole: a crash leaves the old one or the new one.

    The order of the data follows from the seed and the step, so no random state is kept.
    """
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(".tmp")
    torch.save(state, temporary)
    temporary.replace(file)


def load_checkpoint(file: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Take up the checkpoint's state and return its step."""
    state = torch.load(file, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


# --- training --------------------------------------------------------------------------------


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up, then a cosine down to a tenth."""
    warm_up = max(1, min(100, steps // 10))
    if step < warm_up:
        return peak * (step + 1) / warm_up
    done = (step - warm_up) / max(1, steps - warm_up)
    return peak * (0.55 + 0.45 * math.cos(math.pi * done))


@torch.no_grad()
def validate(model: GPT, text: Tensor, size: Size, device: torch.device) -> float:
    """Mean loss over a few batches that no rank trains on; all ranks share the work."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    windows = Windows(text, size.context)
    count = min(len(windows), VALIDATION_BATCHES * size.batch_size * world_size)
    spread = torch.linspace(0, len(windows) - 1, count).long()
    total = torch.zeros(2, device=device)
    for indices in spread[rank::world_size].split(size.batch_size):
        pairs = [windows[int(index)] for index in indices]
        inputs, targets = (tensor.to(device) for tensor in default_collate(pairs))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        total += torch.stack([loss.float() * len(pairs), loss.new_tensor(float(len(pairs)))])
    dist.all_reduce(total)
    return float(total[0] / total[1])


def train(options: argparse.Namespace, size: Size, device: torch.device) -> None:
    """Train from the checkpoint, or from the start, to the last step."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)

    text = read_corpus()
    held_back = len(text) // 20
    windows = Windows(text[:-held_back], size.context)
    sampler = DistributedSampler(windows, seed=options.seed, drop_last=True)
    loader = DataLoader(windows, size.batch_size, sampler=sampler, drop_last=True)

    model = GPT(size).to(device)
    ddp = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=options.lr, betas=(0.9, 0.95))

    step, file = 0, options.out / "checkpoint.pt"
    if options.resume and file.exists():
        step = load_checkpoint(file, model, optimizer)
        log(f"resumed from {file} at step {step}")
        if step >= size.steps:
            log("training is complete (--no-resume starts over)")
    if rank == 0:
        count = sum(parameter.numel() for parameter in model.parameters())
        log(
            f"{count / 1e6:.1f} M parameters, {len(text) / 1e6:.1f} MB of text, "
            f"{world_size} x {size.batch_size} x {size.context} bytes per step on {device.type}"
        )

    faults = None
    if options.fault or options.fault_file:
        faults = importlib.import_module("misbehave").Faults(options, rank)

    record = None
    if options.record:
        options.record.mkdir(parents=True, exist_ok=True)
        record = (options.record / f"rank-{rank}.jsonl").open("a", buffering=1, encoding="utf-8")
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))

    batches = batches_from(step, loader, sampler)
    logged_at, logged_step = time.perf_counter(), step
    while step < size.steps:
        poisoned = faults is not None and faults.happen(step)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, size.steps, options.lr)
        inputs, targets = (tensor.to(device) for tensor in next(batches))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = F.cross_entropy(ddp(inputs).flatten(0, 1), targets.flatten())
        if poisoned:
            loss = loss * math.nan
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        optimizer.step()
        step += 1
        if record is not None:
            line = {"attempt": attempt, "step": step, "loss": loss.item(), "at": time.time()}
            record.write(json.dumps(line) + "\n")
        time.sleep(options.pause)

        if step % LOG_EVERY == 0 or step in (1, size.steps):
            shown, now = loss.item(), time.perf_counter()
            step_time_s = (now - logged_at) / (step - logged_step)
            logged_at, logged_step = now, step
            log(
                f"step {step}/{size.steps} loss {shown:.4f} "
                f"({step_time_s:.3f} s per step, rank {rank})"
            )
        if step % VALIDATE_EVERY == 0 or step == size.steps:
            validation_loss = validate(model, text[-held_back:], size, device)
            if rank == 0:
                log(f"step {step}/{size.steps} validation loss {validation_loss:.4f}")
        due = step % options.save_every == 0 or step == size.steps
        if rank == 0 and due and all(p.isfinite().all() for p in model.parameters()):
            save_checkpoint(file, step, model, optimizer)
            log(f"step {step}/{size.steps} saved {file}")


def parse_arguments(argv: list[str] | None = None) -> tuple[argparse.Namespace, Size]:
    """Read the command line; sizes not given follow from the device."""
    parser = argparse.ArgumentParser(
        description="Train a small byte-level GPT with DistributedDataParallel.",
        epilog=f"Defaults on the CPU: {CPU}; on GPUs: {GPU}.",
    )
    parser.add_argument("--steps", type=int, help="total optimizer steps")
    parser.add_argument("--batch-size", type=int, help="sequences per rank per step")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--width", type=int, help="model width, a multiple of 64")
    parser.add_argument("--context", type=int, help="context length in bytes")
    parser.add_argument("--lr", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--out", type=Path, default=Path("demo-gpt"), help="checkpoint directory")
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-resume", dest="resume", action="store_false")
    parser.add_argument(
        "--record", type=Path, help="write each rank's steps to this directory as JSON Lines"
    )
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to sleep after each step")
    parser.add_argument("--pg-timeout", type=float, help="timeout for collectives, in seconds")
    faults = parser.add_argument_group("fault injection")
    faults.add_argument("--fault", help="raise, kill, hang-python ... (see misbehave.py)")
    faults.add_argument("--fault-step", type=int, default=20)
    faults.add_argument("--fault-rank", type=int, default=1)
    faults.add_argument(
        "--fault-file", help="inject the fault named in FILE.<rank> as soon as that file appears"
    )
    options = parser.parse_args(argv)
    default = GPU if torch.cuda.is_available() else CPU
    given = {name: getattr(options, name) or value for name, value in asdict(default).items()}
    return options, Size(**given)


def main() -> None:
    """Join the process group, train, leave it."""
    options, size = parse_arguments()
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    if "RANK" not in os.environ:  # not under torchrun: a group of one
        os.environ.update(alone, MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    timeout = datetime.timedelta(seconds=options.pg_timeout) if options.pg_timeout else None
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device, timeout=timeout)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo", timeout=timeout)
    try:
        train(options, size, device)
        dist.barrier()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
