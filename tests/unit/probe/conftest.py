"""A socket to hear probes on, a way to run a script as a rank, and the patches of torch."""

from collections.abc import Iterator

import pytest
from tests.support.probe_ranks import module_rank, rank, stub_torch

from ddptop_runner.probe.hooks import Hooks
from ddptop_runner.probe.recorder import Recorder

__all__ = ["module_rank", "rank", "stub_torch"]


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    torch = pytest.importorskip("torch")
    hooks = Hooks(torch, Recorder())
    hooks.arm()
    yield hooks
    for owner, name, original, _ in reversed(hooks.patched):
        setattr(owner, name, original)
    for handle in hooks.step_handles:
        handle.remove()
