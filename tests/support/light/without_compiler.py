"""Imported first, it spares a script the import of torch's compiler: half of the CPU of its start.

DDP and torch's own optimizers import `torch._dynamo` only to leave their methods out of what is
compiled. For scripts that compile nothing.
"""

import sys
import types
from collections.abc import Callable
from typing import Any

import torch


def disable(function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Any:
    return (lambda one: one) if function is None else function


def nothing(*_: Any, **__: Any) -> None:
    """Nothing is compiled."""


nothing.cache_clear = nothing  # type: ignore[attr-defined]
compiler: Any = types.ModuleType("torch._dynamo")
compiler.disable = disable
compiler.graph_break = nothing
compiler.utils = types.SimpleNamespace(get_optimize_ddp_mode=nothing)
compiler.config = types.SimpleNamespace(_get_optimize_ddp_mode=nothing)  # of torch 2.6
compiler.trace_rules = types.SimpleNamespace(
    LEGACY_MOD_INLINELIST=set(),
    get_legacy_mod_inlinelist=nothing,
    clear_lru_cache=nothing,
)
sys.modules["torch._dynamo"] = torch._dynamo = compiler
