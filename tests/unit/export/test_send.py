"""Messages to local stand-ins for real services."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_string
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from ddptop.export.send import AGAIN, NEVER, SENT, Parcel, send

# importing apprise
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Web:
    """An HTTP server that keeps what it gets."""

    def __init__(self) -> None:
        self.status = 200
        self.answer: dict[str, Any] = {}
        self.refused = b"nothing"
        """Requests with this are refused."""
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                web.requests.append((self.path, dict(self.headers), data))
                self.send_response(413 if web.refused in data else web.status)
                if web.status in (301, 307):
                    self.send_header("Location", "/elsewhere")
                self.end_headers()
                self.wfile.write(json.dumps(web.answer).encode())

            do_GET = do_PUT = do_POST

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port


@contextmanager
def served(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def web() -> Iterator[Web]:
    web = Web()
    with served(web.server):
        yield web


def parcel(url: str, page: str = "") -> Parcel:
    data = {"job": "bert"}
    return Parcel(url=url, title="bert failed on box", body="rank 1 died", data=data, page=page)


@pytest.mark.parametrize("has_apprise", [True, False])
def test_a_webhook_gets_json(
    web: Web, monkeypatch: pytest.MonkeyPatch, *, has_apprise: bool
) -> None:
    if not has_apprise:
        monkeypatch.setitem(sys.modules, "apprise", None)
    assert send(parcel(f"http://127.0.0.1:{web.port}/hook")) == SENT
    ((path, headers, data),) = web.requests
    assert (path, headers["Content-Type"]) == ("/hook", "application/json")
    assert json.loads(data) == {
        "job": "bert", "title": "bert failed on box", "body": "rank 1 died",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (500, AGAIN),
        (503, AGAIN),
        (429, AGAIN),
        (404, NEVER),
        (403, NEVER),
        (301, AGAIN),
        (307, AGAIN),
    ],
)
def test_only_what_may_pass_is_tried_again(web: Web, status: int, expected: int) -> None:
    web.status = status
    assert send(parcel(f"http://127.0.0.1:{web.port}/hook")) == expected
    assert [path for path, _, _ in web.requests] == ["/hook"], "no redirect is followed"


def test_a_dead_network_is_tried_again() -> None:
    assert send(parcel("http://127.0.0.1:9/hook")) == AGAIN


def test_a_command_gets_json(tmp_path: Path) -> None:
    assert send(parcel(f"cmd:cat > {tmp_path}/got")) == SENT
    assert json.loads((tmp_path / "got").read_text()) == {"job": "bert"}
    assert send(parcel("cmd:exit 3")) == AGAIN


def test_ntfy(web: Web) -> None:
    assert send(parcel(f"ntfy://127.0.0.1:{web.port}/my-topic")) == SENT
    data = json.loads(web.requests[0][2])
    assert (data["topic"], data["title"], data["message"]) == (
        "my-topic", "bert failed on box", "rank 1 died",
    )  # fmt: skip


def test_a_report_that_the_service_refuses_keeps_no_message(web: Web) -> None:
    web.refused = b"<html>"
    assert send(parcel(f"ntfy://127.0.0.1:{web.port}/my-topic", "<html>a page</html>")) == SENT
    assert any(b"a page" in data for _, _, data in web.requests)
    assert b"rank 1 died" in web.requests[-1][2] and b"a page" not in web.requests[-1][2]


def test_feishu(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    from apprise.plugins.feishu import NotifyFeishu

    monkeypatch.setattr(NotifyFeishu, "notify_url", f"http://127.0.0.1:{web.port}/hook/{{token}}/")
    web.answer = {"code": 0}
    assert send(parcel("feishu://abcdefabcdef")) == SENT
    path, _, data = web.requests[0]
    assert path == "/hook/abcdefabcdef/"
    assert "rank 1 died" in json.loads(data)["content"]["text"]


def test_dingtalk_is_signed(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    from apprise.plugins.dingtalk import NotifyDingTalk

    url = f"http://127.0.0.1:{web.port}/robot/send?access_token={{token}}"
    monkeypatch.setattr(NotifyDingTalk, "notify_url", url)
    web.answer = {"errcode": 0}
    assert send(parcel("dingtalk://SECabc@0123456789abcdef")) == SENT
    path, _, data = web.requests[0]
    query = parse_qs(urlsplit(path).query)
    signed = f"{query['timestamp'][0]}\nSECabc".encode()
    digest = hmac.new(b"SECabc", signed, hashlib.sha256).digest()
    # apprise quotes the signature twice
    assert unquote(query["sign"][0]) == base64.b64encode(digest).decode()
    assert query["access_token"] == ["0123456789abcdef"]
    assert "rank 1 died" in data.decode()


class Smtp(socketserver.StreamRequestHandler):
    """A mail server that accepts everything."""

    def handle(self) -> None:
        self._say("220 box ESMTP")
        mail: list[str] = []
        is_data = False
        for raw in self.rfile:
            line = raw.decode().rstrip("\r\n")
            if is_data:
                is_data = line != "."
                mail.append(line)
                if not is_data:
                    self.server.mails.append("\n".join(mail))  # type: ignore[attr-defined]
                    self._say("250 queued")
            elif line.upper().startswith("DATA"):
                is_data = True
                self._say("354 go on")
            elif line.upper().startswith("QUIT"):
                self._say("221 bye")
                return
            else:
                self._say("250 box")

    def _say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


def test_mail() -> None:
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Smtp)
    server.mails = []  # type: ignore[attr-defined]
    with served(server):
        port = server.server_address[1]
        url = f"mailto://127.0.0.1:{port}?from=ddptop@example.org&to=ada@example.org&mode=insecure"
        assert send(parcel(url, "<html>a page</html>")) == SENT
    (mail,) = map(message_from_string, server.mails)  # type: ignore[attr-defined]
    assert (mail["Subject"], mail["To"]) == ("bert failed on box", "ada@example.org")
    (attached,) = (part for part in mail.walk() if part.get_filename() == "bert.html")
    assert attached.get_payload(decode=True) == b"<html>a page</html>"


def test_a_url_without_a_service_is_never_tried_again() -> None:
    assert send(parcel("nosuch://x")) == NEVER
