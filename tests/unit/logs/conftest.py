"""The frozen machine."""

from tests.support.frozen import default_keys, eight_gpus, frozen, held_gpus, ill_gpus, quick_logs

__all__ = ["default_keys", "eight_gpus", "frozen", "held_gpus", "ill_gpus", "quick_logs"]
