"""Does one thing after another, and each until a line comes in."""

import signal
import sys

import torch
from torch import nn


class Data(torch.utils.data.Dataset):
    def __init__(self, count, waits=False):
        self.count, self.waits = count, waits

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.waits:
            sys.stdin.readline()
        return torch.randn(4)


class Slow:
    def __reduce__(self):
        sys.stdin.readline()
        return (int, ())


def load(count, waits=False):
    return torch.utils.data.DataLoader(Data(count, waits), batch_size=1)


def step(batch):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()


def prepare():
    sys.stdin.readline()


def evaluate():
    for _ in load(2):
        pass
    sys.stdin.readline()


def loop():
    with torch.no_grad():
        for _ in load(1):
            sys.stdin.readline()
    for batch in load(1, waits=True):
        step(batch)


prepare()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in load(4):
    step(batch)
sys.stdin.readline()
evaluate()
step(torch.randn(4))
loop()
torch.save({"model": model.state_dict(), "slow": Slow()}, "a.pt")
signal.signal(signal.SIGUSR2, lambda *_: None)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
step(torch.randn(4))
sys.stdin.readline()


def backend(graph, inputs):
    sys.stdin.readline()
    return graph.forward


model = torch.compile(model, backend=backend)
for _ in range(3):
    step(torch.randn(4))
