"""The web server: one page, its static files, and one viewer process per websocket.

The token in the path keeps out other users of this machine. Pages of other origins and names that
an attacker points at this machine (DNS rebinding) do not have it either; `Host` and `Origin` are
checked as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import secrets
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import textual_serve
from aiohttp import WSMsgType, web
from aiohttp.http_exceptions import HttpProcessingError
from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager

from ddptop.output import info
from ddptop_runner.base.start import own_command

if TYPE_CHECKING:
    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


HERE = Path(__file__).parent
STATIC = Path(textual_serve.__file__).parent / "static"
MOST_TABS = 16
"""Maximum number of viewers at a time; each is a process of 50 MB."""
END_S = 3.0
"""How long a viewer may take to exit by itself."""
LEAST_CELLS, MOST_CELLS = 10, 1000

HEADERS = {
    # the page cannot be framed, loads nothing from elsewhere, and sends no Referer
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self' ws:; "
    "style-src 'self' 'unsafe-inline'; font-src 'self' data:; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


class Viewer(AppService):
    """The process behind a tab."""

    def __init__(self, websocket: web.WebSocketResponse, *, actions: bool) -> None:
        super().__init__(
            "",
            write_bytes=websocket.send_bytes,
            write_str=websocket.send_str,
            close=self._close_tab,
            download_manager=DownloadManager(),
        )
        self._websocket = websocket
        self._actions = actions

    async def _close_tab(self) -> None:
        await self._websocket.close()

    async def _open_app_process(self, width: int = 80, height: int = 24) -> Process:
        """Start the viewer without a shell, in its own session: ctrl+c is for the server only."""
        self._process = await asyncio.create_subprocess_exec(
            *own_command("ddptop.serve.viewer"),
            *["--columns", str(width), "--rows", str(height)],
            *(["--actions"] if self._actions else []),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
        )
        self._stdin = self._process.stdin
        return self._process

    async def run(self) -> None:
        """Forward its output until it exits, then close its tab."""
        try:
            await super().run()
        finally:
            await self._close_tab()

    async def kill(self) -> None:
        """Kill the viewer if it is still running."""
        process = self._process
        if process is not None and process.returncode is None:
            process.kill()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), END_S)

    async def end(self) -> None:
        """Ask the viewer to exit, and kill it if it does not."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(asyncio.TimeoutError, ConnectionError):
            await asyncio.wait_for(self.stop(), END_S)
        if process.returncode is None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), END_S)
        await self.kill()


