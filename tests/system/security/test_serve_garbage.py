"""Whatever is sent to `ddptop serve`: it answers or hangs up, goes on, and prints nothing of it."""

from __future__ import annotations

import base64
import re
import signal
import socket
import struct
import subprocess
import sys

import pytest

pytest.importorskip("aiohttp", reason="textual-serve is not installed")
pytest.importorskip("textual_serve", reason="textual-serve is not installed")

HOST = b"Host: localhost\r\n"
ANYBODY = {
    "binary": b"\x00\xff\x16\x03\x01garbage\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
    "no path": b"GET\r\n\r\n",
    "method": b"\x80\x81 / HTTP/1.1\r\n\r\n",
    "version": b"GET / HTTP/9.9\r\n\r\n",
    "long line": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    "long header": b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    "headers": b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 40_000 + b"\r\n",
    "length": b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
    "length in words": b"POST / HTTP/1.1\r\nContent-Length: abc\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nContent-Length: 5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nz\r\n",
    "encoding": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\n"
    b"Content-Length: 3\r\n\r\nabc",
    "token in other bytes": b"GET /%ff%fe/ HTTP/1.1\r\n" + HOST + b"\r\n",
    "token as a surrogate": b"GET /%ed%b3%bf/ HTTP/1.1\r\n" + HOST + b"\r\n",
    "raw bytes in the token": b"GET /\xff\xfe/ HTTP/1.1\r\n" + HOST + b"\r\n",
    "address": b"GET http://[::1/ HTTP/1.1\r\n\r\n",
    "connect": b"CONNECT a:b HTTP/1.1\r\n\r\n",
    "cookie": b"GET / HTTP/1.1\r\n" + HOST + b"Cookie: \xff=\x01;;=\r\n\r\n",
}


def frame(code: int, data: bytes, first: int = 0x80) -> bytes:
    """A masked websocket frame."""
    size = len(data)
    if size < 126:
        head = bytes([first | code, 0x80 | size])
    else:
        head = bytes([first | code, 0xFF]) + struct.pack(">Q", size)
    return head + b"\0\0\0\0" + data


FRAMES = {
    "no UTF-8": frame(1, b"\xff\xfe"),
    "deep": frame(1, b"[" * 200_000),
    "endless": b"\x81\xff" + b"\xff" * 8 + b"\0" * 4,
}
"""Few, as each starts a viewer."""


CLOSE = b"\x88"


def exchange(port: int, data: bytes, until: bytes = b"") -> bytes:
    """Send it, and read the answer up to `until`, or till the server hangs up."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(30)
        try:
            client.sendall(data)
            while (not answer or until not in answer) and (data := client.recv(65536)):
                answer += data
        except ConnectionError:  # it hung up with some of it unread
            pass
    return answer


def test_serve_answers_garbage_and_says_nothing_of_it(ddptop_home) -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "ddptop", "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert server.stdout is not None
    try:
        said = [server.stdout.readline() for _ in range(3)]
        found = re.search(r":(\d+)/([\w-]+)/", said[0])
        assert found is not None, said
        port, token = int(found[1]), found[2].encode()
        for name, data in ANYBODY.items():
            answer = exchange(port, data)
            assert re.match(rb"HTTP/1\.[01] 4\d\d |$", answer), (name, answer)
        path = b"GET /" + token
        long_name = path + b"/static/" + b"a" * 5000 + b" HTTP/1.1\r\n" + HOST + b"\r\n"
        assert exchange(port, long_name).startswith(b"HTTP/1.1 404 ")
        upgrade = (
            path + b"/ws HTTP/1.1\r\n" + HOST + b"Origin: http://localhost\r\n"
            b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: " + base64.b64encode(b"x" * 16) + b"\r\n\r\n"
        )
        for name, data in FRAMES.items():
            answer = exchange(port, upgrade + data, CLOSE)
            assert answer.startswith(b"HTTP/1.1 101 ") or not answer, (name, answer)
        page = exchange(port, path + b"/ HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
        assert page.startswith(b"HTTP/1.1 200 ")
    finally:
        server.send_signal(signal.SIGINT)
        rest, _ = server.communicate(timeout=60)
    assert [line for line in rest.splitlines() if "failed to start" not in line] == []
