"""One process that uses every available device through DataParallel."""

import torch
import without_compiler  # noqa: F401
from notes import Notes

model = torch.nn.DataParallel(torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
notes = Notes("parallel")
while True:
    loss = (model(torch.randn(8, 16)) - torch.randn(8, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    notes.stepped(loss.item())
