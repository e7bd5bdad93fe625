"""Fixtures for tests of foreign jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ddptop_runner.foreign.watch import ForeignBook


@pytest.fixture
def book() -> Iterator[ForeignBook]:
    one = ForeignBook()
    yield one
    one.close()
