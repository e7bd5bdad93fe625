"""Takes three steps, prints the last loss and then waits for a line."""

import torch
import without_compiler  # noqa: F401

torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
print(loss.item(), flush=True)
input()
