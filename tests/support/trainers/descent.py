"""Data-parallel training without torch's compiler.

DDP and torch's own optimizers import it, which costs 1.5 s of CPU in every rank. Scripts of tests
that are not about them import this file, which is copied to their folder.
"""

import torch
import torch.distributed as dist


class Descent(torch.optim.Optimizer):
    """Gradient descent on the mean of all ranks' gradients; an optimizer to anything that hooks
    steps."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(list(model.parameters()), {})

    def add_param_group(self, group: dict) -> None:
        self.param_groups.append(group)

    def zero_grad(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            gradient = parameter.grad / dist.get_world_size()
            dist.all_reduce(gradient)
            parameter -= 0.01 * gradient
