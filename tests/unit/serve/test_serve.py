"""`ddptop serve`: who is let in, and the screens in a real browser."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from ddptop.commands import serve as command
from tests.support.builders import put_job

from ddptop_runner.base.errors import UsageError
from ddptop_runner.host import procs
from ddptop_runner.model.snapshot import RankSample

aiohttp = pytest.importorskip("aiohttp", reason="textual-serve is not installed")
pytest.importorskip("textual_serve", reason="textual-serve is not installed")

from ddptop.serve import server  # noqa: E402
from tests.support.browser import chromium, find_chromium  # noqa: E402 - needs aiohttp

WaitUntil = Callable[..., Any]


class Served:
    """`ddptop serve` on a port that was free."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ddptop", "serve", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.said = [self.process.stdout.readline() for _ in range(3)]
        self.address = self.said[0].strip()
        self.root, _, self.token = self.address.rstrip("/").rpartition("/")

    def viewers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def end(self) -> str:
        """As ctrl+c does; the rest of what it said."""
        self.process.send_signal(signal.SIGINT)
        rest, _ = self.process.communicate(timeout=120)
        return str(rest)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=120)


@pytest.fixture
def served(ddptop_home: Path) -> Iterator[Callable[..., Served]]:
    rank = RankSample(rank=0, local_rank=0, host=procs.host_name(), pid=1, step=3, state="running")
    put_job("train", {"guardian": procs.identify(os.getpid()), "ranks": [rank], "world_size": 1})
    opened: list[Served] = []

    def open_one(*arguments: str) -> Served:
        opened.append(Served(*arguments))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


async def drawn(tab: Any) -> None:
    """Until the job is seen in a tab."""
    seen = b""
    while b"train" not in seen:
        message = await tab.receive(timeout=60)
        assert not tab.closed, f"the tab was closed: {seen[-300:]!r}"
        seen += message.data if message.type == aiohttp.WSMsgType.BINARY else b""


@pytest.mark.skipif(find_chromium() is None, reason="chromium is not installed")
async def test_a_browser_shows_the_screens_and_cannot_stop_a_job(
    served: Callable[..., Served], wait_until: WaitUntil, tmp_path: Path
) -> None:
    one = served()
    async with chromium(tmp_path / "profile") as browser:
        async with browser.tab(one.address) as tab:
            await tab.until(lambda: b"train" in tab.received, "the job")
            assert await tab.evaluate("document.querySelectorAll('.xterm-screen canvas').length")
            assert await tab.evaluate("document.body.className.includes('-first-byte')")
            (viewer,) = one.viewers()
            assert one.token not in " ".join(viewer.cmdline()), "ps would show the token"
            seen = len(tab.received)
            await tab.type("?")
            heads = (b"under the cursor", b"keys on this screen")
            await tab.until(lambda: any(head in tab.received[seen:] for head in heads), "the help")
            seen = len(tab.received)
            await tab.type("Escape")
            await tab.until(lambda: b"all jobs" in tab.received[seen:], "the screen below")
            seen = len(tab.received)
            await tab.type("s")  # straight behind the escape it would be alt+s
            await tab.until(lambda: b"read-only" in tab.received[seen:], "the refusal to stop")
            assert tab.complaints == []
        wait_until(lambda: not viewer.is_running(), what="the viewer's end")
        async with browser.tab(one.address) as tab:
            await tab.until(lambda: b"train" in tab.received, "the job, in another tab")
            (viewer,) = one.viewers()
            assert one.end() == "", "it said more than its address"
            assert one.process.returncode == 0
            assert not viewer.is_running(), "a viewer outlived the server"
            style = "getComputedStyle(document.querySelector('.closed')).display"
            await tab.until_true(f"{style} == 'block'", "the page's word of its viewer's end")


async def test_no_access_without_the_token(served: Callable[..., Served]) -> None:
    one = served()
    wrong = one.root + "/" + "x" * len(one.token)
    async with aiohttp.ClientSession() as session:

        async def status(address: str, **headers: str) -> int:
            async with session.get(address, headers=headers, allow_redirects=False) as answer:
                assert one.token not in await answer.text() or answer.status == 200
                assert answer.headers["Referrer-Policy"] == "no-referrer"
                return int(answer.status)

        async def tab(address: str, **headers: str) -> int:
            try:
                async with session.ws_connect(address, headers=headers):
                    return 101
            except aiohttp.WSServerHandshakeError as refused:
                return int(refused.status)

        ours = {"Origin": one.root}
        assert await status(one.address) == 200
        assert await status(f"{one.address}static/js/textual.js") == 200
        for path in ("", "/", "/ws", "/static/js/textual.js", "/page.css", "/favicon.ico"):
            assert await status(f"{one.root}{path}") == 403, path
            assert await status(f"{wrong}{path}") == 403, path
        assert await status(f"{one.root}/?token={one.token}") == 403
        assert await status(one.address, Host="evil.example") == 403
        assert await status(one.address, Origin="http://evil.example") == 403
        assert await tab(f"{one.root}/ws", **ours) == 403
        assert await tab(f"{wrong}/ws", **ours) == 403
        assert await tab(f"{one.address}ws") == 403, "a browser always tells the origin"
        assert await tab(f"{one.address}ws", Origin="http://evil.example") == 403
        rebound = {"Host": "evil.example", "Origin": "http://evil.example"}
        assert await tab(f"{one.address}ws", **rebound) == 403
        assert one.viewers() == [], "a viewer was started for somebody who was refused"
        assert await tab(f"{one.address}ws", **ours) == 101
    assert one.said[0].count(one.token) == 1 and one.token not in "".join(one.said[1:])
    assert "ssh -L" in one.said[1] and one.token not in one.end()


