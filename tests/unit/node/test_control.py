"""A command's connection to the supervisor, and every way in which there may be no response."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from ddptop_runner.base.errors import ControlError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.model import protocol as pt
from ddptop_runner.node.control import request

Answer = Callable[[socket.socket], None]


@pytest.fixture
def folder(ddptop_home) -> RunFolder:
    path = ddptop_home / "train"
    path.mkdir()
    return RunFolder(path)


@pytest.fixture
def supervisor(folder) -> Iterator[Callable[[Answer], list[bytes]]]:
    """`supervisor(answer)`: listens, stores the line that it receives, and calls `answer`."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    heard: list[bytes] = []
    threads: list[threading.Thread] = []

    def listen(answer: Answer) -> list[bytes]:
        server.bind(str(folder.control_socket))
        server.listen()

        def serve() -> None:
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as reader:
                heard.append(reader.readline())
                answer(connection)

        threads.append(threading.Thread(target=serve))
        threads[0].start()
        return heard

    yield listen
    for thread in threads:
        thread.join(10)
    server.close()


def says(answer: bytes) -> Answer:
    return lambda connection: connection.sendall(answer)


def test_a_command_and_its_answer(folder, supervisor):
    heard = supervisor(says(b'{"type": "silent_hosts", "why": {"a": "b"}}\n'))
    reply = request(folder, pt.FetchLogs(attempt=3), pt.SilentHosts)
    assert reply == pt.SilentHosts(why={"a": "b"})
    assert heard[0].endswith(b"\n")
    assert json.loads(heard[0]) == {"type": "fetch_log", "attempt": 3, "ranks": None}


BROKEN = {
    "hangs up": (b"", "closed the connection"),
    "half an answer": (b'{"type": "do', "closed the connection"),
    "no JSON": (b"hello\n", "closed the connection"),
    "no UTF-8": (b"\xff\xfe\n", "closed the connection"),
    "a list": (b"[1]\n", "closed the connection"),
    "null": (b"null\n", "closed the connection"),
    "no reply": (b"{}\n", "closed the connection"),
    "another reply": (b'{"type": "found", "data": {}}\n', "a reply of another type"),
}


@pytest.mark.parametrize("case", BROKEN.values(), ids=list(BROKEN))
def test_a_broken_answer(folder, supervisor, case):
    data, words = case
    supervisor(says(data))
    with pytest.raises(ControlError, match=words):
        request(folder, pt.Ping(), pt.Done)


def test_a_supervisor_that_stays_silent(folder, supervisor):
    done = threading.Event()
    supervisor(lambda connection: done.wait(10) and None)
    try:
        with pytest.raises(ControlError, match=r"train did not respond within 0\.1 s") as caught:
            request(folder, pt.Ping(), pt.Done, 0.1)
    finally:
        done.set()
    assert str(folder.supervisor_log) in str(caught.value)


def test_a_socket_that_a_dead_supervisor_left(folder):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder.control_socket))
    with pytest.raises(ControlError, match="Connection refused"):
        request(folder, pt.Ping(), pt.Done)


def test_an_answer_that_comes_byte_by_byte_has_one_deadline(folder, supervisor):
    def drip(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            for _ in range(100):
                connection.sendall(b" ")
                time.sleep(0.05)

    supervisor(drip)
    began_s = time.monotonic()
    with pytest.raises(ControlError, match="did not respond within"):
        request(folder, pt.GetStacks(), pt.Stacks, 0.3)
    assert time.monotonic() - began_s < 3.0


NO_ANSWER = {"nested": b"[" * 100_000 + b"\n", "endless": b"x" * (1 << 20), "no text": b"\xff\n"}


@pytest.mark.parametrize("answer", NO_ANSWER)
def test_what_is_no_answer_is_told_in_one_line(folder, supervisor, answer):
    def say(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it stops listening
            connection.sendall(NO_ANSWER[answer])
            while answer == "endless":
                connection.sendall(NO_ANSWER[answer])

    supervisor(say)
    with pytest.raises(ControlError, match="closed the connection"):
        request(folder, pt.GetStacks(), pt.Stacks)
