"""Runs commands on other hosts through ssh, and explains ssh's failures.

It uses the ssh binary with the user's own configuration, keys, and agent; `DDPTOP_SSH` replaces it,
as in `DDPTOP_SSH="ssh -F ./config"`. ssh never prompts: if it needs a password or does not know a
host key, that is a failure with a remedy.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ddptop_runner.base.errors import UsageError
from ddptop_runner.host import procs
from ddptop_runner.model.protocol import Answer, Report, decode
from ddptop_runner.store.log_clean import UNSAFE, is_safe, one_line

VARIABLE = "DDPTOP_SSH"
CONNECT_S = 10
"""How long connecting may take; without this limit, a host that is down costs two minutes."""
OPTIONS = (
    "BatchMode=yes",
    f"ConnectTimeout={CONNECT_S}",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "ControlMaster=no",  # reuse an existing master connection, but leave none behind
    "ClearAllForwardings=yes",
    "ForwardX11=no",
    "ForwardAgent=no",
    "RemoteCommand=none",
)
FAILED = 255
"""ssh's exit status if ssh itself failed, not the remote command."""
NOT_INSTALLED = "ddptop-node: not installed"
"""Printed to stderr by `node_command` if ddptop is not installed."""
VENVS = ".local/share/ddptop/venvs"
"""Where `ddptop setup-host` installs, relative to the home; one folder per version."""

TEXT_CHARS = 65_536
"""Maximum length of a string in a node's event or snapshot."""
LONG_BYTES = 1 << 20
"""A longer report may contain strings that must be cut."""


def decode_report(line: bytes) -> Report:
    """A node's report, without terminal control characters and with bounded strings.

    Raises:
        msgspec.MsgspecError: the line is not a report.
    """
    report: Report = decode(line, Report)
    text = line.decode().rstrip("\n")
    if is_safe(text) and not _ESCAPED.search(text) and len(line) < LONG_BYTES:
        return report
    most = len(text) if isinstance(report, Answer) else TEXT_CHARS
    try:
        plain = _printable(msgspec.json.decode(line), most)
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error
    cleaned: Report = msgspec.convert(plain, Report, str_keys=True)
    return cleaned


def _printable(value: Any, most: int) -> Any:
    if isinstance(value, str):
        return re.sub(UNSAFE, "\N{REPLACEMENT CHARACTER}", value[:most])
    if isinstance(value, list):
        return [_printable(one, most) for one in value]
    if isinstance(value, dict):
        return {_printable(key, most): _printable(one, most) for key, one in value.items()}
    return value


_ESCAPED = re.compile(r"\\[^\"\\/nt]")
"""JSON escapes that may encode a control character."""


def is_here(host: str) -> bool:
    """Whether a host is this machine and this user, so that ssh is not needed."""
    user, at, name = host.rpartition("@")
    if at and user != procs.user_name(os.geteuid()):
        return False
    own = socket.gethostname()
    return name in {"localhost", own, own.partition(".")[0]}


def ssh_argv(host: str, command: str, env: Mapping[str, str] = os.environ) -> list[str]:
    """The argv that runs `command` in the login shell of `host`.

    Raises:
        UsageError: DDPTOP_SSH is not a valid command line.
    """
    try:
        program = shlex.split(env.get(VARIABLE, "")) or ["ssh"]
    except ValueError as error:
        raise UsageError(
            f"{VARIABLE} is not a valid command line ({error})", 'use "ssh -F FILE"'
        ) from None
    options = [word for option in OPTIONS for word in ("-o", option)]
    return [*program, "-T", *options, "--", host, command]


def on_host(host: str, argv: Sequence[str], env: Mapping[str, str] = os.environ) -> list[str]:
    """The argv that runs `argv` on `host`; unchanged if that is this machine."""
    return list(argv) if is_here(host) else ssh_argv(host, shlex.join(argv), env)


def node_command(version: str, own: Sequence[str]) -> str:
    """The command line that finds and runs `ddptop-node` on another host.

    Args:
        version: ddptop's version; the environment that `setup-host` made for it is tried first.
        own: this machine's argv, tried next if both of its files exist there.
    """
    python, script = own[0], next(word for word in own[1:] if not word.startswith("-"))
    # one line for sh, which any login shell can pass on
    steps = [
        f"n=$HOME/{VENVS}/{version}/ddptop-node",
        'if test -x "$n"; then exec "$n"; fi',
        f"if test -x {_plain(python)} && test -f {_plain(script)}; then exec {_joined(own)}; fi",
        f"echo {NOT_INSTALLED} >&2",
        "exit 127",
    ]
    return shlex.join(["sh", "-c", "; ".join(steps)])


def _plain(word: str) -> str:
    """`word`, with a backslash before each character that may be special to a shell."""
    return re.sub(r"([^A-Za-z0-9_./=@%+,:-])", r"\\\1", word)


def _joined(words: Sequence[str]) -> str:
    return " ".join(map(_plain, words))


class Unreachable(NamedTuple):
    """Why no command could run on a host."""

    kind: str
    """`name`, `refused`, `silent`, `key-changed`, `key-unknown`, `denied`, `ddptop`, `ssh`."""
    problem: str
    """A sentence without the host's name."""
    remedy: str


def why_unreachable(
    host: str, status: int | None, stderr: str, limit_s: float | None
) -> Unreachable:
    """Explain why a command on a host failed.

    Args:
        host: as passed to ssh.
        status: the exit status; None if the command did not end.
        stderr: what ssh and the remote side printed to stderr.
        limit_s: the time limit, if it has passed.
    """
    quoted = shlex.quote(host)
    for kind, pattern, problem, remedy in _MEANINGS:
        is_of_ssh = kind != "ddptop"
        if is_of_ssh and status not in (None, FAILED):
            continue  # the remote side printed it
        if re.search(pattern, stderr, re.IGNORECASE):
            return Unreachable(kind, problem, remedy.format(host=quoted))
    if status is None:
        problem = "its answer is not ddptop's"
        if limit_s is not None:
            problem = f"no response within {limit_s:g} s"
        return Unreachable("silent", problem, f"check that `ssh {quoted} true` works")
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    last = f": {one_line(lines[-1])}" if lines else ""
    who = "ssh" if status == FAILED else "ddptop-node"
    return Unreachable(
        "ssh", f"{who} failed with exit status {status}{last}", f"check `ssh {quoted} true`"
    )


_MEANINGS = (
    # (kind, what ssh prints, problem, remedy)
    ("ddptop", re.escape(NOT_INSTALLED), "ddptop is not installed", "run ddptop setup-host {host}"),
    (
        "key-changed",
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key has changed",
        "if it was reinstalled, run the ssh-keygen command that `ssh {host} true` prints",
    ),
    (
        "key-unknown",
        "Host key verification failed|host key is known for",
        "its host key is not known yet",
        "run `ssh {host} true` once and accept the key",
    ),
    (
        "name",
        "Could not resolve hostname",
        "unknown host",
        "check the spelling, or add it to ~/.ssh/config",
    ),
    (
        "denied",
        r"Permission denied|Too many authentication failures|No supported authentication",
        "ssh wants a password",
        "run ssh-copy-id {host}, or load your key into ssh-agent",
    ),
    (
        "refused",
        "Connection refused",
        "the connection was refused",
        "start sshd there, or set its port in ~/.ssh/config",
    ),
    (
        "silent",
        "Connection timed out|Operation timed out|No route to host|Network is unreachable|"
        "timeout, server .* not responding",
        "it does not respond",
        "check that it is up and that this machine can reach it",
    ),
)