class Server:
    """Answers requests that have the token."""

    def __init__(self, token: str, *, actions: bool) -> None:
        self._token = token
        self._actions = actions
        self._tabs: set[web.WebSocketResponse] = set()
        self._viewers: set[Viewer] = set()

    def make_app(self) -> web.Application:
        """The routes, all of which require the token."""
        app = web.Application(middlewares=[self._door], client_max_size=1 << 16)
        prefix = f"/{self._token}"
        app.add_routes(
            [
                web.get(f"{prefix}/", self._page),
                web.get(f"{prefix}/page.css", self._style),
                web.get(f"{prefix}/ws", self._tab),
                web.static(f"{prefix}/static", STATIC),
            ]
        )
        app.on_shutdown.append(self._close_tabs)
        app.on_cleanup.append(self._kill_viewers)
        return app

    @web.middleware
    async def _door(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        entered = may_enter(
            request.path,
            self._token,
            request.headers.get("Host"),
            request.headers.get("Origin"),
            socket="Upgrade" in request.headers or request.path.endswith("/ws"),
        )
        if not entered:
            return web.Response(status=403, text=REFUSED, headers=HEADERS)
        try:
            response = await handler(request)
        except web.HTTPException as error:
            error.headers.update(HEADERS)
            raise
        except (OSError, ValueError):  # not a valid file name
            return web.Response(status=404, headers=HEADERS)
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    async def _page(self, request: web.Request) -> web.Response:
        page = (HERE / "page.html").read_text(encoding="utf-8")
        page = page.replace("@SOCKET@", f"ws://{request.host}/{self._token}/ws")
        return web.Response(text=page, content_type="text/html")

    async def _style(self, _: web.Request) -> web.Response:
        return web.Response(
            text=(HERE / "page.css").read_text(encoding="utf-8"), content_type="text/css"
        )

    async def _tab(self, request: web.Request) -> web.StreamResponse:
        if len(self._tabs) >= MOST_TABS:
            raise web.HTTPServiceUnavailable(text=f"{MOST_TABS} tabs are already open; close one\n")
        websocket = web.WebSocketResponse(heartbeat=15, max_msg_size=1 << 20)
        await websocket.prepare(request)
        viewer = Viewer(websocket, actions=self._actions)
        self._tabs.add(websocket)
        self._viewers.add(viewer)
        try:
            await viewer.start(_cells(request, "width", 80), _cells(request, "height", 24))
            await _pass_on(websocket, viewer)
        finally:
            self._tabs.discard(websocket)
            await asyncio.shield(viewer.end())
            self._viewers.discard(viewer)
            await websocket.close()
        return websocket

    async def _close_tabs(self, _: web.Application) -> None:
        await asyncio.gather(*(tab.close() for tab in list(self._tabs)))

    async def _kill_viewers(self, _: web.Application) -> None:
        """Kill viewers that did not exit when their tabs were closed."""
        await asyncio.gather(*(viewer.kill() for viewer in list(self._viewers)))


def _cells(request: web.Request, name: str, otherwise: int) -> int:
    asked = request.query.get(name, "")
    return _within(int(asked)) if asked.isdecimal() and len(asked) < 8 else otherwise


def _within(cells: int) -> int:
    return min(MOST_CELLS, max(LEAST_CELLS, cells))


async def _pass_on(websocket: web.WebSocketResponse, viewer: Viewer) -> None:
    """Forward input from the tab until it is closed or sends something invalid."""
    async for message in websocket:
        if message.type != WSMsgType.TEXT:
            continue
        try:
            match json.loads(message.data):
                case ["stdin", str(text)]:
                    await viewer.send_bytes(text.encode("utf-8", "replace"))
                case ["resize", {"width": int(width), "height": int(height)}]:
                    await viewer.set_terminal_size(_within(width), _within(height))
                case ["ping", str(stamp)]:
                    await websocket.send_json(["pong", stamp])
                case ["blur"]:
                    await viewer.blur()
                case ["focus"]:
                    await viewer.focus()
        except (ValueError, RecursionError):
            return


class _OneLine(logging.Handler):
    """Prints errors of the server in one line each; ignores those caused by clients."""

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, (HttpProcessingError, web.RequestPayloadError)):
            what = "" if error is None else f" ({type(error).__name__}: {error})"
            info(f"ddptop: {record.getMessage()}{what}")


async def serve(
    host: str, port: int, token: str, *, actions: bool, ready: Callable[[int], None]
) -> None:
    """Serve until cancelled.

    Args:
        host: a loopback address.
        port: the port; 0 picks a free one.
        token: the first part of every path.
        actions: whether viewers may change jobs.
        ready: called with the port once the server is listening.

    Raises:
        OSError: the port is not available.
    """
    logger = logging.getLogger(f"{__name__}.requests")
    logger.propagate = False
    logger.handlers = [_OneLine()]
    runner = web.AppRunner(
        Server(token, actions=actions).make_app(), access_log=None, logger=logger
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, shutdown_timeout=END_S)
        await site.start()
        ready(runner.addresses[0][1])
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
TOKEN_BYTES = 24

REFUSED = "403: missing token; use the full URL that `ddptop serve` printed\n"


def new_token() -> str:
    """A random token that is safe in a URL."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def knows_token(path: str, token: str) -> bool:
    """Whether the path's first part is the token; compared in constant time."""
    first = path.removeprefix("/").partition("/")[0]
    return hmac.compare_digest(first.encode("utf-8", "replace"), token.encode())


def is_local_host(header: str | None) -> bool:
    """Whether a `Host` header names this machine; the port may differ, as with ssh -L."""
    if not header:
        return False
    name, colon, port = header.rpartition(":")
    if not colon or port.endswith("]"):
        name, port = header, "0"
    return name.lower() in LOCAL_NAMES and port.isdigit()


def is_own_origin(origin: str | None, host: str | None) -> bool:
    """Whether the page that requests a websocket came from here; browsers always send `Origin`."""
    return bool(origin) and bool(host) and origin == f"http://{host}"


def may_enter(path: str, token: str, host: str | None, origin: str | None, *, socket: bool) -> bool:
    """Whether to answer a request."""
    if not (knows_token(path, token) and is_local_host(host)):
        return False
    return is_own_origin(origin, host) if socket or origin else True
