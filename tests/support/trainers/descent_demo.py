"""The bundled training with `descent` instead of DDP and AdamW, which import torch's compiler."""

import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "ddptop" / "demo"))
import train  # type: ignore[import-not-found]
from descent import Descent  # type: ignore[import-not-found]


class Optimizer(Descent):
    """Replaces AdamW; has no state for a checkpoint to store."""

    def __init__(self, parameters: object, **_: object) -> None:
        torch.optim.Optimizer.__init__(self, list(parameters), {})

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad()

    def step(self) -> None:
        """A rank that loses its connection exits after the rank that died, however busy the machine
        is."""
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
    """Descent computes the mean of all ranks' gradients."""
    return model


train.DistributedDataParallel = not_wrapped
torch.optim.AdamW = Optimizer  # type: ignore[misc,assignment]
