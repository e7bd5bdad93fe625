"""Two alternating optimizers: a critic with two losses per step, and a generator with one."""

import torch
import without_compiler  # noqa: F401
from notes import Notes

critic, maker = torch.nn.Linear(8, 1), torch.nn.Linear(4, 8)
critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
maker_optimizer = torch.optim.Adam(maker.parameters(), lr=0.01)
notes = Notes("gan")
while True:
    real = (critic(torch.randn(8, 8)) - torch.randn(8, 1)).square().mean()
    real.backward()
    fake = (critic(maker(torch.randn(8, 4)).detach()) + 3).square().mean()
    fake.backward()
    critic_optimizer.step()
    critic_optimizer.zero_grad()
    loss = 1000 * (critic(maker(torch.randn(8, 4))) - 1).square().mean()
    loss.backward()
    maker_optimizer.step()
    maker_optimizer.zero_grad()
    critic_optimizer.zero_grad()
    notes.stepped((real.item() + fake.item()) / 2, maker=loss.item())
