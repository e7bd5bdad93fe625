"""Gradients from the C++ engine: loss and step are only printed."""

import sys
import time

import torch
import without_compiler  # noqa: F401

model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = int(sys.argv[1])
for step in range(1, steps + 1):
    loss = (model(torch.randn(8, 16)) - 1).square().mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
    print(f"step {step}/{steps} loss {5 - step / 4096}")
    time.sleep(0.05)
