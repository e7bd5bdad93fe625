"""What losses were divided by before their backward pass: the last operation of a real graph."""

from __future__ import annotations

from typing import Any

import pytest

from ddptop_runner.probe.losses import BY_FRAMEWORK, divisor_of

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", autouse=True)
def _torch() -> None:
    """Only the worker that runs these tests imports torch, not each that collects them."""
    global torch
    torch = pytest.importorskip("torch")


def loss() -> Any:
    return torch.ones(3, requires_grad=True).sum()


@pytest.mark.parametrize(
    ("make", "divisor"),
    [
        (lambda: loss() / 4, 4),
        (lambda: loss() * 0.25, 4),
        (lambda: 0.25 * loss(), 4),
        (lambda: loss().div(torch.tensor(8.0)), 8),
        (lambda: loss() * (1 / 3), 3),
        (lambda: loss() / 2.5, None),
        (lambda: loss() * 4, None),
        (lambda: loss() * 0.0, None),
        (lambda: loss() / 1, None),
        (lambda: loss() / 4 + 1, None),
        (lambda: loss() / loss(), None),
        (lambda: loss() / torch.tensor([2.0]), None),
        (lambda: 4 / loss(), None),
        (loss, None),
        (lambda: torch.ones((), requires_grad=True), None),
    ],
)
def test_a_division_is_the_last_operation_of_a_graph(make: Any, divisor: int | None) -> None:
    assert divisor_of(make(), False) == divisor


def test_a_scalers_own_multiplication_is_passed_over() -> None:
    assert divisor_of(loss() / 4 * 65536.0, True) == 4
    assert divisor_of(torch.ones((), requires_grad=True), True) is None
    assert divisor_of(loss().detach().requires_grad_() * 2.0, True) is None


def test_a_framework_above_divides() -> None:
    source = "def backward(of, loss): return of(loss, False)"
    framework: dict[str, Any] = {"__name__": "accelerate.accelerator"}
    exec(source, framework)
    assert divisor_of(loss(), False) is None
    assert framework["backward"](divisor_of, loss()) == BY_FRAMEWORK
