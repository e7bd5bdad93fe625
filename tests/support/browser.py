"""A headless Chromium, driven through its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
START_S, ANSWER_S = 60.0, 30.0


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Tab:
    """One page: what it received over its websocket, and what it complained about."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.received = b""
        """What the page's websocket brought: what the terminal draws."""
        self.complaints: list[str] = []
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            told = message.json()
            if (answer := self._answers.pop(told.get("id", 0), None)) is not None:
                answer.set_result(told)
            self._take(told.get("method", ""), told.get("params", {}))

    def _take(self, method: str, told: dict[str, Any]) -> None:
        if method == "Network.webSocketFrameReceived":
            frame = told["response"]
            if frame["opcode"] == 2:
                self.received += base64.b64decode(frame["payloadData"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        told = await asyncio.wait_for(answer, ANSWER_S)
        assert "error" not in told, told
        return dict(told["result"])

    async def open(self, address: str) -> None:
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=address)

    async def evaluate(self, script: str) -> Any:
        told = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        return told["result"].get("value")

    async def type(self, key: str) -> None:
        """Press a key, as a person does whose cursor is in the terminal."""
        await self.evaluate("document.querySelector('.xterm-helper-textarea').focus()")
        code = {"Escape": 27, "?": 191}.get(key, ord(key[0].upper()))
        named = {"key": key, "windowsVirtualKeyCode": code}
        await self.call("Input.dispatchKeyEvent", type="rawKeyDown", **named)
        if len(key) == 1:
            await self.call("Input.dispatchKeyEvent", type="char", text=key, **named)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    async def until(self, condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not condition():
            assert asyncio.get_running_loop().time() < deadline, (
                f"not within {timeout_s:g} s: {what}; {self.complaints}; {self.received[-500:]!r}"
            )
            await asyncio.sleep(0.05)

    async def until_true(self, script: str, what: str, timeout_s: float = 60.0) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not await self.evaluate(script):
            assert asyncio.get_running_loop().time() < deadline, (
                f"not within {timeout_s:g} s: {what}"
            )
            await asyncio.sleep(0.05)


class Browser:
    """Chromium with its own profile."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session, self._address = session, f"http://127.0.0.1:{port}"

    @contextlib.asynccontextmanager
    async def tab(self, address: str) -> AsyncIterator[Tab]:
        """A page of its own, which is closed afterwards."""
        async with self._session.put(f"{self._address}/json/new?about:blank") as made:
            told = await made.json()
        async with self._session.ws_connect(told["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            tab = Tab(socket)
            await tab.open(address)
            yield tab
        async with self._session.get(f"{self._address}/json/close/{told['id']}"):
            pass


@contextlib.asynccontextmanager
async def chromium(folder: Path) -> AsyncIterator[Browser]:
    """Start it, and end it with all it started."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("DDPTOP_")}
    process = subprocess.Popen(
        [
            *[find_chromium() or "chromium", "--headless=new", "--no-sandbox", "--disable-gpu"],
            *["--no-first-run", "--disable-dev-shm-usage", "--disable-background-networking"],
            *["--remote-debugging-port=0", f"--user-data-dir={folder}", "--window-size=1200,800"],
            "about:blank",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=env,
        start_new_session=True,
    )
    try:
        told = folder / "DevToolsActivePort"
        deadline = asyncio.get_running_loop().time() + START_S
        while not told.exists() or "\n" not in told.read_text():
            assert process.poll() is None, "chromium ended"
            assert asyncio.get_running_loop().time() < deadline, "chromium did not start"
            await asyncio.sleep(0.05)
        async with aiohttp.ClientSession() as session:
            yield Browser(session, int(told.read_text().split()[0]))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
