"""The smallest model, its optimizer, and a loss of its own for each call."""

import torch
import without_compiler  # noqa: F401
from torch import nn


class Plain(torch.optim.Optimizer):
    """An optimizer that does not import torch's compiler, as torch's own do."""

    def __init__(self, model):
        super().__init__(list(model.parameters()), {})

    def add_param_group(self, group):
        self.param_groups.append(group)

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            parameter -= 0.01 * parameter.grad
            parameter.grad = None


def setup():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def loss_of(model):
    return model(torch.randn(8, 4)).pow(2).mean()
