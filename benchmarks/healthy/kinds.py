"""Healthy trainings of many kinds, none of which deserves a warning: `kinds.py NAME` trains one.

They train until they are stopped, unless their end is what they are about.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import itertools
import math
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from kit import (
    FEATURES,
    RANK,
    SECONDS,
    WORLD,
    Device,
    Kind,
    adam,
    batches,
    data,
    ddp,
    epochs,
    join,
    loader,
    net,
    run,
    step,
    steps_in,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

KINDS: dict[str, Kind] = {}
Train = Callable[[], None]


def kind(
    ranks: int = 2, needs: str = "", by: str = "ddptop", beside_others: bool = False
) -> Callable[[Train], Train]:
    """Register a training by the name of its function."""

    def add(train: Train) -> Train:
        name = train.__name__.replace("_", "-")
        KINDS[name] = Kind(train, ranks, needs, by, beside_others)
        return train

    return add


def plain(step_s: float = 0.1, **options: Any) -> None:
    """DistributedDataParallel as in the tutorial."""
    join()
    run(ddp(net(step_s)), batches(loader(**options)))


# -- how many ranks, how long a step -------------------------------------------

kind()(plain)


@kind(ranks=1)
def one_rank() -> None:
    plain()


@kind(ranks=3)
def three_ranks() -> None:
    plain(0.15)


@kind(ranks=4)
def four_ranks() -> None:
    plain(0.3)


@kind(by="torchrun")
def torchrun() -> None:
    plain()


@kind(by="spawn")
def spawn() -> None:
    """The script starts its ranks by itself."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29000 + os.getpid() % 1000)}
    torch.multiprocessing.start_processes(_spawned, nprocs=2)


def _spawned(rank: int) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(net())
    sampler = DistributedSampler(data(), 2, rank)
    run(model, batches(DataLoader(data(), 32, sampler=sampler)))


@kind()
def one_millisecond() -> None:
    """Steps that really compute, and nothing else."""
    join()
    batch = next(batches(loader()))
    run(ddp(net(0.0)), itertools.repeat(batch))


@kind()
def twenty_seconds() -> None:
    plain(20.0)


@kind()
def noisy_steps() -> None:
    """Steps differ by a factor of two, on each rank for itself."""
    join()
    model = net()
    run(ddp(model), _with_step_s(model, lambda _: 0.1 * random.lognormvariate(0.0, 0.3)))


def _with_step_s(
    model: nn.Sequential, step_s: Callable[[int], float], source: Iterator[Any] | None = None
) -> Iterator[Any]:
    """Batches, before each of which the device's time is set."""
    device = next(one for one in model if isinstance(one, Device))
    for number, batch in enumerate(source or batches(loader())):
        device.step_s = step_s(number)
        yield batch


@kind()
def moe_imbalance() -> None:
    """In each step, another rank has more tokens for its experts."""
    join()
    model = net()
    run(ddp(model), _with_step_s(model, lambda _: 0.1 + 0.08 * (random.random() < 0.4)))


@kind()
def variable_length() -> None:
    """A step takes as long as its longest sequence."""
    join()
    model = net()
    run(ddp(model), _with_step_s(model, lambda _: max(random.expovariate(20.0) for _ in range(4))))


