"""Prints what a probe could disturb while training, and ends with a status."""

import hashlib
import json
import random
import sys
import threading

import torch
import without_compiler  # noqa: F401

random.seed(1)
torch.manual_seed(1)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(16, 4))
print(threading.active_count())
for epoch in range(2):
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, num_workers=epoch)
    for (batch,) in loader:
        loss = model(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(json.dumps({"loss": loss.item()}))
print("random", random.random(), torch.rand(2).tolist())
print(hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest())
if "numpy" in sys.modules:
    print(sys.modules["numpy"].random.rand() is not None)
print(sorted(vars(optimizer)), sorted(loss.__dict__), torch.autograd.backward.__qualname__)
sys.stderr.write("to stderr\n")
sys.exit(7)
