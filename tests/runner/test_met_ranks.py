"""Ranks of a command that end, and what is kept of that moment."""

from __future__ import annotations

import asyncio

import pytest
from tests.runner.resuming import begin, run

pytestmark = pytest.mark.usefixtures("ddptop_home")


def test_evidence_of_one_failure_is_kept_once_and_waited_for_by_all(monkeypatch):
    kept: list[str] = []

    async def scenario() -> None:
        group, _ = begin()
        written = asyncio.Event()

        async def keep(reason: str) -> str:
            await written.wait()
            kept.append(reason)
            return reason

        monkeypatch.setattr(group, "_keep_evidence", keep)
        asked = [asyncio.create_task(group._keep_evidence_of_failure()) for _ in range(2)]
        done, _ = await asyncio.wait(asked, timeout=0.05)
        assert not done  # the launcher's end waits for what its rank's end has begun
        written.set()
        await asyncio.gather(*asked)

    run(scenario)
    assert kept == ["failure"]
