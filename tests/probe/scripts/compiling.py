"""Stands in the middle of a torch.compile until a line comes in."""

import sys

import torch


def backend(graph, inputs):
    sys.stdin.readline()
    return graph.forward


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
compiled = torch.compile(model, backend=backend)
for _ in range(3):
    optimizer.zero_grad()
    compiled(torch.randn(2, 4)).sum().backward()
    optimizer.step()
