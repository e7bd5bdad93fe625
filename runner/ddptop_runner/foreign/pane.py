"""Reads the content of a tmux pane without changing the pane.

Only `list-panes` and `capture-pane -p` are asked: nothing is attached, resized or typed, and no
`pipe-pane`, which would end a pipe of the person's own. A server that does not answer is left
alone for a while.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddptop_runner.base.ownership import is_private_folder

HISTORY_LINES = 2000
"""How far back the first capture of a pane reaches."""
LATER_LINES = 500
"""How far back a later one does: more than is written between two of them, as a rule."""
MAX_REDRAWN = 12
"""So many lines at the end may change between two captures, as nested progress bars do."""
MAX_CHARS = 4 << 20
"""A capture is cut here, from its beginning."""
TIMEOUT_S = 1.0
AVOID_S = 60.0
"""A server that let the time pass is not asked again for so long."""

_UCRED = struct.Struct("3i")
"""Pid, uid and gid of who listens."""

_FORMAT = "#{pane_tty}\t#{pane_id}\t#{session_name}:#{window_index}.#{pane_index}"

_avoided: dict[str, float] = {}
"""Sockets whose server did not answer, and until when (monotonic) to leave them alone."""


@dataclass(frozen=True)
class Pane:
    """One pane of one tmux server."""

    socket: str
    id: str
    """`%5`: stays the same for the pane's life."""
    name: str
    """`work:1.0`, as a person names it."""
    tty: str


def sockets(tmux_variables: Iterable[str] = ()) -> list[str]:
    """Sockets of this user's own tmux servers: the usual ones, and those that $TMUX values name.

    A tmux client obeys its server, up to executing a file. So only sockets in folders that nobody
    else can write are named, whoever's variable names them.
    """
    folders = [os.environ.get("TMUX_TMPDIR") or "/tmp", "/tmp"]
    found = [value.split(",")[0] for value in tmux_variables]
    for folder in dict.fromkeys(folders):
        try:
            own = Path(folder, f"tmux-{os.geteuid()}")
            found += sorted(os.fspath(path) for path in own.iterdir())
        except OSError:
            continue
    return [path for path in dict.fromkeys(found) if _is_own(path) and _is_served(path)]


def _is_own(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    if not path.startswith("/") or name in ("", ".", "..") or not is_private_folder(folder):
        return False
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def _is_served(path: str) -> bool:
    """Whether a server of this user listens there: of one that was killed the socket stays.

    Asking tmux instead takes a process, and such sockets may be hundreds.
    """
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        try:
            client.connect(path)
        except BlockingIOError:  # it has much to do
            return True
        except OSError:
            return False
        credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        return bool(_UCRED.unpack(credentials)[1] == os.geteuid())


def list_panes(socket_paths: Iterable[str]) -> dict[str, Pane]:
    """Every pane of these servers by its terminal, such as `/dev/pts/3`."""
    panes = {}
    for path in socket_paths:
        text = _tmux(path, "list-panes", "-a", "-F", _FORMAT)
        for line in (text or "").splitlines():
            parts = line.split("\t")
            if len(parts) == 3:
                panes[parts[0]] = Pane(path, parts[1], parts[2], parts[0])
    return panes


def capture(pane: Pane, history_lines: int = LATER_LINES) -> list[str] | None:
    """The pane's last lines, wrapped ones joined; None when it cannot be asked or is gone."""
    text = _tmux(pane.socket, "capture-pane", "-p", "-J", "-S", f"-{history_lines}", "-t", pane.id)
    if text is None:
        return None
    lines = [line.rstrip() for line in text[-MAX_CHARS:].split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _tmux(socket_path: str, *command: str) -> str | None:
    if _avoided.get(socket_path, 0.0) > time.monotonic():
        return None
    environment = {name: value for name, value in os.environ.items() if name != "TMUX"}
    try:
        answer = subprocess.run(
            ["tmux", "-u", "-S", socket_path, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        _avoided[socket_path] = time.monotonic() + AVOID_S
        return None
    except OSError:
        return None
    return answer.stdout.decode("utf-8", "replace") if answer.returncode == 0 else None


def new_lines(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Lines of `after` that were written since `before` was captured.

    What both share scrolls up: `after` begins with a part of `before`. Lines at the end of
    `before` may have been redrawn since; they count as written again. Where nothing is shared
    (the screen was cleared, or more was written than a capture holds) all of `after` is new.
    """
    shared, _ = _shared(before, after)
    return list(after[shared:])


def _shared(before: Sequence[str], after: Sequence[str]) -> tuple[int, int]:
    """(how many lines at the beginning of `after` are old, how many old ones were redrawn)."""
    best, redrawn = 0, 0
    for dropped in range(min(MAX_REDRAWN, len(before)) + 1):
        kept = before[: len(before) - dropped]
        if len(kept) <= best:
            break
        for offset in range(max(0, len(kept) - len(after)), len(kept) - best):
            length = len(kept) - offset
            if kept[offset] == after[0] and kept[offset:] == after[:length]:
                best, redrawn = length, dropped
                break
    return best, redrawn


class PaneReader:
    """What is written into one pane, capture by capture."""

    def __init__(self, pane: Pane) -> None:
        self.pane = pane
        self.last = ""
        """The last line as it stands: a progress bar, or a line that may not have ended."""
        self._before: list[str] | None = None
        self._handed = False
        """Whether `last` was handed out: it stood unchanged in two captures."""

    def read(self) -> list[str] | None:
        """Lines that are complete since the last read; None when the pane cannot be read."""
        first = self._before is None
        after = capture(self.pane, HISTORY_LINES if first else LATER_LINES)
        return None if after is None else self.take(after)

    def take(self, after: list[str]) -> list[str]:
        """The same of a capture at hand."""
        before, self._before = self._before or [], after
        if not after:
            self.last, self._handed = "", False
            return []
        shared, redrawn = _shared(before, after)
        new = after[shared:]
        if not new and not redrawn:
            if self._handed or not self.last:
                return []
            self._handed = True
            return [self.last]
        lines = new[:-1]
        if shared and not redrawn and not self._handed and self.last:
            lines.insert(0, self.last)
        self.last, self._handed = (new[-1] if new else after[-1]), not new
        return lines
