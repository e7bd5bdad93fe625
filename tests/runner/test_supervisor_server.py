"""The control socket: users' commands and the agent's link, through the real client."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import ControlError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.host import procs
from ddptop_runner.job.event_log import EventLog
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import Event
from ddptop_runner.node import control
from ddptop_runner.node import server as supervisor_server
from ddptop_runner.node.server import ControlServer
from ddptop_runner.node.supervisor import Supervisor
from ddptop_runner.store.history import HistoryWriter

Message = dict[str, Any]


class Agent:
    """Records what the agent's side receives."""

    def __init__(self) -> None:
        self.hellos: list[Message] = []
        self.messages: list[Message] = []
        self.disconnects = 0
        self.send: Callable[[Message], None] | None = None
        self.news = asyncio.Event()

    def agent_connected(self, message: Message, send: Callable[[Message], None]) -> Any:
        self.hellos.append(message)
        self.send = send
        self.news.set()
        return self

    def agent_disconnected(self, link: object) -> None:
        assert link is self
        self.disconnects += 1
        self.news.set()

    def from_agent(self, link: object, message: Message) -> None:
        assert link is self
        self.messages.append(message)
        self.news.set()

    async def hears(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), 10)


async def command(message: Message) -> Message:
    if message["op"] == "refuse":
        raise ControlError("the job is ill", "see a doctor")
    return {"echo": message}


@pytest.fixture
def folder(ddptop_home) -> RunFolder:
    path = ddptop_home / "train"
    path.mkdir()
    return RunFolder(path)


@pytest.fixture
async def agent() -> Agent:
    return Agent()


@pytest.fixture
async def server(folder, agent) -> AsyncIterator[ControlServer]:
    made = ControlServer(folder.control_socket, command, agent, nobody_follows)
    await made.start()
    yield made
    made.close()


def nobody_follows(after_seq: int, send: object) -> Callable[[], None]:
    return lambda: None


async def ask(folder: RunFolder, op: str, **arguments: Any) -> Message:
    return await asyncio.to_thread(control.request, folder, op, 10.0, **arguments)


async def raw(folder: RunFolder, data: bytes) -> bytes:
    """What is returned for these bytes until the server hangs up, possibly before the end."""
    reader, writer = await asyncio.open_unix_connection(folder.control_socket)
    answer = b""
    try:
        writer.write(data)
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await writer.wait_closed()
    except (ConnectionResetError, BrokenPipeError):
        writer.close()
    return answer


async def test_commands_are_answered_concurrently(server, folder):
    answers = await asyncio.gather(*(ask(folder, "ping", n=n) for n in range(5)))
    me = procs.user_name(os.getuid())
    assert [answer["echo"] for answer in answers] == [
        {"op": "ping", "n": n, "by": me} for n in range(5)
    ]


async def test_who_asks_is_what_the_kernel_says(server, folder):
    answer = await ask(folder, "stop", by="someone else")
    assert answer["echo"]["by"] == procs.user_name(os.getuid())


async def test_a_refusal_carries_message_and_hint(server, folder):
    with pytest.raises(ControlError) as caught:
        await ask(folder, "refuse")
    assert str(caught.value) == "the job is ill; see a doctor"


async def test_only_this_user_may_connect(server, folder):
    assert stat.S_IMODE(folder.control_socket.stat().st_mode) == 0o600


async def test_a_deleted_socket_is_bound_again_and_the_agent_stays_connected(server, folder, agent):
    _, writer = await asyncio.open_unix_connection(folder.control_socket)
    writer.write(b'{"op": "agent", "pid": %d}\n' % os.getpid())
    await agent.hears(lambda: bool(agent.hellos))
    assert server.is_bound
    folder.control_socket.unlink()
    assert not server.is_bound
    await server.start()
    assert server.is_bound and (await ask(folder, "ping"))["echo"]["op"] == "ping"
    writer.write(b'{"n": 1}\n')
    await agent.hears(lambda: agent.messages == [{"n": 1}])
    assert agent.disconnects == 0
    writer.close()


async def test_another_users_command_is_not_carried_out(server, folder, monkeypatch):
    class Peer:
        def getsockopt(self, *_: object) -> bytes:
            return struct.pack("3i", 1, os.getuid() + 1000, 1)

    class Writer:
        def get_extra_info(self, name: str) -> Peer:
            return Peer()

    assert supervisor_server._is_same_user(Writer()) is False
    monkeypatch.setattr(supervisor_server, "_is_same_user", lambda writer: False)
    assert await raw(folder, b'{"op": "ping"}\n') == b""


