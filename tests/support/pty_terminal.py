"""A real terminal for a test: a pty whose other end the test holds and can close."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Sequence


class Terminal:
    """A program on a pty in its own session. Closing it hangs up, like a lost SSH connection."""

    def __init__(self, argv: Sequence[str], columns: int = 120, lines: int = 40) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execvp(argv[0], list(argv))
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, size)
        self.output = b""

    @classmethod
    def of_ddptop(cls, *arguments: str) -> Terminal:
        """`ddptop ARGUMENTS` with this interpreter."""
        return cls([sys.executable, "-m", "ddptop", *arguments])

    def read_until(self, words: bytes, timeout_s: float = 60.0) -> None:
        """Read the program's output until it contains `words`."""
        deadline = time.monotonic() + timeout_s
        while words not in self.output:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([self._fd], [], [], left_s)[0]:
                raise AssertionError(f"{words!r} was not drawn; got {self.output[-2000:]!r}")
            self.output += os.read(self._fd, 65536)

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._fd, keys)

    def hang_up(self) -> None:
        """Close the terminal: the kernel sends SIGHUP to its session."""
        os.close(self._fd)

    def exit_status(self, timeout_s: float = 60.0) -> int:
        """The program's exit status once it has exited; negative for a signal."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError(f"the program did not end within {timeout_s:g} s")