@kind()
def length_buckets() -> None:
    """All ranks draw from the same bucket, for 50 steps."""
    join()
    model, same = net(), random.Random(3)
    buckets = [same.choice((0.04, 0.08, 0.16, 0.32)) for _ in range(9999)]
    run(ddp(model), _with_step_s(model, lambda n: buckets[n // 50] * random.uniform(0.9, 1.1)))


@kind()
def longer_sequences() -> None:
    """A curriculum: steps take four times as long after five minutes."""
    join()
    model, began_s = net(), time.monotonic()
    run(
        ddp(model),
        _with_step_s(model, lambda _: 0.05 + 0.15 * (time.monotonic() - began_s) / 300.0),
    )


@kind(beside_others=True)
def busy_machine() -> None:
    """Other programs take all CPUs for half of each minute."""
    plain()


@kind(beside_others=True)
def busy_machine_that_computes() -> None:
    """The same, and each rank needs its CPU."""
    join()
    model = ddp(nn.Sequential(nn.Linear(FEATURES, 2048), nn.ReLU(), nn.Linear(2048, 512)))
    x = torch.randn(99, 512, FEATURES)
    run(model, ((one, one.sum(1, keepdim=True).expand(-1, 512)) for one in itertools.cycle(x)))


# -- how they step -------------------------------------------------------------


def accumulate(*, sync: bool) -> None:
    join()
    model = ddp(net(0.05))
    optimizer = adam(model)
    for number, (x, y) in enumerate(batches(loader())):
        is_last = number % 4 == 3
        with contextlib.nullcontext() if sync or is_last else model.no_sync():  # type: ignore[operator]
            (F.mse_loss(model(x), y) / 4).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()


@kind()
def accumulation_no_sync() -> None:
    accumulate(sync=False)


@kind()
def accumulation() -> None:
    accumulate(sync=True)


@kind()
def gan() -> None:
    """Two optimizers take turns."""
    join()
    generator, critic = ddp(net(0.05, FEATURES)), ddp(net(0.05))
    both = adam(generator), adam(critic)
    for x, _ in batches(loader()):
        noise = torch.randn(len(x), FEATURES)
        real, fake = critic(x), critic(generator(noise).detach())
        loss = F.softplus(fake).mean() + F.softplus(-real).mean()
        both[1].zero_grad()
        loss.backward()
        both[1].step()
        loss = F.softplus(-critic(generator(noise))).mean()
        both[0].zero_grad()
        loss.backward()
        both[0].step()


@kind()
def wasserstein_gan() -> None:
    """Five steps of the critic for one of the generator; its loss is negative and grows."""
    join()
    generator, critic = ddp(net(0.05, FEATURES)), ddp(net(0.05))
    of_generator, of_critic = adam(generator), torch.optim.RMSprop(critic.parameters(), 1e-3)
    for number, (x, _) in enumerate(batches(loader())):
        noise = torch.randn(len(x), FEATURES)
        of_critic.zero_grad()
        (critic(generator(noise).detach()).mean() - critic(x + 2.0).mean()).backward()
        of_critic.step()
        if number % 5 == 4:
            of_generator.zero_grad()
            (-critic(generator(noise)).mean()).backward()
            of_generator.step()


@kind()
def reinforcement() -> None:
    """Rollouts of two to four seconds, then twenty updates."""
    join()
    model = ddp(net(0.05))
    optimizer = adam(model)
    while True:
        with torch.no_grad():
            rollout = torch.randn(640, FEATURES)
            for _ in range(60):
                model(rollout[:32])
                time.sleep(random.uniform(0.02, 0.04))
        advantage = torch.randn(640, 1)
        for i in range(20):
            x, a = rollout[i * 32 :][:32], advantage[i * 32 :][:32]
            optimizer.zero_grad()
            (-(model(x) * a).mean()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()


@kind()
def evolution() -> None:
    """No gradients at all: rewards are gathered, and the weights are set."""
    join()
    model = net(0.1)
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    x, y = next(batches(loader(batch=256)))
    while True:
        noise = torch.randn_like(weights)
        nn.utils.vector_to_parameters(weights + 0.02 * noise, model.parameters())
        with torch.no_grad():
            reward = -F.mse_loss(model(x), y)
        update = reward * noise
        dist.all_reduce(update)
        weights = weights + 0.01 * update / WORLD


@kind()
def lbfgs() -> None:
    """Each step evaluates the loss several times."""
    join()
    model = ddp(net(0.03))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.05, max_iter=8)
    x, y = next(batches(loader(batch=1024)))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    while True:
        optimizer.step(closure)


@kind()
def join_context() -> None:
    """Uneven inputs with `model.join()`, epoch by epoch."""
    join()
    model = ddp(net(0.05))
    optimizer = adam(model)
    x, y = data().tensors
    for epoch in range(1 << 30):
        with model.join():  # type: ignore[operator]
            for i in range(100 + (20 if epoch % 2 == RANK else 0)):
                at = (i * 64 + 32 * RANK + 7 * epoch) % 8000
                step(model, optimizer, x[at : at + 32], y[at : at + 32])


# -- precision, compilers, wrappers --------------------------------------------


@kind()
def compiled() -> None:
    join()
    torch.manual_seed(0)
    part = torch.compile(nn.Sequential(nn.Linear(FEATURES, 64), nn.GELU(), nn.Linear(64, 64)))
    run(ddp(nn.Sequential(part, Device(0.1), nn.Linear(64, 1))), batches(loader()))


@kind()
def bfloat16() -> None:
    join()
    model = ddp(net())
    optimizer = adam(model)
    for x, y in batches(loader()):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.mse_loss(model(x).float(), y)
        loss.backward()
        optimizer.step()


@kind()
def loss_scaler() -> None:
    """Scaled losses; the first steps overflow and are skipped, as in each float16 training."""
    join()
    model = ddp(net())
    optimizer = adam(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=200)
    for x, y in batches(loader()):
        optimizer.zero_grad()
        scaler.scale(F.mse_loss(model(x), y)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@kind()
def fully_sharded() -> None:
    join()
    from torch.distributed.fsdp import fully_shard

    model = net()
    fully_shard(model)
    run(model, batches(loader()))


@kind()
def zero_optimizer() -> None:
    join()
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = ddp(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
    for x, y in batches(loader()):
        step(model, optimizer, x, y)


@kind()
def local_sgd() -> None:
    """Replicas differ between averages, on purpose; no DistributedDataParallel."""
    join()
    model = net()
    optimizer = adam(model)
    for number, (x, y) in enumerate(batches(loader())):
        step(model, optimizer, x, y)
        if number % 20 == 19:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= WORLD


@kind()
def post_local_sgd() -> None:
    """The same by torch's hook, under DistributedDataParallel."""
    join()
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as hooks
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    model: Any = ddp(net())
    state = hooks.PostLocalSGDState(None, dist.new_group([RANK]), start_localSGD_iter=50)
    model.register_comm_hook(state, hooks.post_localSGD_hook)
    averager = PeriodicModelAverager(period=10, warmup_steps=50)
    optimizer = PostLocalSGDOptimizer(adam(model), averager)
    for x, y in batches(loader()):
        step(model, optimizer, x, y)


@kind()
def pipeline() -> None:
    """Two stages; each rank has one, and they work one after the other."""
    join()
    first, device = RANK == 0, Device(0.1)
    stage = nn.Linear(FEATURES, 64) if first else nn.Linear(64, 1)
    optimizer = adam(stage)
    for x, y in batches(DataLoader(data(), 32)):
        optimizer.zero_grad()
        if first:
            out = device(stage(x))
            dist.send(out.detach(), 1)
            grad = torch.empty_like(out)
            dist.recv(grad, 1)
            out.backward(grad)
        else:
            out = torch.empty(len(x), 64)
            dist.recv(out, 0)
            out.requires_grad_()
            F.mse_loss(stage(device(out)), y).backward()
            dist.send(out.grad, 0)
        optimizer.step()


@kind()
def tensor_parallel() -> None:
    """Each rank has half of each layer; all share the same batches."""
    join()
    torch.manual_seed(RANK)
    mine, device = nn.Linear(FEATURES, 32), Device(0.1)
    out = nn.Linear(32, 1)
    optimizer = adam(nn.ModuleList([mine, out]))
    for x, y in batches(DataLoader(data(), 32)):
        part = out(device(F.relu(mine(x))))
        rest = part.detach().clone()
        dist.all_reduce(rest)
        optimizer.zero_grad()
        F.mse_loss(part + (rest - part.detach()), y).backward()
        optimizer.step()


@kind()
def stochastic_depth() -> None:
    """Layers are left out by chance, so that unused parameters must be searched."""

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()
            self.skipped = nn.Linear(FEATURES, FEATURES)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(self.skipped(x) + x if random.random() < 0.5 else x)
            return out

    join()
    run(ddp(Deep(), find_unused_parameters=True), batches(loader()))


@kind()
def frozen_backbone() -> None:
    join()
    model = net()
    model[0].requires_grad_(False)
    run(ddp(model), batches(loader()))


@kind()
def batch_norm() -> None:
    """Each rank has its own running statistics between broadcasts."""
    join()
    torch.manual_seed(0)
    layers = [nn.Linear(FEATURES, 64), nn.BatchNorm1d(64), Device(0.1), nn.Linear(64, 1)]
    run(ddp(nn.Sequential(*layers), broadcast_buffers=False), batches(loader(drop_last=True)))


@kind()
def average_weights() -> None:
    """An exponential moving average of the weights, on rank 0 only."""
    join()
    model = ddp(net())
    optimizer = adam(model)
    average = copy.deepcopy(model.module) if RANK == 0 else None  # type: ignore[operator,arg-type]
    for x, y in batches(loader()):
        step(model, optimizer, x, y)
        if average is not None:
            with torch.no_grad():
                for old, new in zip(average.parameters(), model.parameters(), strict=True):
                    old.lerp_(new, 0.01)


@kind()
def stochastic_weight_averaging() -> None:
    join()
    from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

    model = ddp(net())
    optimizer = adam(model)
    average, schedule = AveragedModel(model), SWALR(optimizer, 0.005)
    batch_source = loader(data(2048))
    for _ in epochs(batch_source):
        for x, y in batch_source:
            step(model, optimizer, x, y)
        average.update_parameters(model)
        schedule.step()
        update_bn(batch_source, average)


# -- evaluation, checkpoints, exports ------------------------------------------


def evaluate(model: nn.Module, seconds: float) -> None:
    model.eval()
    end_s = time.monotonic() + seconds
    with torch.no_grad():
        while time.monotonic() < end_s:
            model(torch.randn(32, FEATURES))
    model.train()


@kind()
def evaluation_on_rank_0() -> None:
    """Rank 0 evaluates for 40 s, and the others wait."""
    join()
    model: Any = ddp(net())
    optimizer = adam(model)
    for number, (x, y) in enumerate(batches(loader())):
        step(model, optimizer, x, y)
        if number % 500 == 499:
            if RANK == 0:
                evaluate(model.module, 40.0)
            dist.barrier()


@kind()
def short_evaluations_on_rank_0() -> None:
    """Rank 0 evaluates for 2 s after each 20 s."""
    join()
    model: Any = ddp(net())
    optimizer = adam(model)
    for number, (x, y) in enumerate(batches(loader())):
        step(model, optimizer, x, y)
        if number % 200 == 199:
            if RANK == 0:
                evaluate(model.module, 2.0)
            dist.barrier()


@kind()
def long_validation() -> None:
    """All ranks validate for half a minute at the end of each epoch."""
    join()
    model: Any = ddp(net())
    optimizer, source = adam(model), loader(data(16384))
    for _ in epochs(source):
        for x, y in source:
            step(model, optimizer, x, y)
        evaluate(model.module, random.uniform(27.0, 33.0))


@kind()
def uneven_validation() -> None:
    """Each rank validates its own share, which takes 10 or 25 s."""
    join()
    model: Any = ddp(net())
    optimizer, source = adam(model), loader(data(16384))
    for _ in epochs(source):
        for x, y in source:
            step(model, optimizer, x, y)
        evaluate(model.module, 10.0 + 15.0 * RANK)


@kind()
def samples_on_rank_0() -> None:
    """Rank 0 draws a picture every 100 steps, which takes 0.3 s."""
    join()
    model = ddp(net())
    optimizer = adam(model)
    for number, (x, y) in enumerate(batches(loader())):
        loss = step(model, optimizer, x, y)
        if number % 100 == 99 and RANK == 0:
            time.sleep(0.3)
            print(f"step {number} loss {loss.item():.4f}", flush=True)


def save(model: nn.Module, path: Path, seconds: float = 0.0) -> None:
    """A checkpoint that takes so long to write."""
    part = path.with_suffix(".part")
    end_s = time.monotonic() + seconds
    with part.open("wb") as file:
        while time.monotonic() < end_s:
            file.write(b"0" * 4_000_000)
            file.flush()
            file.seek(0)
            time.sleep(0.1)
    torch.save(model.state_dict(), part)
    part.replace(path)


@kind()
def minute_checkpoint() -> None:
    """Rank 0 writes a checkpoint for a minute, and the others wait."""
    join()
    model = ddp(net())
    optimizer = adam(model)
    for number, (x, y) in enumerate(batches(loader())):
        step(model, optimizer, x, y)
        if number % 800 == 499:
            if RANK == 0:
                save(model, Path("minute.pt"), 60.0)
            dist.barrier()


@kind()
def checkpoints_in_a_thread() -> None:
    join()
    model = ddp(net())
    optimizer, thread = adam(model), threading.Thread()
    for number, (x, y) in enumerate(batches(loader())):
        step(model, optimizer, x, y)
        if number % 300 == 299 and RANK == 0 and not thread.is_alive():
            state = copy.deepcopy(model)
            thread = threading.Thread(target=save, args=(state, Path("thread.pt"), 10.0))
            thread.start()


@kind()
def frequent_checkpoints() -> None:
    """Rank 0 saves for 0.7 s every 15 s."""
    join()
    model = ddp(net())
    optimizer = adam(model)
    for number, (x, y) in enumerate(batches(loader())):
        step(model, optimizer, x, y)
        if number % 150 == 149 and RANK == 0:
            save(model, Path("frequent.pt"), 0.7)


@kind()
def last_export() -> None:
    """The training ends, and rank 0 exports the model for 40 s."""
    join()
    model = ddp(net())
    optimizer, steps = adam(model), batches(loader())
    for _ in range(steps_in(SECONDS, 0.11)):
        step(model, optimizer, *next(steps))
    dist.barrier()
    dist.destroy_process_group()
    if RANK == 0:
        time.sleep(40.0)
        save(model, Path("export.pt"))


@kind()
def new_models() -> None:
    """A search: each minute a new model, from a higher loss."""
    join()
    for number in range(1 << 30):
        model = ddp(net(0.05 + 0.05 * (number % 3)))
        optimizer, steps = adam(model, 1e-3 * 3 ** (number % 3)), batches(loader())
        for _ in range(400):
            step(model, optimizer, *next(steps))


@kind(needs="tensorboard")
def tensorboard_on_rank_0() -> None:
    join()
    from torch.utils.tensorboard import SummaryWriter

    model = ddp(net())
    optimizer, writer = adam(model), SummaryWriter("board") if RANK == 0 else None
    for number, (x, y) in enumerate(batches(loader())):
        loss = step(model, optimizer, x, y)
        if writer is not None:
            writer.add_scalar("loss", loss.item(), number)
            if number % 50 == 0:
                writer.add_histogram("weights", next(model.parameters()), number)


@kind()
def profiler_on_rank_0() -> None:
    """Rank 0 is profiled for five steps every 200 steps."""
    join()
    from torch.profiler import ProfilerActivity, profile, schedule

    model = ddp(net())
    optimizer = adam(model)
    watched = profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=193, warmup=2, active=5),
        on_trace_ready=lambda one: one.export_chrome_trace("trace.json"),
    )
    with watched if RANK == 0 else contextlib.nullcontext():
        for x, y in batches(loader()):
            step(model, optimizer, x, y)
            if RANK == 0:
                watched.step()


# -- data ----------------------------------------------------------------------


@kind()
def batch_sizes_by_rank() -> None:
    """Rank 1 is half as fast, and gets half of the samples."""
    join()
    run(ddp(net()), batches(loader(batch=32 if RANK == 0 else 16)))


@kind()
def harder_shards() -> None:
    """Rank 1's samples are harder."""
    join()
    shard = data(noise=0.3 + 2.0 * RANK)
    run(ddp(net()), batches(loader(shard)))


@kind()
def tasks_by_rank() -> None:
    """Each rank has a task of its own, with a loss of its own size."""
    join()
    model = ddp(net())
    optimizer = adam(model)
    for x, y in batches(loader()):
        out = model(x)
        loss = F.mse_loss(out, y) if RANK == 0 else 100.0 * F.softplus(-out * y.sign()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@kind()
def bursty_loading() -> None:
    """Each 50th batch takes a second to load, on all ranks."""
    join()
    rows = data()
    rows.load_s = lambda index: 1.0 / 32 if (index // 2 // 32) % 50 == 49 else 0.0
    plain_order = DistributedSampler(rows, WORLD, RANK, shuffle=False)
    run(ddp(net()), batches(DataLoader(rows, 32, sampler=plain_order)))


@kind()
def some_loading() -> None:
    """A sixth of each step is loading."""
    join()
    rows = data()
    rows.load_s = lambda _: 0.02 / 32
    run(ddp(net()), batches(loader(rows)))


class Stream(IterableDataset[Any]):
    """Samples without end, other ones on each rank."""

    def __iter__(self) -> Iterator[Any]:
        made = torch.Generator().manual_seed(RANK)
        while True:
            x = torch.randn(FEATURES, generator=made)
            yield x, x.sum(0, keepdim=True)


@kind()
def iterable_dataset() -> None:
    join()
    run(ddp(net()), iter(DataLoader(Stream(), 32)))


@kind()
def infinite_sampler() -> None:
    """Indices by chance, from each rank's own seed."""

    class Endless(torch.utils.data.Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            own = random.Random(RANK)
            while True:
                yield own.randrange(8192)

    join()
    run(ddp(net()), iter(DataLoader(data(), 32, sampler=Endless())))


@kind()
def fixed_order() -> None:
    """Not shuffled: every epoch has the same order, as asked for."""
    join()
    rows = data(1024)
    sampler = DistributedSampler(rows, WORLD, RANK, shuffle=False)
    run(ddp(net()), batches(DataLoader(rows, 32, sampler=sampler)))


@kind()
def tiny_epochs() -> None:
    """Three batches an epoch."""
    join()
    run(ddp(net()), batches(loader(data(192))))


@kind()
def data_echo() -> None:
    """Each batch is trained on three times, since loading is slow."""
    join()
    rows = data()
    rows.load_s = lambda _: 0.05 / 32
    run(ddp(net()), (one for one in batches(loader(rows)) for _ in range(3)))


@kind()
def persistent_workers() -> None:
    join()
    run(ddp(net(0.15)), batches(loader(num_workers=2, persistent_workers=True)))


@kind()
def loader_warm_up() -> None:
    """Workers start anew for each epoch, and the first batches take 8 s."""
    join()
    rows, began_s = data(16384), [0.0]
    rows.load_s = lambda _: 0.25 if time.monotonic() - began_s[0] < 8.0 else 0.0
    source = loader(rows, num_workers=1)
    model = ddp(net(0.2))
    optimizer = adam(model)
    for _ in epochs(source):
        began_s[0] = time.monotonic()
        for x, y in source:
            step(model, optimizer, x, y)


# -- losses --------------------------------------------------------------------


@kind()
def warm_restarts() -> None:
    """The learning rate starts over, and the loss rises for a while."""
    join()
    model = ddp(net(0.08))
    optimizer = adam(model, 0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 300)
    for x, y in batches(loader()):
        step(model, optimizer, x, y)
        schedule.step()


@kind()
def near_zero() -> None:
    """A loss that falls to 1e-12: no noise, and one batch."""
    join()
    model = ddp(nn.Sequential(nn.Linear(FEATURES, 1), Device(0.05)))
    run(model, batches(loader(data(256, noise=0.0))), 0.02)


@kind()
def exactly_zero() -> None:
    """A hinge loss that is exactly 0 once all samples are on the right side."""
    join()
    model = ddp(net(0.05))
    optimizer = adam(model, 0.003)
    for x, y in batches(loader(data(256, noise=0.0))):
        optimizer.zero_grad()
        F.relu(1.0 - model(x) * y.sign() * y.abs().clamp(min=0.1) * 10).mean().backward()
        optimizer.step()


@kind()
def early_spike() -> None:
    """The loss is fifty times higher for the first seconds, after a first step that is not."""
    join()
    model = ddp(net())
    optimizer = adam(model, 0.001)
    for number, (x, y) in enumerate(batches(loader())):
        if number == 40:
            with torch.no_grad():
                next(model.parameters()).mul_(8.0)
        step(model, optimizer, x, y)


@kind()
def huge_losses() -> None:
    """A regression in raw units: losses of 1e10 that fall."""
    join()
    x, y = data().tensors
    run(ddp(net()), batches(loader(TensorDataset(x, 1e5 * y))), 1.0)


@kind()
def rising_at_first() -> None:
    """The loss doubles in the warm-up of the learning rate."""
    join()
    model = ddp(net())
    optimizer = torch.optim.SGD(model.parameters(), 0.001, momentum=0.9)
    for number, (x, y) in enumerate(batches(loader(data(noise=2.0)))):
        x = x * min(1.0 + number / 300, 2.0)
        step(model, optimizer, x, y)


@kind()
def contrastive() -> None:
    """The other samples of all ranks are the negatives."""
    join()
    model = ddp(net(outputs=16))
    optimizer = adam(model)
    for x, _ in batches(loader()):
        one = F.normalize(model(torch.cat([x, x + 0.1 * torch.randn_like(x)])), dim=1)
        mine, other = one.chunk(2)
        everyone = [torch.empty_like(other) for _ in range(WORLD)]
        dist.all_gather(everyone, other.detach())
        everyone[RANK] = other
        aim = torch.arange(len(x)) + RANK * len(x)
        optimizer.zero_grad()
        F.cross_entropy(mine @ torch.cat(everyone).T / 0.1, aim).backward()
        optimizer.step()


@kind()
def likelihood() -> None:
    """A negative log-likelihood that falls below zero."""
    join()
    model = ddp(net(outputs=2))
    optimizer = adam(model, 0.003)
    for x, y in batches(loader(data(noise=0.01))):
        mean, deviation = model(x).chunk(2, 1)
        optimizer.zero_grad()
        F.gaussian_nll_loss(mean, y, F.softplus(deviation) + 1e-4).backward()
        optimizer.step()


@kind()
def annealed_divergence() -> None:
    """A variational bound whose second term is weighted up, so that the loss rises for minutes."""
    join()
    model = ddp(net(outputs=8))
    optimizer = adam(model)
    for number, (x, y) in enumerate(batches(loader())):
        out = model(x)
        divergence = (out[:, 1:] - 3.0).square().mean()
        optimizer.zero_grad()
        (F.mse_loss(out[:, :1], y) + min(number / 3000, 1.0) * divergence).backward()
        optimizer.step()


@kind()
def weighted_objective() -> None:
    """A second objective that counts thirtyfold starts after 100 s."""
    join()
    model = ddp(net())
    optimizer = adam(model)
    for number, (x, y) in enumerate(batches(loader())):
        optimizer.zero_grad()
        (F.mse_loss(model(x), y) * (30.0 if number > 900 else 1.0)).backward()
        optimizer.step()


@kind()
def plateau() -> None:
    """Random labels: the loss stays at ln 2."""
    join()
    model = ddp(net())
    optimizer = adam(model, 1e-4)
    for x, _ in batches(loader()):
        optimizer.zero_grad()
        aim = torch.randint(0, 2, (len(x), 1)).float()
        F.binary_cross_entropy_with_logits(model(x), aim).backward()
        optimizer.step()


@kind()
def rare_events() -> None:
    """Nearly all batches have no event: the loss is nearly always tiny, with peaks."""
    join()
    model = ddp(net())
    optimizer = adam(model, 0.003)
    for x, _ in batches(loader()):
        aim = (torch.rand(len(x), 1) < 0.002).float()
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(model(x) - 6.0, aim).backward()
        optimizer.step()


# -- memory and the interpreter ------------------------------------------------


@kind()
def growing_cache() -> None:
    """A cache of samples that is full after two minutes."""
    join()
    model = ddp(net())
    optimizer, cache = adam(model), []
    for x, y in batches(loader()):
        if len(cache) < 1000:
            cache.append(torch.zeros(100_000) + len(cache))
        step(model, optimizer, x, y)


@kind()
def replay_buffer() -> None:
    """A buffer that grows by leaps, one for each set of rollouts."""
    join()
    model = ddp(net())
    optimizer, buffer = adam(model), []
    for number, (x, y) in enumerate(batches(loader())):
        if number % 100 == 0:
            buffer = [*buffer[-7:], torch.zeros(4_000_000) + number]
        step(model, optimizer, x, y)


@kind()
def collected_by_hand() -> None:
    """Garbage is collected every 100 steps, by hand."""
    join()
    model = ddp(net())
    optimizer = adam(model)
    gc.freeze()
    gc.disable()
    for number, (x, y) in enumerate(batches(loader())):
        step(model, optimizer, x, y)
        if number % 100 == 99:
            gc.collect()


@kind()
def by_hand() -> None:
    """No wrapper: gradients are averaged by hand."""
    join()
    model = net()
    optimizer = adam(model)
    for x, y in batches(loader()):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= WORLD
        optimizer.step()


# -- frameworks ----------------------------------------------------------------


def lightning(**options: Any) -> None:
    import lightning as L

    class Model(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: Any, _: int) -> Tensor:
            loss = F.mse_loss(self.net(batch[0]), batch[1])
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("val_loss", F.mse_loss(self.net(batch[0]), batch[1]), sync_dist=True)

        def configure_optimizers(self) -> Any:
            return adam(self)

    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=-1, logger=False, **options
    )
    trainer.fit(Model(), DataLoader(data(), 32, shuffle=True), DataLoader(data(2048), 32))


@kind(needs="lightning")
def lightning_validating() -> None:
    lightning(default_root_dir="lightning", accumulate_grad_batches=2, gradient_clip_val=1.0)


def accelerated(**options: Any) -> None:
    from accelerate import Accelerator

    own = Accelerator(cpu=True, **options)
    inner = net(0.05)
    source = DataLoader(data(), 32, shuffle=True)
    model, optimizer, source = own.prepare(inner, adam(inner), source)
    while True:
        for x, y in source:
            with own.accumulate(model):
                own.backward(F.mse_loss(model(x), y))
                optimizer.step()
                optimizer.zero_grad()


@kind(needs="accelerate")
def accelerate_plain() -> None:
    accelerated()


@kind(needs="accelerate")
def accelerate_accumulating() -> None:
    accelerated(gradient_accumulation_steps=4)


def trainer(**options: Any) -> None:
    """A transformer of random weights with transformers' Trainer."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    class Words(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 4000

        def __getitem__(self, index: int) -> Any:
            words = torch.randint(0, 90, (24,), generator=torch.Generator().manual_seed(index))
            return {"input_ids": words, "labels": words}

    class Slower(GPT2LMHeadModel):
        def forward(self, *args: Any, **given: Any) -> Any:
            time.sleep(0.05)
            return super().forward(*args, **given)

    config = GPT2Config(vocab_size=96, n_positions=32, n_embd=32, n_layer=1, n_head=2)
    folder = tempfile.mkdtemp(prefix="trainer-", dir=".")
    arguments = TrainingArguments(
        *(folder,), use_cpu=True, num_train_epochs=500, per_device_train_batch_size=8,
        remove_unused_columns=False, report_to=[], disable_tqdm=True, **options,
    )  # fmt: skip
    Trainer(Slower(config), arguments, train_dataset=Words(), eval_dataset=Words()).train()


@kind(needs="transformers")
def trainer_evaluating() -> None:
    trainer(eval_strategy="steps", eval_steps=300, save_steps=300, save_total_limit=2)


def main() -> None:
    """Train the named kind."""
    torch.set_num_threads(1)
    random.seed(math.pi + RANK)
    KINDS[sys.argv[1]].train()


if __name__ == "__main__":
    main()