GARBAGE = [b"", b"\n", b"hello\n", b"[1]\n", b"3\n", b"\xff\n", b'{"op"', b"x" * 2_000_000 + b"\n"]


@pytest.mark.parametrize("data", GARBAGE, ids=[repr(data[:8]) for data in GARBAGE])
async def test_garbage_is_disconnected_and_the_server_continues(
    server, folder, agent, data, caplog
):
    assert await raw(folder, data) == b""
    assert (await ask(folder, "ping"))["ok"]
    assert agent.hellos == []
    assert not caplog.records


async def test_a_socket_left_by_a_killed_supervisor_is_taken_over(folder, agent):
    folder.control_socket.touch()
    server = ControlServer(folder.control_socket, command, agent, nobody_follows)
    await server.start()
    assert (await ask(folder, "ping"))["ok"]
    server.close()
    assert not folder.control_socket.exists()
    server.close()  # a second time does nothing


async def test_the_agents_link_goes_both_ways_until_it_ends(server, folder, agent):
    reader, writer = await asyncio.open_unix_connection(folder.control_socket)
    for message in ({"op": "agent", "pid": os.getpid()}, {"type": "a"}, {"type": "b"}):
        writer.write(json.dumps(message).encode() + b"\n")
    await agent.hears(lambda: len(agent.messages) == 2)
    assert agent.hellos == [{"op": "agent", "pid": os.getpid()}]
    assert agent.messages == [{"type": "a"}, {"type": "b"}]
    assert agent.send is not None
    agent.send({"answer": 1})
    assert json.loads(await reader.readline()) == {"answer": 1}
    assert (await ask(folder, "ping"))["ok"]  # users are served meanwhile
    writer.close()
    await writer.wait_closed()
    await agent.hears(lambda: agent.disconnects == 1)


async def test_a_link_that_breaks_off_in_a_line_is_a_disconnect(server, folder, agent):
    _, writer = await asyncio.open_unix_connection(folder.control_socket)
    writer.write(b'{"op": "agent", "pid": %d}\n{"type": "gro' % os.getpid())
    writer.close()
    await writer.wait_closed()
    await agent.hears(lambda: agent.disconnects == 1)
    assert agent.messages == []


@pytest.mark.parametrize(
    "line",
    [
        b'{"op": "agent"}',
        b'{"op": "agent", "pid": 1, "attempt": 0, "workers": [], "exits": []}',
        b'{"op": "agent", "pid": "x"}',
        b"[" * 100_000,
        b"null",
        b"\xff",
    ],
)
async def test_a_hello_of_no_agent_costs_its_connection_only(server, folder, agent, line):
    reader, writer = await asyncio.open_unix_connection(folder.control_socket)
    writer.write(line + b"\n")
    assert await reader.read() == b""
    writer.close()
    assert agent.hellos == []
    assert (await ask(folder, "ping"))["ok"]


async def test_silent_client_is_disconnected(server, folder, monkeypatch):
    monkeypatch.setattr(supervisor_server, "FIRST_LINE_S", 0.05)
    reader, writer = await asyncio.open_unix_connection(folder.control_socket)
    writer.write(b'{"op": ')
    assert await reader.read() == b""
    writer.close()


def test_a_head_gets_what_a_full_disk_has_not_taken(tmp_path: Path) -> None:
    history = HistoryWriter(tmp_path / "history.db")
    row = Event(ts=utc_now(), type="state", message="", attempt=0)
    history.event(row)
    history._connect = lambda: None  # type: ignore[method-assign]
    history.event(row)
    log = EventLog(history, lambda line: None)
    sent: list[dict[str, Any]] = []
    supervisor: Any = SimpleNamespace(
        _folder=SimpleNamespace(history_db=tmp_path / "history.db"),
        _process=SimpleNamespace(history=history),
        _log=log,
        _followers=[],
        publish=lambda: None,
    )

    def follow(after_seq: int) -> list[int]:
        sent.clear()
        stop = Supervisor._follow(supervisor, after_seq, lambda line: sent.append(json.loads(line)))
        log.emit(ev.Noticed(text="live"))
        stop()
        return [one["event"]["seq"] for one in sent]

    assert follow(0) == [1, 2, 3]
    assert follow(1) == [2, 3, 4]
    assert follow(4) == [5]
    assert not log.watchers and not supervisor._followers
