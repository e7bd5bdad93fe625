"""Trains by each named recipe; prints every loss to the last bit and a digest of the weights."""

import hashlib
import os
import random
import sys
import tempfile

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    """Each item depends on its index and on what the worker draws."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        drawn = torch.rand(7), torch.from_numpy(numpy.random.rand(8)).float()
        return torch.cat([torch.tensor([float(index), random.random()]), *drawn])[:16]


def train(model, *, batches=None, loss_of=None):
    """Print the loss of each step."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for batch in batches if batches is not None else [torch.randn(8, 16) for _ in range(6)]:
        optimizer.zero_grad()
        loss = loss_of(batch) if loss_of else model(batch).square().mean()
        loss.backward()
        optimizer.step()
        print(loss.item().hex())
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
    print(digest.hexdigest())


def mlp(hidden=64):
    return nn.Sequential(nn.Linear(16, hidden), nn.Tanh(), nn.Linear(hidden, 4))


def threads():
    """What a library with threads of its own computes, with as many threads as usual."""
    array = numpy.random.default_rng(0).standard_normal((400, 400))
    print(hashlib.sha256(numpy.linalg.svd(array @ array)[1].tobytes()).hexdigest())
    tensor = torch.from_numpy(array)
    print(hashlib.sha256(torch.linalg.inv(tensor @ tensor).numpy().tobytes()).hexdigest())
    print(torch.get_num_threads(), len(os.listdir("/proc/self/task")))


def momentum():
    train(mlp())


def numpy_random():
    numpy.random.seed(3)
    own = numpy.random.default_rng(5)
    arrays = [numpy.random.randn(8, 16) @ own.standard_normal((16, 16)) for _ in range(6)]
    train(
        mlp(),
        batches=[
            torch.from_numpy(numpy.linalg.svd(array, full_matrices=False)[2]).float()
            for array in arrays
        ],
    )


def python_random():
    random.seed(7)
    order = sorted({f"sample-{number}" for number in range(48)})  # a set's order is the hash seed's
    random.shuffle(order)
    rows = [[random.gauss(len(name), 1.0) for _ in range(16)] for name in order]
    train(mlp(), batches=torch.tensor(rows).split(8))


def loader(how):
    options = {"num_workers": 2, "multiprocessing_context": how, "shuffle": True, "batch_size": 6}
    train(mlp(), batches=DataLoader(Noise(), **options))


def loader_workers_forked():
    loader("fork")


def loader_workers_spawned():
    loader("spawn")


def distributed():
    with tempfile.TemporaryDirectory() as folder:
        store = torch.distributed.FileStore(folder + "/store", 1)
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        train(nn.parallel.DistributedDataParallel(mlp()))
        torch.distributed.destroy_process_group()


def compiled():
    """Through torch's compiler, except for the generated C++, which takes a minute to build."""
    model = mlp()
    train(model, loss_of=torch.compile(lambda x: model(x).square().mean(), backend="aot_eager"))


RECIPES = (
    *(threads, momentum, numpy_random, python_random, loader_workers_forked),
    *(loader_workers_spawned, distributed, compiled),
)

if __name__ == "__main__":
    by_name = {recipe.__name__: recipe for recipe in RECIPES}
    for name in sys.argv[1:]:
        print(name)
        torch.manual_seed(0)
        random.seed(0)
        numpy.random.seed(0)
        by_name[name]()
