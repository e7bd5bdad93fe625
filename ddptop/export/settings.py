"""Where notices go: `[notify]` and `[hooks]` of config.toml, and the receivers' URLs.

URLs contain passwords and tokens. They are kept in files that only their owner can read, and are
passed to other processes through pipes, never as arguments.
"""

from __future__ import annotations

import datetime as dt
import os
import stat
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from ddptop.export.incidents import KINDS, Kind
from ddptop_runner.base import bounded
from ddptop_runner.base.errors import UsageError
from ddptop_runner.base.files import belongs
from ddptop_runner.base.paths import config_file

MAX_URLS = 32
MAX_URL_CHARS = 2000
COMMAND = "cmd:"
"""A receiver that is a shell command; it gets the message as JSON on stdin."""


class NotifyTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[notify]`."""

    off: tuple[Kind, ...] = ()
    """Kinds that are not sent."""
    bell: bool = True
    """Whether open screens ring the terminal's bell."""
    quiet_hours: Annotated[str, Meta(pattern=r"^\d\d:\d\d-\d\d:\d\d$")] | None = None
    """`22:00-07:00`, local time; messages wait until they end."""
    most_per_hour: Annotated[int, Meta(ge=1, le=1000)] = 6

    def quiet(self) -> tuple[dt.time, dt.time] | None:
        """The quiet hours.

        Raises:
            ValueError: a time does not exist.
        """
        if self.quiet_hours is None:
            return None
        start, _, end = self.quiet_hours.partition("-")
        return dt.time.fromisoformat(start), dt.time.fromisoformat(end)


class ReportTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[report]`."""

    price_per_kwh: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    currency: Annotated[str, Meta(max_length=16)] = ""
    """Printed after the cost."""


class Settings(msgspec.Struct, frozen=True):
    """What config.toml says about messages and reports."""

    notify: NotifyTable = NotifyTable()
    report: ReportTable = ReportTable()
    hooks: dict[str, str] = {}
    """Shell commands by `on_KIND`."""


def read_settings() -> Settings:
    """The settings; defaults where the file or a table is missing.

    Raises:
        UsageError: the file cannot be read, or a value is invalid.
    """
    file = config_file()
    try:
        data = msgspec.toml.decode(bounded.read_bytes(Path(os.path.realpath(file))))
        settings = msgspec.convert(data, Settings)
        settings.notify.quiet()
        for name in settings.hooks:
            if name.removeprefix("on_") not in KINDS or not name.startswith("on_"):
                raise ValueError(f"[hooks] has no {name!r}; use on_{', on_'.join(KINDS)}")
    except FileNotFoundError:
        return Settings()
    except (OSError, RecursionError, ValueError) as error:
        raise UsageError(f"{file} cannot be used ({error})", "correct it") from error
    return settings


def urls_file() -> Path:
    """The URLs that `ddptop notify add` stores, one per line."""
    return config_file().with_name("notify-urls")


def read_urls(file: Path) -> list[str]:
    """The URLs of a file that only this user can read or change; [] if there is none.

    Raises:
        UsageError: another user could have read or written it, or it is no regular file.
    """
    try:
        status = file.lstat()
    except OSError:
        return []
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise UsageError(f"{file} {belongs(status)}", "remove it, or run chmod 600")
    try:
        lines = bounded.read_text(file).splitlines()
    except OSError as error:
        raise UsageError(f"{file} cannot be read ({error.strerror})", "remove it") from error
    return [line.strip() for line in lines if line.strip()][:MAX_URLS]


def masked(url: str) -> str:
    """The URL as it may be shown: its scheme, and the host of a web address."""
    if url.startswith(COMMAND):
        return (
            f"{COMMAND}{url[len(COMMAND) :].split()[0]} …" if url[len(COMMAND) :].split() else url
        )
    parts = urlsplit(url)
    host = f"{parts.hostname}/" if parts.scheme in ("http", "https") else ""
    return f"{parts.scheme}://{host}…"


def check_url(url: str) -> None:
    """Check that a message could be sent to a URL; sends nothing.

    Raises:
        UsageError: it is malformed, or needs the extra `notify`.
    """
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        scheme = ""
    if len(url) > MAX_URL_CHARS or not url.isprintable() or not scheme:
        raise UsageError("the URL is malformed", "use https://…, cmd:COMMAND, or a URL of apprise")
    if url.startswith(COMMAND) or (scheme in ("http", "https") and urlsplit(url).hostname):
        return
    try:
        from apprise import Apprise
    except ImportError:
        raise UsageError(
            f"{masked(url)} requires apprise", "run pip install 'ddptop[notify]'"
        ) from None
    if not Apprise().add(url):
        raise UsageError(
            f"{masked(url)} is not a valid URL of apprise", "see its list of notification services"
        )
