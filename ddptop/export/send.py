"""Sends one message to one receiver, in a process of its own: a receiver may block or crash.

The message comes as JSON on stdin. Exit status: 0 sent, 1 try again, 2 it can never be sent.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec

from ddptop.export.settings import COMMAND
from ddptop_runner.base.start import PRIVATE

SENT, AGAIN, NEVER = 0, 1, 2
TIMEOUT_S = 20.0
COMMAND_TIMEOUT_S = 60.0


class Parcel(msgspec.Struct, frozen=True):
    """A message and its receiver."""

    url: str
    title: str
    body: str
    data: dict[str, Any]
    """What webhooks, commands, and hooks get as JSON."""
    page: str = ""
    """A report in HTML, for services that take attachments."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """A receiver that moved is an error: the message is not for whoever it names."""


def send(parcel: Parcel) -> int:
    """Send a message; returns the exit status."""
    if parcel.url.startswith(COMMAND):
        return _run(parcel.url[len(COMMAND) :], parcel.data)
    try:
        from apprise import Apprise
    except ImportError:
        return _post(parcel) if parcel.url.startswith(("http://", "https://")) else NEVER
    service = Apprise()
    plain = parcel.url.startswith(("http://", "https://"))
    if plain and Apprise.instantiate(parcel.url, suppress_exceptions=True) is None:
        return _post(parcel)
    if not service.add(parcel.url):
        return NEVER
    if parcel.page and any(one.attachment_support for one in service):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, f"{parcel.data['job']}.html")
            file.write_text(parcel.page, encoding="utf-8")
            if service.notify(title=parcel.title, body=parcel.body, attach=str(file)):
                return SENT  # else without it, in case it is too large for the service
    sent = service.notify(title=parcel.title, body=parcel.body)
    return SENT if sent else AGAIN


def _post(parcel: Parcel) -> int:
    data = {**parcel.data, "title": parcel.title, "body": parcel.body}
    request = urllib.request.Request(
        parcel.url,
        data=msgspec.json.encode(data),
        headers={"Content-Type": "application/json", "User-Agent": "ddptop"},
    )
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_S):
            return SENT
    except urllib.error.HTTPError as error:
        gone = 400 <= error.code < 500 and error.code not in (408, 425, 429)
        return NEVER if gone else AGAIN
    except (OSError, ValueError):
        return AGAIN


def _run(command: str, data: dict[str, Any]) -> int:
    try:
        done = subprocess.run(
            ["sh", "-c", command],
            input=msgspec.json.encode(data),
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return AGAIN
    return SENT if done.returncode == 0 else AGAIN


def main() -> int:
    """Send the message on stdin."""
    os.umask(PRIVATE)
    return send(msgspec.json.decode(sys.stdin.buffer.read(), type=Parcel))


if __name__ == "__main__":
    sys.exit(main())