async def test_with_actions_a_tab_may_act_and_nonsense_ends_it(
    served: Callable[..., Served], wait_until: WaitUntil
) -> None:
    one = served("--actions")
    assert "actions are enabled" in one.said[2]
    async with aiohttp.ClientSession() as session:
        address = f"{one.address}ws?width=x&height=99999999999"
        async with session.ws_connect(address, origin=one.root) as tab:
            await drawn(tab)
            (viewer,) = one.viewers()
            assert "--actions" in viewer.cmdline()
            await tab.send_json(["resize", {"width": -5, "height": True}])
            await tab.send_json({"what": "ever"})
            await tab.send_str("no json")
            wait_until(lambda: not viewer.is_running(), what="the viewer's end")


async def test_a_viewer_that_was_killed_closes_its_tab_and_one_that_hangs_ends_with_the_server(
    served: Callable[..., Served], wait_until: WaitUntil
) -> None:
    one = served()
    async with aiohttp.ClientSession() as session:

        async def closed(tab: Any) -> None:
            async for _ in tab:
                pass

        async with session.ws_connect(f"{one.address}ws", origin=one.root) as tab:
            await drawn(tab)
            (viewer,) = one.viewers()
            viewer.kill()
            with contextlib.suppress(ConnectionError):  # its tab may be closed by now
                for _ in range(8):  # a person types on
                    await tab.send_json(["stdin", "j"])
            await asyncio.wait_for(closed(tab), 60)  # pings renew the limit of `receive`
        async with session.ws_connect(f"{one.address}ws", origin=one.root) as tab:
            await drawn(tab)
            (viewer,) = one.viewers()
            viewer.suspend()
            try:
                assert one.end() == "", "it said more than its address"
                assert not viewer.is_running(), "a viewer outlived the server"
            finally:
                with contextlib.suppress(psutil.NoSuchProcess):
                    viewer.kill()


def test_a_viewer_ends_when_its_server_is_killed(
    served: Callable[..., Served], wait_until: WaitUntil
) -> None:
    viewer = subprocess.Popen(
        [sys.executable, "-m", "ddptop.serve.viewer", "--columns", "80", "--rows", "24"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert viewer.stdout is not None and viewer.stdin is not None
    try:
        assert viewer.stdout.readline() == b"__GANGLION__\n"
        viewer.stdin.close()
        wait_until(lambda: viewer.poll() is not None, what="its end")
    finally:
        viewer.kill()
        viewer.wait()
        viewer.stdout.close()
        with contextlib.suppress(AttributeError):
            viewer.stderr.close()  # type: ignore[union-attr]


def test_what_the_tab_says_after_the_end_is_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    from ddptop.tui.textual_gaps import TabDriver
    from textual.app import App
    from textual.events import AppBlur

    async def make() -> TabDriver:
        return TabDriver(App())

    read_end, write_end = os.pipe()
    os.close(write_end)
    with os.fdopen(read_end) as stdin:
        monkeypatch.setattr(sys, "__stdin__", stdin)
        driver = asyncio.run(make())  # its loop has ended, and is closed
        driver.send_message(AppBlur())  # an error, or a coroutine that nobody awaits, is red here
        driver.run_input_thread()  # the end of what it reads
    gc.collect()


def test_port_in_use_is_reported(
    ddptop_cli: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        answer = ddptop_cli("serve", "--port", str(port))
    assert answer.returncode == 2 and answer.stdout == ""
    (line,) = answer.stderr.splitlines()
    assert line == f"ddptop: port {port} is in use; use --port N, or --port 0 for any free port"


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org"])
def test_other_hosts_are_refused(host: str) -> None:
    with pytest.raises(UsageError, match="ssh -L"):
        command.run(host, 0, actions=False)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "NEEDED", ("no_such_module",))
    with pytest.raises(UsageError, match="pip install 'ddptop\\[serve\\]'"):
        command.run("127.0.0.1", 0, actions=False)


@pytest.mark.parametrize(
    ("header", "local"),
    [
        ("localhost:8425", True),
        ("LOCALHOST:9000", True),
        ("127.0.0.1", True),
        ("[::1]:8425", True),
        ("[::1]", True),
        ("localhost.evil.example:8425", False),
        ("evil.example", False),
        ("127.0.0.1.nip.io:8425", False),
        ("127.0.0.1:x", False),
        ("", False),
        (None, False),
    ],
)
def test_only_names_of_this_machine_are_answered(header: str | None, local: bool) -> None:
    assert server.is_local_host(header) is local


def test_tokens_differ_and_are_long() -> None:
    tokens = {server.new_token() for _ in range(50)}
    assert len(tokens) == 50 and min(map(len, tokens)) >= 32
    assert server.knows_token("/abc/ws", "abc") and server.knows_token("/abc", "abc")
    for path in ("/abcd/ws", "/ab/ws", "//abc", "/", "", "/ä/ws"):
        assert not server.knows_token(path, "abc"), path
