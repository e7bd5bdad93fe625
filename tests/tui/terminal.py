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


class Terminal:
    """ddptop in a pty of 120 by 40."""

    def __init__(self, *arguments: str, ignore_hangup: bool = False) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.drawn = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ddptop", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm-256color"},
            start_new_session=True,
            preexec_fn=(lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
            if ignore_hangup
            else None,
        )
        os.close(slave)

    def draws(self, text: bytes) -> bool:
        """Read on; whether `text` has been drawn."""
        while select.select([self.master], [], [], 0)[0]:
            try:
                data = os.read(self.master, 1 << 16)
            except OSError:  # EIO: nobody holds the other end any more
                break
            if not data:
                break
            self.drawn += data
        return text in self.drawn

    def ended(self) -> bool:
        """Read on, as a terminal does; whether the program has ended."""
        if self.master >= 0:
            self.draws(b"")
        return self.process.poll() is not None

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def hang_up(self) -> None:
        """As when the connection drops."""
        os.close(self.master)
        self.master = -1

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.master >= 0:
            os.close(self.master)
