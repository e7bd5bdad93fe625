"""The supervisor's control socket: users' requests, followers, and the agent's link."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec.structs import replace

from ddptop_runner.base.errors import DdptopError
from ddptop_runner.host.procs import user_name
from ddptop_runner.model import protocol as pt

if TYPE_CHECKING:
    from ddptop_runner.node.driver import JobDriver

LINE_LIMIT_BYTES = 1024 * 1024
FOLLOWER_BYTES = 8 << 20
"""A follower this far behind is dropped; it reconnects and continues after its last event."""
FIRST_LINE_S = 10.0
"""Time for a client to send its request."""
LISTEN_BACKLOG = 100
Follow: TypeAlias = Callable[[int, Callable[[bytes], None]], Callable[[], None]]
SendToAgent: TypeAlias = Callable[[pt.ToAgent], None]
"""Sends to one connection of an agent, which it identifies."""


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
        command: carries out a request.
        agent_side: receives the agent's messages; None without an agent.
        follow: sends a follower each event after that number and then new ones; returns a function
            that ends this.
    """

    def __init__(
        self,
        path: Path,
        command: Callable[[pt.SupervisorRequest], Awaitable[pt.Reply]],
        agent_side: JobDriver | None = None,
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
            pid, uid = _peer(writer)
            if not _may_connect(uid):
                return
            line = await asyncio.wait_for(reader.readline(), FIRST_LINE_S)
            message: pt.ToControlSocket = pt.decode(line, pt.ToControlSocket)
            if isinstance(message, pt.Follow):
                await self._serve_follower(message, reader, writer)
            elif isinstance(message, pt.AgentHello):
                if message.pid == pid:
                    await self._serve_agent(message, reader, writer)
            else:
                if isinstance(message, pt.StopAsked):
                    message = replace(message, by=user_name(uid))
                await self._answer(message, writer)
        except (OSError, ValueError, msgspec.MsgspecError, asyncio.TimeoutError):
            return  # a client that disconnected or does not speak the protocol
        except asyncio.CancelledError:
            return  # the supervisor exits; asyncio would log it
        finally:
            writer.close()

    async def _answer(self, request: pt.SupervisorRequest, writer: asyncio.StreamWriter) -> None:
        try:
            reply = await self._command(request)
        except DdptopError as error:
            reply = pt.refused(error)
        writer.write(pt.line(reply))
        await writer.drain()

    async def _serve_follower(
        self, message: pt.Follow, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Send events from now on, until the other end leaves or stops reading."""
        if self._follow is None:
            return

        def send(line: bytes) -> None:
            if writer.transport.get_write_buffer_size() > FOLLOWER_BYTES:
                writer.transport.abort()
            else:
                writer.write(line)

        stop = self._follow(message.after_seq, send)
        try:
            with contextlib.suppress(asyncio.CancelledError):  # the supervisor exits
                while await reader.read(LINE_LIMIT_BYTES):
                    pass
        finally:
            stop()

    async def _serve_agent(
        self, hello: pt.AgentHello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        def send(message: pt.ToAgent) -> None:
            writer.write(pt.line(message))

        agent_side = self._agent_side
        if agent_side is None:
            return
        agent_side.agent_connected(hello, send)
        try:
            while line := await reader.readline():
                agent_side.from_agent(send, pt.decode(line, pt.FromAgent))
        finally:
            agent_side.agent_disconnected(send)


def _peer(writer: asyncio.StreamWriter) -> tuple[int, int]:
    """(pid, uid) of the other end when it connected."""
    peer: socket.socket = writer.get_extra_info("socket")
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    return pid, uid


def _may_connect(uid: int) -> bool:
    return uid in (os.getuid(), 0)
