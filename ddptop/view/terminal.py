"""Detects what the terminal can do from its environment."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Mapping

from ddptop_runner.base.errors import UsageError

COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
"""What Python itself puts into LC_CTYPE where the locale is C."""

DUMB = ("dumb", "unknown")
"""Terminals without a cursor that can be moved."""

POOR = ("linux", "vt100", "vt102", "vt220", "ansi", "cons25")
"""Terminals whose fonts hold no braille and few lines."""


def locale_encoding(env: Mapping[str, str]) -> str | None:
    """The encoding that the locale's variables ask for; None when they say nothing.

    Args:
        env: the environment. LC_ALL beats LC_CTYPE, which beats LANG.
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
    """Whether to draw with ASCII only: by the locale, or by the kind of terminal.

    Nothing at all said of the locale, as in a container, is no reason, except inside of tmux or
    screen, which then replace what is not ASCII.
    """
    term = env.get("TERM") or ""
    if term.partition("-")[0] in POOR:
        return True
    encoding = locale_encoding(env)
    if encoding is None:
        return bool(env.get("TMUX") or env.get("STY"))
    return encoding != "utf-8"


def letters(env: Mapping[str, str], stream_encoding: str | None) -> str:
    """The encoding in which a person's own names can be drawn: what is not in it is replaced.

    Args:
        env: the environment.
        stream_encoding: how what is drawn is written.
    """
    asked = locale_encoding(env) or "utf-8"
    written = codecs.lookup(stream_encoding or "ascii").name
    return asked if asked == written else "ascii"


def check() -> None:
    """Make sure that a screen can be drawn.

    Raises:
        UsageError: when stderr is no terminal, or the terminal cannot move its cursor.
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
