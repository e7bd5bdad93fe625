"""The supervisor's control socket: users' commands and the agent's link, one JSON per line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec

from ddptop_runner.base import bounded
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.host.procs import user_name
from ddptop_runner.node.agent_link import AgentLink, Message

LINE_LIMIT_BYTES = 1024 * 1024
FOLLOWER_BYTES = 8 << 20
"""A follower this far behind is dropped; it reconnects and continues after its last event."""
FIRST_LINE_S = 10.0
"""Time for a client to send its request."""
LISTEN_BACKLOG = 100
Follow: TypeAlias = Callable[[int, Callable[[bytes], None]], Callable[[], None]]
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class AgentSide(Protocol):
    """Receives the agent's messages."""

    def agent_connected(self, hello: Message, send: Callable[[Message], None]) -> AgentLink | None:
        """Handle the agent's hello; returns None to ignore the agent."""

    def from_agent(self, link: AgentLink, message: Message) -> None:
        """Handle any later message."""

    def agent_disconnected(self, link: AgentLink) -> None:
        """Handle the end of the connection."""


class SocketFile:
    """The path of a Unix socket that this process bound.

    The path appears once the socket accepts connections or datagrams, replacing whatever an earlier
    supervisor left there, so that clients that find it are never refused.

    Args:
        endpoint: the unbound socket; a stream socket listens afterwards.
        path: the path to bind.

    Raises:
        OSError: it cannot be bound.
    """

    def __init__(self, endpoint: socket.socket, path: Path) -> None:
        self._path = path
        unfinished = path.with_suffix(
            ".new"
        )  # not longer than the path, since sun_path has 108 bytes
        unfinished.unlink(missing_ok=True)
        try:
            endpoint.bind(str(unfinished))
            unfinished.chmod(0o600)
            self._inode = unfinished.lstat().st_ino
            if endpoint.type == socket.SOCK_STREAM:
                endpoint.listen(LISTEN_BACKLOG)
            unfinished.replace(path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise

    @property
    def is_there(self) -> bool:
        """Whether the path still refers to the socket."""
        try:
            return self._path.lstat().st_ino == self._inode
        except OSError:
            return False


class ControlServer:
    """Listens on `control.sock`.

    Args:
        path: the socket's path; an earlier supervisor's socket there is replaced.
        command: carries out a user's command and returns the answer's fields.
        agent_side: receives the agent's messages; None without an agent.
        follow: sends a follower each event after that number and then new ones; returns a function
            that ends this.
    """

    def __init__(
        self,
        path: Path,
        command: Callable[[Message], Awaitable[Message]],
        agent_side: AgentSide | None = None,
        follow: Follow | None = None,
    ) -> None:
        self._path = path
        self._command = command
        self._agent_side = agent_side
        self._follow = follow
        self._server: asyncio.Server | None = None
        self._bound: SocketFile | None = None

    @property
    def is_bound(self) -> bool:
        """Whether the path refers to this server; a cleaner of old files may have deleted it."""
        return self._bound is not None and self._bound.is_there

    async def start(self) -> None:
        """Bind and listen, or rebind if the path was lost; existing connections stay.

        Raises:
            OSError: it cannot be bound.
        """
        if self._server is not None:
            self._server.close()
        endpoint = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._bound = SocketFile(endpoint, self._path)
        except OSError:
            endpoint.close()
            raise
        self._server = await asyncio.start_unix_server(
            self._serve, sock=endpoint, limit=LINE_LIMIT_BYTES, backlog=LISTEN_BACKLOG
        )

    def close(self) -> None:
        """Stop listening and remove the path."""
        if self._server is not None:
            self._server.close()
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not _is_same_user(writer):
                return
            message = _message(await asyncio.wait_for(reader.readline(), FIRST_LINE_S))
            if message.get("op") == "follow" and self._follow is not None:
                await self._serve_follower(self._follow, message, reader, writer)
            elif message.get("op") != "agent" or self._agent_side is None:
                await self._answer({**message, "by": user_name(_peer(writer)[1])}, writer)
            elif message.get("pid") == _peer(writer)[0]:
                await self._serve_agent(self._agent_side, message, reader, writer)
        except (OSError, ValueError, TypeError, asyncio.IncompleteReadError, asyncio.TimeoutError):
            return  # a client that disconnected or does not speak the protocol
        finally:
            writer.close()

    async def _answer(self, message: Message, writer: asyncio.StreamWriter) -> None:
        try:
            answer = {"ok": True, **await self._command(message)}
        except DdptopError as error:
            answer = {"ok": False, "error": error.message, "hint": error.hint}
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()

    async def _serve_follower(
        self,
        follow: Follow,
        message: Message,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Send events from now on, until the other end leaves or stops reading."""

        def send(line: bytes) -> None:
            if writer.transport.get_write_buffer_size() > FOLLOWER_BYTES:
                writer.transport.abort()
            else:
                writer.write(line + b"\n")

        stop = follow(int(message.get("after_seq", 0)), send)
        try:
            with contextlib.suppress(asyncio.CancelledError):  # the supervisor exits
                while await reader.read(LINE_LIMIT_BYTES):
                    pass
        finally:
            stop()

    async def _serve_agent(
        self,
        agent_side: AgentSide,
        hello: Message,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        def send(message: Message) -> None:
            writer.write(json.dumps(message).encode() + b"\n")

        link = agent_side.agent_connected(hello, send)
        try:
            while line := await reader.readline():
                if link is not None:
                    agent_side.from_agent(link, _message(line))
        finally:
            if link is not None:
                agent_side.agent_disconnected(link)


def _message(line: bytes) -> Message:
    """The message in one line.

    Raises:
        ValueError: it is not a JSON object.
    """
    message = bounded.decode_json(_decoder, line)
    if not isinstance(message, dict):
        raise ValueError("not a JSON object")
    return message


def _peer(writer: asyncio.StreamWriter) -> tuple[int, int]:
    """(pid, uid) of the other end when it connected."""
    peer: socket.socket = writer.get_extra_info("socket")
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    return pid, uid


def _is_same_user(writer: asyncio.StreamWriter) -> bool:
    return _peer(writer)[1] in (os.getuid(), 0)
