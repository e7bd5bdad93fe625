"""The real program in a real pty."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence


def _own(ignore_hangup: bool) -> None:
    """Make stdin the controlling terminal, so that its hang-ups and sizes arrive as signals."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if ignore_hangup:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


class Terminal:
    """ddptop, or another program, in a pty."""

    def __init__(
        self,
        *arguments: str,
        program: Sequence[str] = (sys.executable, "-m", "ddptop"),
        ignore_hangup: bool = False,
        size: tuple[int, int] = (120, 40),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start it; `size` is in columns and rows, `env` goes over this process's environment."""
        self.master, slave = pty.openpty()
        self.resize(*size)
        self.drawn = b""
        self.process = subprocess.Popen(
            [*program, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm-256color", **(env or {})},
            start_new_session=True,
            preexec_fn=lambda: _own(ignore_hangup),
        )
        os.close(slave)

    def draws(self, text: bytes) -> bool:
        """Read more; returns whether `text` has been drawn."""
        while select.select([self.master], [], [], 0)[0]:
            try:
                data = os.read(self.master, 1 << 16)
            except OSError:  # EIO: the other end is closed
                break
            if not data:
                break
            self.drawn += data
        return text in self.drawn

    def ended(self) -> bool:
        """Read more, like a terminal; returns whether the program has exited."""
        if self.master >= 0:
            self.draws(b"")
        return self.process.poll() is not None

    def resize(self, columns: int, rows: int) -> None:
        """Resize it like a terminal window; the kernel sends SIGWINCH."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def hang_up(self) -> None:
        """Close it like a dropped connection."""
        os.close(self.master)
        self.master = -1

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.master >= 0:
            os.close(self.master)
