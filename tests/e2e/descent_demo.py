"""The bundled training with `descent` for DDP and AdamW, which would import torch's compiler."""

import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "ddptop" / "demo"))
import train  # type: ignore[import-not-found]
from descent import Descent  # type: ignore[import-not-found]


class Optimizer(Descent):
    """Takes AdamW's place; it keeps nothing that a checkpoint could hold."""

    def __init__(self, parameters: object, **_: object) -> None:
        torch.optim.Optimizer.__init__(self, list(parameters), {})

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad()

    def step(self) -> None:
        """What a lost connection ends ends after who was lost, however busy the machine is."""
        try:
            super().step()
        except RuntimeError:
            time.sleep(1.0)
            raise

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state: dict) -> None:
        pass


def not_wrapped(model: torch.nn.Module, **_: object) -> torch.nn.Module:
    """The mean of all ranks' gradients is Descent's affair."""
    return model


train.DistributedDataParallel = not_wrapped
torch.optim.AdamW = Optimizer  # type: ignore[misc,assignment]
