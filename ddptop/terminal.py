"""Detects what the terminal can do from its environment."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
from collections.abc import Coroutine, Mapping
from typing import Any

from ddptop_runner.base.errors import UsageError

COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
"""Values that Python itself sets LC_CTYPE to when the locale is C."""

DUMB = ("dumb", "unknown")
"""Terminals that cannot move their cursor."""

POOR = ("linux", "vt100", "vt102", "vt220", "ansi", "cons25")
"""Terminals whose fonts have no braille and few line characters."""


def locale_encoding(env: Mapping[str, str]) -> str | None:
    """The encoding that the locale variables request; None if they are unset.

    Args:
        env: the environment. LC_ALL overrides LC_CTYPE, which overrides LANG.
    """
    language = env.get("LANG") or ""
    given = env.get("LC_ALL") or env.get("LC_CTYPE") or language
    if not env.get("LC_ALL") and given in COERCED and language in ("C", "POSIX"):
        given = language
    if not given:
        return None
    name, _, codeset = given.partition("@")[0].partition(".")
    if not codeset:
        return "utf-8" if name.upper() == "UTF-8" else "ascii"
    try:
        return codecs.lookup(codeset).name
    except LookupError:
        return "ascii"


def wants_ascii(env: Mapping[str, str]) -> bool:
    """Whether to draw only in ASCII, because of the locale or the kind of terminal.

    An unset locale, as in a container, is not a reason, except inside tmux or screen, which then
    replace non-ASCII characters.
    """
    term = env.get("TERM") or ""
    if term.partition("-")[0] in POOR:
        return True
    encoding = locale_encoding(env)
    if encoding is None:
        return bool(env.get("TMUX") or env.get("STY"))
    return encoding != "utf-8"


def letters(env: Mapping[str, str], stream_encoding: str | None) -> str:
    """The encoding for users' own names; characters outside it are replaced.

    Args:
        env: the environment.
        stream_encoding: encoding of the output stream.
    """
    asked = locale_encoding(env) or "utf-8"
    written = codecs.lookup(stream_encoding or "ascii").name
    return asked if asked == written else "ascii"


async def until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Do work until it ends, or until ctrl+c, SIGTERM, or SIGHUP."""
    import asyncio
    import signal

    task = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def check() -> None:
    """Make sure that a screen can be drawn.

    Raises:
        UsageError: if stderr is not a terminal, or the terminal cannot move its cursor.
    """
    if not sys.__stderr__ or not sys.__stderr__.isatty():
        raise UsageError(
            "ddptop draws on stderr, but stderr is not a terminal", "do not redirect stderr"
        )
    term = os.environ.get("TERM") or ""
    if term in DUMB:
        raise UsageError(
            f"TERM={term} does not support cursor movement",
            "use ddptop ls, status, or gpus, or set TERM=xterm-256color if supported",
        )
