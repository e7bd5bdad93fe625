"""A compiled model, and an optimizer that calls its closure several times a step."""

import torch
from notes import Notes

model = torch.compile(torch.nn.Linear(16, 1), backend="aot_eager")
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
notes = Notes("lbfgs")
while True:
    data, target, seen = torch.randn(32, 16), torch.randn(32, 1), []

    def closure(data=data, target=target, seen=seen):
        optimizer.zero_grad()
        loss = (model(data) - target).square().mean()
        loss.backward()
        seen.append(loss.item())
        return loss

    optimizer.step(closure)
    notes.stepped(seen[0], closures=len(seen))
