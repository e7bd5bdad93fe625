"""The frozen machine, and the program in a terminal."""

from tests.support.frozen import (
    default_keys,
    eight_gpus,
    frozen,
    held_gpus,
    ill_gpus,
    make_app,
    quick_logs,
    terminal,
)
from tests.support.pictures import picture

__all__ = [
    "default_keys",
    "eight_gpus",
    "frozen",
    "held_gpus",
    "ill_gpus",
    "make_app",
    "picture",
    "quick_logs",
    "terminal",
]
