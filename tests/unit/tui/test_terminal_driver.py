"""A stop by a signal waits for the step during which it arrived."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
from ddptop.tui.textual_gaps import TerminalDriver
from textual.app import App

HANDLED = (signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)


class Writer:
    """Part of a terminal, as used by Textual's thread."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.stopped = False

    def write(self, text: str) -> None:
        self.written.append(text)

    def is_alive(self) -> bool:
        return not self.stopped

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in HANDLED}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


async def test_nothing_is_written_inside_of_the_handler(
    handlers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    driver = TerminalDriver(App())
    writer = Writer()
    monkeypatch.setattr(driver, "_writer_thread", writer)
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number))
    driver._sigtstp_application()
    assert writer.written == [], "its caller may hold the queue's lock, and be waited for"
    assert sent == []
    await asyncio.sleep(0)
    assert "\x1b[?1049l" in writer.written and writer.stopped
    assert sent == [signal.SIGSTOP]


async def test_an_interface_that_has_ended_is_not_begun_again(
    handlers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = TerminalDriver(App())
    writer = Writer()
    writer.stop()
    monkeypatch.setattr(driver, "_writer_thread", writer)
    monkeypatch.setattr(driver, "resume_application_mode", lambda: pytest.fail("it is over"))
    driver._sigcont_application()
    await asyncio.sleep(0)
    assert writer.written == []


def test_signal_after_the_loop_is_ignored(handlers: None) -> None:
    async def make() -> TerminalDriver:
        return TerminalDriver(App())

    driver = asyncio.run(make())
    driver._sigtstp_application()
    driver._sigcont_application()
