"""`ddptop notify`: who gets messages about jobs that are launched from now on."""

from __future__ import annotations

import sys

from ddptop.export import settings
from ddptop.export.notifier import send_apart
from ddptop.export.send import SENT, Parcel
from ddptop.output import info, put, put_json
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import UsageError
from ddptop_runner.base.files import write_atomic
from ddptop_runner.host import procs
from ddptop_runner.model.snapshot import SCHEMA


def add(url: str | None) -> int:
    """Store a receiver; without `url`, it is read from stdin, which no process list shows."""
    if url is None:
        if sys.stdin.isatty():
            info("URL:")
        url = sys.stdin.readline().strip()
    settings.check_url(url)
    file = settings.urls_file()
    known = settings.read_urls(file)
    if url not in known:
        if len(known) >= settings.MAX_URLS:
            raise UsageError(f"there are {len(known)} receivers", "remove one first")
        _write([*known, url])
    info(f"ddptop: jobs launched from now on send messages to {settings.masked(url)}")
    return 0


def remove(number: int) -> int:
    """Remove a receiver by its number in `notify list`."""
    known = settings.read_urls(settings.urls_file())
    if not 1 <= number <= len(known):
        raise UsageError(f"there is no receiver {number}", "see ddptop notify list")
    info(f"ddptop: removed {settings.masked(known.pop(number - 1))}")
    _write(known)
    return 0


def show(as_json: bool) -> int:
    """Print the receivers, without their secrets."""
    masked = [settings.masked(url) for url in settings.read_urls(settings.urls_file())]
    if as_json:
        put_json({"schema": SCHEMA, "receivers": masked})
    elif masked:
        for number, text in enumerate(masked, 1):
            put(f"{number}  {text}")
    else:
        info("ddptop: no receivers; add one with ddptop notify add URL")
    return 0


def test(url: str | None) -> int:
    """Send a message to one URL or to all receivers; 1 if one does not get it."""
    urls = [url] if url else settings.read_urls(settings.urls_file())
    if not urls:
        raise UsageError("no receivers", "add one with ddptop notify add URL")
    status = 0
    host, now = procs.host_name(), utc_now()
    for one in urls:
        settings.check_url(one)
        text = "This is a test. Messages about your jobs will look like this one."
        notice = {"kind": "test", "at": now, "text": text}
        data = {"schema": SCHEMA, "host": host, "notices": [notice]}
        sent = send_apart(Parcel(url=one, title=f"ddptop on {host}", body=text, data=data))
        info(f"ddptop: {settings.masked(one)}: {'sent' if sent == SENT else 'not sent'}")
        status |= sent != SENT
    return int(status)


def _write(urls: list[str]) -> None:
    file = settings.urls_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, "".join(f"{url}\n" for url in urls).encode())
