"""The control socket: users' commands and the agent's link, through the real client."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import stat
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.builders import make_spec

from ddptop_runner.base.errors import ControlError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.job.event_log import EventLog, as_row
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.node import control
from ddptop_runner.node import server as supervisor_server
from ddptop_runner.node.process import JobProcess
from ddptop_runner.node.server import ControlServer, SendToAgent
from ddptop_runner.node.supervisor import Supervisor
from ddptop_runner.store.history import HistoryWriter

HELLO = pt.line(pt.AgentHello(pid=os.getpid(), attempt=0, workers=[], exits=[]))


class Agent:
    """Records what the agent's side receives."""

    def __init__(self) -> None:
        self.hellos: list[pt.AgentHello] = []
        self.messages: list[pt.FromAgent] = []
        self.disconnects = 0
        self.send: SendToAgent | None = None
        self.news = asyncio.Event()

    def agent_connected(self, hello: pt.AgentHello, send: SendToAgent) -> None:
        self.hellos.append(hello)
        self.send = send
        self.news.set()

    def agent_disconnected(self, send: SendToAgent) -> None:
        assert send is self.send
        self.disconnects += 1
        self.news.set()

    def from_agent(self, send: SendToAgent, message: pt.FromAgent) -> None:
        assert send is self.send
        self.messages.append(message)
        self.news.set()

    async def hears(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), 10)


async def command(request: pt.SupervisorRequest) -> pt.Reply:
    if isinstance(request, pt.RequestCheckpoint):
        raise ControlError("the job is ill", "see a doctor", "ended")
    if isinstance(request, pt.FetchEvidence):
        return pt.SilentHosts(why={"h": request.name})
    if isinstance(request, pt.StopAsked):
        return pt.Found(data={"by": request.by or ""})
    return pt.Done()


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


async def ask(folder: RunFolder, request: pt.SupervisorRequest) -> pt.Reply:
    return await asyncio.to_thread(control.exchange, folder, request, 10.0)


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


async def test_a_refusal_carries_message_hint_and_code(server, folder):
    with pytest.raises(ControlError) as caught:
        await asyncio.to_thread(control.request, folder, pt.RequestCheckpoint(), pt.Done)
    assert str(caught.value) == "the job is ill; see a doctor"
    assert caught.value.code == "ended"


async def test_only_this_user_may_connect(server, folder):
    assert stat.S_IMODE(folder.control_socket.stat().st_mode) == 0o600


async def test_a_deleted_socket_is_bound_again_and_the_agent_stays_connected(server, folder, agent):
    _, writer = await asyncio.open_unix_connection(folder.control_socket)
    writer.write(HELLO)
    await agent.hears(lambda: bool(agent.hellos))
    assert server.is_bound
    folder.control_socket.unlink()
    assert not server.is_bound
    await server.start()
    assert server.is_bound and await ask(folder, pt.Ping()) == pt.Done()
    writer.write(pt.line(pt.PlainStart(why="no fork")))
    await agent.hears(lambda: agent.messages == [pt.PlainStart(why="no fork")])
    assert agent.disconnects == 0
    writer.close()


async def test_another_users_command_is_not_carried_out(server, folder, monkeypatch):
    monkeypatch.setattr(supervisor_server, "_peer", lambda _: (1, os.getuid() + 1000))
    assert await raw(folder, b'{"type": "ping"}\n') == b""


GARBAGE = [
    *[b"", b"\n", b"hello\n", b"[1]\n", b"3\n", b"\xff\n", b'{"type"', b"x" * 2_000_000 + b"\n"],
    *[b'{"type": "unknown"}\n', b'{"type": "stop_asked", "grace_s": -1}\n', b"{}\n"],
    *[b'{"type": "fetch_log", "attempt": "1"}\n', b'{"type": "carry", "seq": -1}\n'],
]


@pytest.mark.parametrize("data", GARBAGE, ids=[repr(data[:30]) for data in GARBAGE])
async def test_garbage_is_disconnected_and_the_server_continues(
    server, folder, agent, data, caplog
):
    assert await raw(folder, data) == b""
    assert await ask(folder, pt.Ping()) == pt.Done()
    assert agent.hellos == []
    assert not caplog.records


async def test_a_socket_left_by_a_killed_supervisor_is_taken_over(folder, agent):
    folder.control_socket.touch()
    server = ControlServer(folder.control_socket, command, agent, nobody_follows)
    await server.start()
    assert await ask(folder, pt.Ping()) == pt.Done()
    server.close()
    assert not folder.control_socket.exists()
    server.close()  # a second time does nothing


async def test_the_agents_link_goes_both_ways_until_it_ends(server, folder, agent):
    reader, writer = await asyncio.open_unix_connection(folder.control_socket)
    asked = pt.AgentAsked(question=1, kind="failing", attempt=0, ranks=[1])
    ended = pt.RankEnded(attempt=0, pid=7, returncode=-9, at_boottime_s=1.0)
    writer.write(HELLO + pt.line(ended) + pt.line(asked))
    await agent.hears(lambda: len(agent.messages) == 2)
    assert [hello.pid for hello in agent.hellos] == [os.getpid()]
    assert agent.messages == [ended, asked]
    assert agent.send is not None
    agent.send(pt.AnswerAgent(question=1, restart=True))
    answer = json.loads(await reader.readline())
    assert (answer["type"], answer["question"], answer["restart"]) == ("answer_agent", 1, True)
    assert await ask(folder, pt.Ping()) == pt.Done()  # users are served meanwhile
    writer.close()
    await writer.wait_closed()
    await agent.hears(lambda: agent.disconnects == 1)


@pytest.mark.parametrize(
    "line",
    [
        b'{"type": "agent_hello"}',
        b'{"type": "agent_hello", "pid": 1, "attempt": 0, "workers": [], "exits": []}',
        b'{"type": "agent_hello", "pid": "x"}',
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
    assert await ask(folder, pt.Ping()) == pt.Done()


async def test_silent_client_is_disconnected(server, folder, monkeypatch):
    monkeypatch.setattr(supervisor_server, "FIRST_LINE_S", 0.05)
    reader, writer = await asyncio.open_unix_connection(folder.control_socket)
    writer.write(b'{"type": ')
    assert await reader.read() == b""
    writer.close()


def test_a_head_gets_what_a_full_disk_has_not_taken(tmp_path):
    history = HistoryWriter(tmp_path / "history.db")
    row = as_row(ev.Noticed(text="before"))
    history.event(row)
    history._connect = lambda: None  # type: ignore[method-assign]
    history.event(row)
    log = EventLog(history, lambda line: None)
    sent: list[dict[str, Any]] = []
    folder = SimpleNamespace(history_db=tmp_path / "history.db")
    process: Any = SimpleNamespace(_folder=folder, history=history)
    process.rows_after = functools.partial(JobProcess.rows_after, process)
    supervisor: Any = SimpleNamespace(
        _process=process,
        _log=log,
        _followers=[],
        _spec=make_spec(),
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
